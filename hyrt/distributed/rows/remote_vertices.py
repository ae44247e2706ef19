"""Which rows a rank needs of which other, and the exchange of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.row_addresses import RowAddresses
from hyrt.quantities import one_line

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


class RemoteVertices:
    """Finds out, together with all other ranks, who needs the rows of whom.

    Parameters
    ----------
    homes
        [V] the rank that has each vertex's rows.
    places
        [V] integers, the row of each vertex among those of its rank.
    group
        The ranks.
    purpose
        The purpose of the rows, in the counts of bytes; that of the numbers of vertices is `indices`.
    beside
        The ranks whose rows are read where they lie, and never asked for.
    """

    def __init__(
        self,
        homes: NDArray[Any],
        places: NDArray[Any],
        group: RankGroup,
        purpose: str,
        beside: Sequence[int] = (),
    ) -> None:
        self.hits = 0
        """How many of the remote rows that steps needed were cached."""
        self.lookups = 0
        """How many remote rows steps needed, each vertex once a step."""
        self.group = group
        """The ranks."""
        self.addresses = RowAddresses(homes, places, group.rank, group.size, beside)
        """Where the row of each vertex is; the fetched ones are those that were asked for last."""
        self._purpose = purpose

    def ask(self, ids: Sequence[NDArray[Any]]) -> WantedRows:
        """Ask the other ranks for those of their rows among some vertices that are not cached here; every
        rank does so at once.

        Parameters
        ----------
        ids
            Arrays of vertices; one that is there several times is asked for once.
        """
        met = self.addresses.meet(ids)
        self.lookups += len(met.wanted) + met.num_cached
        self.hits += met.num_cached
        return self._asked(met.wanted, met.counts, self._purpose)

    def ask_to_cache(self, vertices: NDArray[Any]) -> WantedRows:
        """Ask for rows that are kept for the whole run; every rank does so at once, before any step.

        Parameters
        ----------
        vertices
            [n] distinct vertices of other ranks.
        """
        return self._asked(*self.addresses.by_home(vertices), CACHE)

    def _asked(self, wanted: NDArray[Any], wanted_counts: list[int], purpose: str) -> WantedRows:
        group = self.group
        given_counts = group.exchange_counts(wanted_counts, "indices")
        given = np.empty(sum(given_counts), wanted.dtype)
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
