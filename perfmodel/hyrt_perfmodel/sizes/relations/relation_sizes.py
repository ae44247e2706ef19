"""The sizes of a mini-batch of a typed graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RelationSizes:
    """Sizes by type of vertices and by relation.

    Raises
    ------
    ValueError
        If the numbers of layers do not belong together.
    """

    vertices: tuple[tuple[float, ...], ...]
    """[L+1][T] the vertices of V^0 .. V^L of each type, the targets last."""
    runs: tuple[tuple[float, ...], ...]
    """[L][R] of each layer and relation, the destinations that have an edge of it."""
    edges: tuple[tuple[float, ...], ...]
    """[L][R] the edges of each layer and relation."""

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
        """All sizes one after the other, as `of_row` takes them."""
        return tuple(itertools.chain(*self.vertices, *self.runs, *self.edges))

    @classmethod
    def of_row(cls, row: Sequence[float], layers: int, types: int) -> RelationSizes:
        """The sizes that one row has.

        Parameters
        ----------
        row
            All sizes, as `row` gives them.
        layers, types
            How many there are.
        """
        split = (layers + 1) * types
        relations = (len(row) - split) // (2 * layers)
        after = [tuple(row[at : at + relations]) for at in range(split, len(row), relations)]
        return cls(
            vertices=tuple(tuple(row[at : at + types]) for at in range(0, split, types)),
            runs=tuple(after[:layers]),
            edges=tuple(after[layers:]),
        )
