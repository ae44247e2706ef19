"""Which rows a rank needs of which other, and the exchange of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.quantities import one_line

# Where the row of a vertex is.
_FETCHED, _OWN, _CACHED = np.uint8(0), np.uint8(1), np.uint8(2)
CACHE = "cache"
"""The purpose of rows that are cached, in the counts of bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedRows:
    """Which rows go from where to where."""

    wanted: NDArray[Any]
    """[m] distinct vertices of other ranks whose rows are needed here, by rank."""
    wanted_counts: list[int]
    """[N] how many of them each rank has."""
    given: NDArray[Any]
    """[n] own vertices whose rows other ranks need, by rank."""
    given_counts: list[int]
    """[N] how many each rank needs."""
    purpose: str
    """What the rows are for, in the counts of bytes."""

    __repr__ = one_line


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Where the rows of some vertices are."""

    own: NDArray[np.intp]
    """Positions of own vertices."""
    fetched: tuple[NDArray[np.int32], NDArray[np.intp]]
    """Where rows are among those fetched for the step, and positions of their vertices."""
    cached: tuple[NDArray[np.int32], NDArray[np.intp]]
    """The same, among the cached rows."""

    __repr__ = one_line


class RemoteVertices:
    """Finds out, together with all other ranks, who needs the rows of whom.

    Parameters
    ----------
    homes
        [V] the rank that has each vertex's rows.
    group
        The ranks.
    purpose
        The purpose of the rows, in the counts of bytes; that of the numbers of vertices is `indices`.
    """

    def __init__(self, homes: NDArray[Any], group: RankGroup, purpose: str) -> None:
        self.hits = 0
        """How many of the remote rows that steps needed were cached."""
        self.lookups = 0
        """How many remote rows steps needed, each vertex once a step."""
        self.group = group
        """The ranks."""
        self._homes = homes
        self._purpose = purpose
        self._ids = np.int32 if len(homes) < 2**31 else np.int64
        self._none = np.empty(0, self._ids)
        self._slots = np.zeros(len(homes), np.int32)
        self._places = np.where(homes == group.rank, _OWN, _FETCHED)

    def ask(self, ids: Sequence[NDArray[Any]]) -> WantedRows:
        """Ask the other ranks for those of their rows among some vertices that are not cached here; every
        rank does so at once.

        Parameters
        ----------
        ids
            Arrays of distinct vertices; one that is in several arrays is asked for once.
        """
        remote = [each[self._places[each] != _OWN] for each in ids]
        wanted = remote[0] if len(remote) == 1 else np.unique(np.concatenate([self._none, *remote]))
        missed = wanted[self._places[wanted] != _CACHED]
        self.lookups += len(wanted)
        self.hits += len(wanted) - len(missed)
        return self._asked(missed, self._purpose)

    def ask_to_cache(self, vertices: NDArray[Any]) -> WantedRows:
        """Ask for rows that are kept for the whole run; every rank does so at once, before any step.

        Parameters
        ----------
        vertices
            [n] distinct vertices of other ranks.
        """
        return self._asked(vertices, CACHE)

    def _asked(self, vertices: NDArray[Any], purpose: str) -> WantedRows:
        group = self.group
        wanted = vertices.astype(self._ids)
        owners = self._homes[wanted]
        wanted = wanted[np.argsort(owners, kind="stable")]
        wanted_counts = np.bincount(owners, minlength=group.size).tolist()
        given_counts = group.exchange_counts(wanted_counts, "indices")
        given = np.empty(sum(given_counts), self._ids)
        group.exchange(
            torch.from_numpy(wanted), wanted_counts, torch.from_numpy(given), given_counts, "indices"
        )
        return WantedRows(wanted, wanted_counts, given, given_counts, purpose)

    def exchange(self, rows: WantedRows, given: NDArray[Any], taken: NDArray[Any]) -> None:
        """Send a row for each vertex that others need, and take one for each that is needed here.

        Parameters
        ----------
        rows
            The vertices.
        given
            [n, ...] the rows of `rows.given`.
        taken
            [m, ...] overwritten with those of `rows.wanted`.
        """
        self.exchange_counted(given, rows.given_counts, taken, rows.wanted_counts, rows.purpose)

    def exchange_counted(
        self,
        given: NDArray[Any],
        given_counts: Sequence[int],
        taken: NDArray[Any],
        taken_counts: Sequence[int],
        purpose: str,
    ) -> None:
        """As `exchange`, of so many entries for and from each rank."""
        self.group.exchange(
            torch.from_numpy(given), given_counts, torch.from_numpy(taken), taken_counts, purpose
        )

    def keep(self, cached: NDArray[Any]) -> None:
        """From now on, the rows of these vertices are cached, in this order."""
        self._slots[cached] = np.arange(len(cached), dtype=np.int32)
        self._places[cached] = _CACHED

    def point_at(self, wanted: NDArray[Any]) -> None:
        """From now on, `find` gives positions in these vertices, of which none is cached."""
        self._slots[wanted] = np.arange(len(wanted), dtype=np.int32)

    def find(self, ids: NDArray[Any]) -> Found:
        """Where the rows of some vertices are."""
        places = self._places[ids]
        fetched, cached = (np.flatnonzero(places == place) for place in (_FETCHED, _CACHED))
        return Found(
            own=np.flatnonzero(places == _OWN),
            fetched=(self._slots[ids[fetched]], fetched),
            cached=(self._slots[ids[cached]], cached),
        )
