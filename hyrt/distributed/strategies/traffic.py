"""What travels between ranks in a step, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficBytes:
    """The bytes of one of everything that travels."""

    row: float
    """An input row: f^0 values."""
    hidden: float
    """A vertex's result of the first layer: f^1 values."""
    partial: float
    """A vertex's partial aggregate as the first layer multiplies it: f_in^1 values."""
    model: float
    """A model that migrates: its weights and the sums of its gradients."""


@dataclass(frozen=True, slots=True, eq=False)
class Traffic:
    """How much each rank sends to each other rank; [from, to], with zeros on the diagonal."""

    rows: Counts
    """[N, N] int64, input rows."""
    hidden: Counts
    """[N, N] int64, results of the first layer, and their gradients."""
    partials: Counts
    """[N, N] int64, partial aggregates of the first layer."""
    models: Counts
    """[N, N] int64, models that migrate."""

    __repr__ = one_line

    @classmethod
    def none(cls, num_ranks: int) -> Self:
        """No traffic at all."""
        return cls(*(np.zeros((num_ranks, num_ranks), np.int64) for _ in range(4)))

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.rows + other.rows,
            self.hidden + other.hidden,
            self.partials + other.partials,
            self.models + other.models,
        )

    def bytes_by_purpose(self, each: TrafficBytes) -> dict[str, float]:
        """Bytes that all ranks together send, by what they are for."""
        return {
            "rows": int(self.rows.sum()) * each.row,
            "hidden": int(self.hidden.sum()) * each.hidden,
            "partials": int(self.partials.sum()) * each.partial,
            "models": int(self.models.sum()) * each.model,
        }


def rows_from(inputs: NDArray[Any], homes: NDArray[Any], rank: int, num_ranks: int) -> Counts:
    """How many rows of some vertices a rank needs from each other rank.

    Parameters
    ----------
    inputs
        [n] distinct vertices.
    homes
        [V] the rank that has each vertex's features.
    rank
        The rank that needs them.
    num_ranks
        The number of ranks, N.

    Returns
    -------
    [N] int64, with 0 for the rank itself.
    """
    counts = np.bincount(homes[inputs], minlength=num_ranks).astype(np.int64)
    counts[rank] = 0
    return counts
