"""Fetch plans, which state the rows that each rank needs from each other rank, and their exchange."""

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
"""Purpose of cached rows, for the byte counters."""


@dataclass(frozen=True, slots=True, eq=False)
class WantedRows:
    """Rows to be exchanged: requested from and sent to each rank."""

    wanted: NDArray[Any]
    """[m] distinct remote vertices whose rows this rank needs, grouped by owner rank."""
    wanted_counts: list[int]
    """[N] number of rows requested from each rank."""
    given: NDArray[Any]
    """[n] local vertices whose rows other ranks need, grouped by requesting rank."""
    given_counts: list[int]
    """[N] number of rows sent to each rank."""
    purpose: str
    """Purpose of the rows, for the byte counters."""

    __repr__ = one_line


class RemoteVertices:
    """Plans, together with all other ranks, which rows are exchanged between which ranks.

    Parameters
    ----------
    homes
        [V] owner rank of each vertex.
    places
        [V] integers, row index of each vertex at its owner rank.
    group
        The ranks.
    purpose
        Purpose of the rows, for the byte counters; vertex ids are counted as `indices`.
    beside
        Ranks on the same host; their rows are read through shared memory and are never requested.
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
        """Number of remote rows needed by steps that were cached."""
        self.lookups = 0
        """Number of remote rows needed by steps; a vertex counts once per step."""
        self.group = group
        """The ranks."""
        self.addresses = RowAddresses(homes, places, group.rank, group.size, beside)
        """Location of each vertex's row; fetched rows are those of the last request."""
        self._purpose = purpose

    def ask(self, ids: Sequence[NDArray[Any]]) -> WantedRows:
        """Request the rows of remote vertices that are not cached; every rank must call it at the same time.

        Parameters
        ----------
        ids
            Arrays of vertices; duplicates are requested once.
        """
        needs = self.addresses.meet(ids)
        self.lookups += len(needs.wanted) + needs.num_cached
        self.hits += needs.num_cached
        return self._plan(needs.wanted, needs.counts, self._purpose)

    def ask_to_cache(self, vertices: NDArray[Any]) -> WantedRows:
        """Request rows to cache for the whole run; every rank must call it at the same time, before any step.

        Parameters
        ----------
        vertices
            [n] distinct remote vertices.
        """
        return self._plan(*self.addresses.by_home(vertices), CACHE)

    def _plan(self, requested: NDArray[Any], requested_counts: list[int], purpose: str) -> WantedRows:
        group = self.group
        sent_counts = group.exchange_counts(requested_counts, "indices")
        sent = np.empty(sum(sent_counts), requested.dtype)
        group.exchange(
            torch.from_numpy(requested), requested_counts, torch.from_numpy(sent), sent_counts, "indices"
        )
        return WantedRows(requested, requested_counts, sent, sent_counts, purpose)

    def exchange(self, rows: WantedRows, given: NDArray[Any], taken: NDArray[Any]) -> None:
        """Send the rows that other ranks requested, and receive the rows that this rank requested.

        Parameters
        ----------
        rows
            The plan.
        given
            [n, ...] rows of `rows.given`.
        taken
            [m, ...] overwritten with the rows of `rows.wanted`.
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
        """Exchange entries like `exchange`, with the given numbers of entries per rank."""
        self.group.exchange(
            torch.from_numpy(given), given_counts, torch.from_numpy(taken), taken_counts, purpose
        )
