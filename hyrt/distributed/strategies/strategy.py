"""Protocol of placement strategies, placements of units on ranks and time steps, and traffic counts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.sampling.block import Block

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficItemBytes:
    """Size of one item of each kind of traffic, in bytes."""

    row: float
    """Bytes of an input row: f^0 values."""
    hidden: float
    """Bytes of a vertex's first-layer result: f^1 values."""
    partial: float
    """Bytes of a vertex's partial aggregate, as the first layer multiplies it: f_in^1 values."""
    model: float
    """Bytes of a migrating model: weights and gradient sums."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Number of items that each rank sends to each other rank, indexed [from, to], with a zero diagonal."""

    rows: Counts
    """Input rows, [N, N] int64."""
    hidden: Counts
    """First-layer results and their gradients, [N, N] int64."""
    partials: Counts
    """Partial aggregates of the first layer, [N, N] int64."""
    models: Counts
    """Migrating models, [N, N] int64."""

    __repr__ = short_repr

    @classmethod
    def zero(cls, num_ranks: int) -> Self:
        return cls(*(np.zeros((num_ranks, num_ranks), np.int64) for _ in range(4)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.rows + other.rows,
            self.hidden + other.hidden,
            self.partials + other.partials,
            self.models + other.models,
        )

    def bytes_by_purpose(self, item_bytes: TrafficItemBytes) -> dict[str, float]:
        """Return the bytes that all ranks together send, by purpose."""
        return {
            "rows": int(self.rows.sum()) * item_bytes.row,
            "hidden": int(self.hidden.sum()) * item_bytes.hidden,
            "partials": int(self.partials.sum()) * item_bytes.partial,
            "models": int(self.models.sum()) * item_bytes.model,
        }


def count_remote_rows(inputs: NDArray[Any], owners: NDArray[Any], rank: int, num_ranks: int) -> Counts:
    """Count the rows of distinct vertices `inputs` [n] that a rank needs from each other rank, int64 [N].

    `owners` [V] are the owner ranks. The count for the rank itself is 0.
    """
    counts = np.bincount(owners[inputs], minlength=num_ranks).astype(np.int64)
    counts[rank] = 0
    return counts


Ranks = NDArray[np.int32]
"""Array of ranks, models or time steps, int32."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """Assignment of a step's n units to N ranks and T time steps.

    Each model is a replica that trains one mini-batch of the step. If models do not migrate, model d is at
    rank d.
    """

    models: Ranks
    """Model that trains each unit, [n] int32; units are in sampling order."""
    times: Ranks
    """Time step of each unit, [n] int32."""
    paths: Ranks
    """Rank of each model in each time step, [T, N] int32; every row is a permutation."""

    __repr__ = short_repr

    @property
    def num_ranks(self) -> int:
        return int(self.paths.shape[1])

    @property
    def num_times(self) -> int:
        return int(self.paths.shape[0])

    @property
    def ranks(self) -> Ranks:
        """Rank that trains each unit, [n] int32."""
        ranks: Ranks = self.paths[self.times, self.models]
        return ranks

    def positions_of_rank(self, rank: int) -> NDArray[np.intp]:
        """Return the positions of a rank's units in the step, by time step and then sampling order."""
        positions = np.flatnonzero(self.ranks == rank)
        return positions[np.argsort(self.times[positions], kind="stable")]

    def positions_by_time(self, rank: int) -> list[NDArray[np.intp]]:
        """Return the positions of a rank's units in the step, one array per time step."""
        positions = np.flatnonzero(self.ranks == rank)
        return [positions[self.times[positions] == time] for time in range(self.num_times)]


def place_without_migration(ranks: NDArray[Any], num_ranks: int) -> Placement:
    """Create a placement without model migration, in which unit i runs on `ranks[i]`."""
    return Placement(
        models=ranks.astype(np.int32),
        times=np.zeros(len(ranks), np.int32),
        paths=np.arange(num_ranks, dtype=np.int32)[None],
    )


def split_in_order(num_units: int, num_ranks: int) -> Ranks:
    """Split the units in sampling order into equal parts; return each unit's part, [n] int32.

    The sizes differ by at most one.
    """
    ends = np.rint(np.arange(1, num_ranks + 1) * (num_units / num_ranks)).astype(np.int64)
    return np.searchsorted(ends, np.arange(num_units), side="right").astype(np.int32)


InputBlock = Callable[[NDArray[np.intp]], Block]
"""Function that samples the input block of a mini-batch of units, given by their positions in the step."""


@dataclass(frozen=True, slots=True, eq=False)
class Seeds:
    """Units of a step, in sampling order."""

    owners: NDArray[Any]
    """Owner rank of the features of each unit's seed, [n] integers."""
    num_ranks: int
    remote_rows: Callable[[], NDArray[np.float64]] | None = None
    """Function that computes the expected number of remote rows of each unit for each rank, [n, N] float64;
    None if unknown, which disables load balancing.
    """

    __repr__ = short_repr


REFUSED_WITHOUT_ROWS = (
    "links",
    "subgraph_units",
    "split_edges",
    "rank_shares",
    "remote_cache",
    "comm_dtype",
    "accelerated_ranks",
)
"""Features that a strategy refuses if it sends partial results of the first layer instead of rows."""


class Strategy(Protocol):
    """Policy that decides where the units of a step are trained, and counts the resulting traffic.

    A strategy is a pure function of data that every rank has, so all ranks compute the same result without
    communication. Any placement gives the same gradient sums, up to rounding.
    """

    @property
    def name(self) -> str:
        """Name in settings and tables."""
        ...

    @property
    def description(self) -> str:
        """Short description of the data that the strategy sends."""
        ...

    @property
    def draws_locally(self) -> bool:
        """Whether each rank draws seeds from its own part, which changes the batches."""
        ...

    @property
    def refuses(self) -> Collection[str]:
        """Features that a run with the strategy cannot have, by the names in `hyrt.config.compatibility`."""
        ...

    def place(self, seeds: Seeds) -> Placement:
        """Assign each unit to a rank and a time step."""
        ...

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count the data sent in a step, without gradient sums.

        Parameters
        ----------
        placement
            Result of `place` for the step.
        owners
            [V] owner rank of each vertex's features.
        sampled
            Samples the step's units.
        """
        ...


def traffic_with_pregather(placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Count each rank's remote rows if they are fetched once per step (pre-gathering).

    The arguments are as in `Strategy.traffic`.
    """
    traffic = Traffic.zero(placement.num_ranks)
    rows = traffic.rows.copy()
    for rank in range(placement.num_ranks):
        positions = placement.positions_of_rank(rank)
        if len(positions):
            rows[:, rank] = count_remote_rows(_sources(sampled, positions), owners, rank, placement.num_ranks)
    return replace(traffic, rows=rows)


def traffic_without_pregather(placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
    """Count each rank's remote rows if they are fetched again in each time step.

    The arguments are as in `Strategy.traffic`.
    """
    traffic = Traffic.zero(placement.num_ranks)
    rows = traffic.rows.copy()
    for rank in range(placement.num_ranks):
        for group in placement.positions_by_time(rank):
            if len(group):
                rows[:, rank] += count_remote_rows(
                    _sources(sampled, group), owners, rank, placement.num_ranks
                )
    return replace(traffic, rows=rows)


def _sources(sampled: InputBlock, positions: NDArray[Any]) -> NDArray[Any]:
    sources = sampled(positions).sources
    assert sources is not None
    return sources
