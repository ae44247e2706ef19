"""Expected sizes of sampled mini-batches, without sampling: from degrees, fan-outs and the number of targets.

Node-wise sampling without replacement, where a vertex that appears twice counts once; how it is done is in
growth.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.growth import Growth

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Sizes of one mini-batch.

    Raises
    ------
    ValueError
        If there is not one vertex count more than edge counts, or a size is negative.
    """

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|, the targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """`walk_steps` and `scanned_edges`: what sampling subgraphs of random walks takes, as in `Workload`."""

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
        """All sizes one after the other, as `of_row` takes them."""
        return (*self.vertices, *self.edges, self.walk_steps, self.scanned_edges)

    @classmethod
    def of_row(cls, row: Sequence[float]) -> BlockSizes:
        """The sizes that one row has.

        Parameters
        ----------
        row
            All sizes, as `row` gives them.
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
    """Expected |V^l| and |E^l| of a mini-batch.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    targets
        Targets of the mini-batch, any number of at least 0; more than the graph has count as all of them.

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
    """Refuse fan-outs and numbers of targets that cannot be.

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
    """[C] each class's chance of being a target."""
    weights = degrees.counts if degrees.target_counts is None else degrees.target_counts
    total = float(weights.sum())
    if total == 0:
        return np.zeros(degrees.num_classes)
    chances: Floats = weights / np.maximum(degrees.counts, 1e-300) * (min(targets, total) / total)
    return np.minimum(chances, 1.0)
