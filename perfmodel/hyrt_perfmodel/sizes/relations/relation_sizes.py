"""Sizes of a heterogeneous mini-batch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSizes:
    """Sizes by vertex type and by relation.

    Raises
    ------
    ValueError
        If the numbers of layers do not match.
    """

    vertices: tuple[tuple[float, ...], ...]
    """[L+1][T] vertices of V^0 .. V^L per type, targets last."""
    runs: tuple[tuple[float, ...], ...]
    """[L][R] destinations with an edge, per layer and relation."""
    edges: tuple[tuple[float, ...], ...]
    """[L][R] edges per layer and relation."""

    def __post_init__(self) -> None:
        if not len(self.vertices) - 1 == len(self.runs) == len(self.edges):
            raise ValueError(
                f"sizes of relations: {len(self.vertices)} layers of vertices, {len(self.runs)} of runs and "
                f"{len(self.edges)} of edges: give one more of vertices"
            )

    @property
    def layers(self) -> int:
        return len(self.edges)

    @property
    def row(self) -> tuple[float, ...]:
        """All sizes in one sequence, the inverse of `of_row`."""
        return tuple(itertools.chain(*self.vertices, *self.runs, *self.edges))

    @classmethod
    def of_row(cls, row: Sequence[float], layers: int, types: int) -> RelationSizes:
        """Build sizes from one sequence.

        Parameters
        ----------
        row
            All sizes, in the order of the property `row`.
        layers, types
            Number of layers and of vertex types.
        """
        split = (layers + 1) * types
        relations = (len(row) - split) // (2 * layers)
        tables = [tuple(row[start : start + relations]) for start in range(split, len(row), relations)]
        return cls(
            vertices=tuple(tuple(row[start : start + types]) for start in range(0, split, types)),
            runs=tuple(tables[:layers]),
            edges=tuple(tables[layers:]),
        )
