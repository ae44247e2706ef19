"""Traffic counts between ranks in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficBytes:
    """Size of one item of each kind of traffic, in bytes."""

    row: float
    """Input row: f^0 values."""
    hidden: float
    """First-layer result of a vertex: f^1 values."""
    partial: float
    """Partial aggregate of a vertex, as the first layer multiplies it: f_in^1 values."""
    model: float
    """Migrating model: weights and gradient sums."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """Number of items that each rank sends to each other rank; [from, to], with zeros on the diagonal."""

    rows: Counts
    """[N, N] int64, input rows."""
    hidden: Counts
    """[N, N] int64, first-layer results and their gradients."""
    partials: Counts
    """[N, N] int64, partial aggregates of the first layer."""
    models: Counts
    """[N, N] int64, migrating models."""

    __repr__ = one_line

    @classmethod
    def none(cls, num_ranks: int) -> Self:
        """Create counts without any traffic."""
        return cls(*(np.zeros((num_ranks, num_ranks), np.int64) for _ in range(4)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.rows + other.rows,
            self.hidden + other.hidden,
            self.partials + other.partials,
            self.models + other.models,
        )

    def bytes_by_purpose(self, each: TrafficBytes) -> dict[str, float]:
        """Return the bytes that all ranks together send, by purpose."""
        return {
            "rows": int(self.rows.sum()) * each.row,
            "hidden": int(self.hidden.sum()) * each.hidden,
            "partials": int(self.partials.sum()) * each.partial,
            "models": int(self.models.sum()) * each.model,
        }


def rows_from(inputs: NDArray[Any], homes: NDArray[Any], rank: int, num_ranks: int) -> Counts:
    """Count the rows of some vertices that a rank needs from each other rank.

    Parameters
    ----------
    inputs
        [n] distinct vertices.
    homes
        [V] owner rank of each vertex's features.
    rank
        Rank that needs the rows.
    num_ranks
        Number of ranks, N.

    Returns
    -------
    [N] int64, with 0 for the rank itself.
    """
    counts = np.bincount(homes[inputs], minlength=num_ranks).astype(np.int64)
    counts[rank] = 0
    return counts
