"""The degrees of a typed graph, relation by relation."""

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
    """The edges of one relation, by classes of the vertices at their ends.

    Raises
    ------
    ValueError
        If a degree is negative or infinite.
    """

    source: int
    destination: int
    """`source` and `destination`: numbers of types."""
    in_degrees: Floats
    """[C_destination] float64, the mean edges of the relation into a vertex of each class."""
    out_degrees: Floats
    """[C_source] float64, the mean edges out of one. Degrees scatter around the mean of a class as those of a
    random graph do (Poisson)."""
    reverse: int | None = None
    """The number of the relation that has the same edges the other way round, if there is one."""

    def __post_init__(self) -> None:
        for name in ("in_degrees", "out_degrees"):
            values = getattr(self, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"relation: {name} has a negative or infinite number")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TypedDegrees:
    """Classes of the vertices of each type, and the relations between them.

    A relation joins vertices by their degrees in it, and by nothing else.

    Raises
    ------
    ValueError
        If a relation has not one degree for each class of its types.
    """

    counts: tuple[Floats, ...]
    """[T] of [C_t] float64, the vertices of each class of each type."""
    relations: tuple[RelationDegrees, ...]
    target: int
    """The type of the targets."""
    num_targets: float
    """How many of its vertices may be targets; they are like all others."""

    def __post_init__(self) -> None:
        for each in self.relations:
            ends = (each.source, each.out_degrees), (each.destination, each.in_degrees)
            for number, degrees in ends:
                if degrees.shape != self.counts[number].shape:
                    raise ValueError(
                        f"relation: {len(degrees)} degrees for {len(self.counts[number])} classes: give one "
                        "for each"
                    )

    @property
    def num_vertices(self) -> list[float]:
        """[T] the vertices of each type."""
        return [float(counts.sum()) for counts in self.counts]

    @property
    def num_edges(self) -> list[float]:
        """[R] the edges of each relation."""
        return [float(self.counts[each.destination] @ each.in_degrees) for each in self.relations]


def assumed_relations(
    counts: Sequence[int],
    relations: Sequence[tuple[int, int, int]],
    *,
    target: int,
    num_targets: int,
    sigma: float = 1.2,
) -> TypedDegrees:
    """Log-normal degrees, for a typed graph of which only the sizes are known.

    A vertex that has many edges of one relation has as many more of the others.

    Parameters
    ----------
    counts
        [T] vertices of each type.
    relations
        [R] source type, destination type and edges of each.
    target, num_targets
        The type of the targets, and how many there are.
    sigma
        Deviation of the degrees' logarithm.
    """
    kinds = [DegreeDistribution.assumed(count, count, sigma=sigma) for count in counts]
    of_type = [each.counts for each in kinds]

    def degrees(number: int, edges: int) -> Any:
        # Of one edge a vertex, scaled.
        return kinds[number].in_degrees * (edges / counts[number])

    return TypedDegrees(
        counts=tuple(of_type),
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
