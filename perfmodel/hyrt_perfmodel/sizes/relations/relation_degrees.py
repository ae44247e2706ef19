"""Degrees of a heterogeneous graph, per relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RelationDegrees:
    """Edges of one relation, by classes of their source and destination vertices.

    Raises
    ------
    ValueError
        If a degree is negative or infinite.
    """

    source: int
    destination: int
    """`source` and `destination`: type numbers."""
    in_degrees: Floats
    """[C_destination] float64, mean in-degree in the relation per class."""
    out_degrees: Floats
    """[C_source] float64, mean out-degree in the relation per class. Degrees are Poisson distributed around
    the mean of their class, as in a random graph."""
    reverse: int | None = None
    """Index of the relation with the same edges in reverse, if there is one."""

    def __post_init__(self) -> None:
        for name in ("in_degrees", "out_degrees"):
            values = getattr(self, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"relation: {name} has a negative or infinite number")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedDegrees:
    """Classes of the vertices of each type, and the relations between them.

    Edges of a relation depend only on the degrees in that relation.

    Raises
    ------
    ValueError
        If a relation does not have one degree per class of its types.
    """

    counts: tuple[Floats, ...]
    """[T] of [C_t] float64, vertices per class of each type."""
    relations: tuple[RelationDegrees, ...]
    target: int
    """Type of the targets."""
    num_targets: float
    """Number of possible targets of that type; they are assumed to be like its other vertices."""

    def __post_init__(self) -> None:
        for relation in self.relations:
            ends = (relation.source, relation.out_degrees), (relation.destination, relation.in_degrees)
            for number, degrees in ends:
                if degrees.shape != self.counts[number].shape:
                    raise ValueError(
                        f"relation: {len(degrees)} degrees for {len(self.counts[number])} classes: give one "
                        "for each"
                    )

    @property
    def num_vertices(self) -> list[float]:
        """[T] vertices per type."""
        return [float(counts.sum()) for counts in self.counts]

    @property
    def num_edges(self) -> list[float]:
        """[R] edges per relation."""
        return [float(self.counts[relation.destination] @ relation.in_degrees) for relation in self.relations]


def assumed_relations(
    counts: Sequence[int],
    relations: Sequence[tuple[int, int, int]],
    *,
    target: int,
    num_targets: int,
    sigma: float = 1.2,
) -> TypedDegrees:
    """Assume log-normal degrees, for a heterogeneous graph of known size.

    A vertex with many edges of one relation has proportionally many edges of the others.

    Parameters
    ----------
    counts
        [T] vertices per type.
    relations
        [R] source type, destination type and number of edges.
    target, num_targets
        Type and number of the targets.
    sigma
        Standard deviation of the degrees' logarithm.
    """
    distributions = [DegreeDistribution.assumed(count, count, sigma=sigma) for count in counts]
    class_counts = [distribution.counts for distribution in distributions]

    def degrees(number: int, edges: int) -> Any:
        # In-degree distribution for one edge per vertex, scaled to `edges`.
        return distributions[number].in_degrees * (edges / counts[number])

    return TypedDegrees(
        counts=tuple(class_counts),
        relations=tuple(
            RelationDegrees(
                source=source,
                destination=destination,
                in_degrees=degrees(destination, edges),
                out_degrees=degrees(source, edges),
            )
            for source, destination, edges in relations
        ),
        target=target,
        num_targets=float(num_targets),
    )
