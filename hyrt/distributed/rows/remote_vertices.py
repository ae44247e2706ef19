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


@dataclass(frozen=True, slots=True, eq=False)
class WantedRows:
    """Which rows of a step go from where to where."""

    wanted: NDArray[Any]
    """[m] distinct vertices of other ranks whose rows are needed here, by rank."""
    wanted_counts: list[int]
    """[N] how many of them each rank has."""
    given: NDArray[Any]
    """[n] own vertices whose rows other ranks need, by rank."""
    given_counts: list[int]
    """[N] how many each rank needs."""

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
        self._homes = homes
        self._group = group
        self._purpose = purpose
        self._ids = np.int32 if len(homes) < 2**31 else np.int64
        self._slots = np.zeros(len(homes), np.int32)

    def ask(self, ids: Sequence[NDArray[Any]]) -> WantedRows:
        """Ask the other ranks for the rows of theirs among some vertices; every rank does so at once.

        Parameters
        ----------
        ids
            Arrays of distinct vertices; one that is in several arrays is asked for once.
        """
        group = self._group
        remote = [each[self._homes[each] != group.rank] for each in ids if len(each)]
        wanted = np.unique(np.concatenate(remote)) if len(remote) > 1 else np.concatenate([*remote, []])
        wanted = wanted.astype(self._ids)
        owners = self._homes[wanted]
        wanted = wanted[np.argsort(owners, kind="stable")]
        wanted_counts = np.bincount(owners, minlength=group.size).tolist()
        given_counts = group.exchange_counts(wanted_counts, "indices")
        given = np.empty(sum(given_counts), self._ids)
        group.exchange(
            torch.from_numpy(wanted), wanted_counts, torch.from_numpy(given), given_counts, "indices"
        )
        return WantedRows(wanted, wanted_counts, given, given_counts)

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
        self.exchange_counted(given, rows.given_counts, taken, rows.wanted_counts)

    def exchange_counted(
        self,
        given: NDArray[Any],
        given_counts: Sequence[int],
        taken: NDArray[Any],
        taken_counts: Sequence[int],
    ) -> None:
        """As `exchange`, of so many entries for and from each rank."""
        self._group.exchange(
            torch.from_numpy(given), given_counts, torch.from_numpy(taken), taken_counts, self._purpose
        )

    def point_at(self, wanted: NDArray[Any]) -> None:
        """From now on, `find` gives positions in these vertices."""
        self._slots[wanted] = np.arange(len(wanted), dtype=np.int32)

    def find(self, ids: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.int32]]:
        """Positions in `ids` of own vertices and of others', and where the others' rows have been put."""
        is_own = self._homes[ids] == self._group.rank
        remote = np.flatnonzero(~is_own)
        return np.flatnonzero(is_own), remote, self._slots[ids[remote]]
