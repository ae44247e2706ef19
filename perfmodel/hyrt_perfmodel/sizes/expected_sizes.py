"""Expected sizes of sampled mini-batches, from degrees, fan-outs and the number of targets.

The model is node-wise sampling without replacement, with duplicate vertices counted once; `Growth` describes
the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.growth import Floats, Growth


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of one mini-batch.

    Raises
    ------
    ValueError
        If there is not exactly one vertex count more than edge counts, or a size is negative.
    """

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|, targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """`walk_steps` and `scanned_edges`: work of sampling random-walk subgraphs, as in `Workload`."""

    def __post_init__(self) -> None:
        if len(self.vertices) != len(self.edges) + 1:
            raise ValueError(
                f"sizes: {len(self.vertices)} vertex counts and {len(self.edges)} edge counts: give "
                "one more vertex count than edge counts"
            )
        if not min(self.row) >= 0:
            raise ValueError(f"sizes: a size of {self.vertices} and {self.edges} is negative or not a number")

    @property
    def row(self) -> tuple[float, ...]:
        """All sizes in one sequence, the inverse of `of_row`."""
        return (*self.vertices, *self.edges, self.walk_steps, self.scanned_edges)

    @classmethod
    def of_row(cls, row: Sequence[float]) -> BlockSizes:
        """Build sizes from one sequence.

        Parameters
        ----------
        row
            All sizes, in the order of the property `row`.
        """
        *blocks, walk_steps, scanned_edges = row
        layers = len(blocks) // 2
        return cls(
            vertices=tuple(blocks[: layers + 1]),
            edges=tuple(blocks[layers + 1 :]),
            walk_steps=walk_steps,
            scanned_edges=scanned_edges,
        )


def expected_sizes(
    degrees: DegreeDistribution,
    fanouts: Sequence[int],
    targets: float,
) -> BlockSizes:
    """Return expected |V^l| and |E^l| of a mini-batch.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbors per vertex and layer, the targets' layer first; -1 for all.
    targets
        Targets of the mini-batch, at least 0; capped at the number of possible targets.

    Raises
    ------
    ValueError
        If a fan-out is neither -1 nor above 0, or `targets` is negative.
    """
    check_asked(fanouts, targets)
    chances = target_chances(degrees, targets)
    growth = Growth(degrees, chances)
    vertices, edges = [growth.present], []
    for hop in range(len(fanouts)):
        edges.append(growth.grow(fanouts[: hop + 1]))
        vertices.append(growth.present)
    return BlockSizes(vertices=tuple(vertices[::-1]), edges=tuple(edges[::-1]))


def check_asked(fanouts: Sequence[int], targets: float) -> None:
    """Validate fan-outs and the number of targets.

    Raises
    ------
    ValueError
        If a fan-out is neither -1 nor above 0, or `targets` is negative.
    """
    if not fanouts or any(fanout != -1 and fanout < 1 for fanout in fanouts):
        raise ValueError(
            f"sizes: fan-outs {list(fanouts)}: give one per layer, -1 for all neighbours or a number above 0"
        )
    if not targets >= 0:
        raise ValueError(f"sizes: targets is {targets!r}: give a number of at least 0")


def target_chances(degrees: DegreeDistribution, targets: float) -> Floats:
    """Return [C] probabilities of a vertex of each class to be a target."""
    weights = degrees.counts if degrees.target_counts is None else degrees.target_counts
    total = float(weights.sum())
    if total == 0:
        return np.zeros(degrees.num_classes)
    chances: Floats = weights / np.maximum(degrees.counts, 1e-300) * (min(targets, total) / total)
    return np.minimum(chances, 1.0)
