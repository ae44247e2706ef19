"""Classes of vertices with nearly equal degrees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Increasingly coarse ratios between degrees of different classes; the first with few enough classes is used.
_RATIOS = (1.01, 1.02, 1.04, 1.07, 1.1, 1.15, 1.25, 1.4, 1.6, 2.0, 3.0, 5.0)


@dataclass(frozen=True, slots=True, eq=False)
class DegreeClasses:
    """Degree class of each vertex of a graph."""

    of_vertex: NDArray[np.int64]
    """[V] int64, class of each vertex."""
    in_degrees: NDArray[Any]
    out_degrees: NDArray[Any]
    """`in_degrees` and `out_degrees`: [V] integers."""
    num_classes: int
    """Number of classes."""

    @classmethod
    def of(
        cls,
        in_degrees: NDArray[Any],
        out_degrees: NDArray[Any] | None = None,
        max_classes: int = 2000,
        kinds: NDArray[Any] | None = None,
    ) -> DegreeClasses:
        """Group vertices with similar degrees into classes, separately per value of `kinds` ([V] integers).

        Raises
        ------
        ValueError
            If the arrays differ in length, contain negative degrees, or `max_classes` is too small.
        """
        ins = np.asarray(in_degrees)
        outs = ins if out_degrees is None else np.asarray(out_degrees)
        if ins.ndim != 1 or ins.shape != outs.shape:
            raise ValueError(f"degrees: in {ins.shape} and out {outs.shape}: give one of each per vertex")
        if max_classes < 16:
            raise ValueError(f"degrees: max_classes is {max_classes}: give at least 16")
        if len(ins) == 0:
            return cls(np.zeros(0, np.int64), ins, outs, 0)
        if min(int(ins.min()), int(outs.min())) < 0:
            raise ValueError("degrees: a degree is negative")
        same = outs is ins or bool(np.array_equal(ins, outs))
        for ratio in (1.0, *_RATIOS):
            key = _levels(ins, ratio)
            if not same:
                other = _levels(outs, ratio)
                key = key * (int(other.max()) + 1) + other
            if kinds is not None:
                key = key * (int(kinds.max()) + 1) + kinds
            classes, number = _renumbered(key)
            if number <= max_classes:
                break
        return cls(classes, ins, outs, number)

    @property
    def symmetric(self) -> bool:
        """Whether every vertex has as many incoming as outgoing edges."""
        return self.out_degrees is self.in_degrees or bool(np.array_equal(self.in_degrees, self.out_degrees))

    def sums(self, weights: NDArray[Any] | None = None) -> Floats:
        """Return [C] float64: sums of `weights` ([V]) over each class's vertices, or the vertex counts."""
        return np.bincount(self.of_vertex, weights, self.num_classes).astype(np.float64)


def _levels(degrees: NDArray[Any], ratio: float) -> NDArray[np.int64]:
    """Map degrees to level numbers; degrees whose ratio is below `ratio` share a level (1: none do)."""
    largest = int(degrees.max())
    if ratio == 1.0:
        return degrees.astype(np.int64)
    steps = int(np.log(max(largest, 1)) / np.log(ratio)) + 2
    starts = np.unique(np.floor(ratio ** np.arange(steps)).astype(np.int64))
    level = np.zeros(largest + 1, np.int64)
    level[starts[starts <= largest]] = 1
    levels: NDArray[np.int64] = np.cumsum(level)[degrees]
    return levels


def _renumbered(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Renumber the distinct keys in ascending order, and return their count."""
    span = int(keys.max()) + 1
    if span > max(1 << 24, 4 * len(keys)):
        distinct, numbers = np.unique(keys, return_inverse=True)
        return numbers.reshape(-1).astype(np.int64), len(distinct)
    present = np.zeros(span, np.int64)
    present[keys] = 1
    numbers = np.cumsum(present) - 1
    return numbers[keys], int(numbers[-1]) + 1
