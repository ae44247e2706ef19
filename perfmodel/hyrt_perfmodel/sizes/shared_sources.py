"""Expected sizes of LABOR's mini-batches, whose destinations share their sources, without sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import TINY, Floats, distinct_share, missed_chance, spread_of

# Maximum number of distinct shares.
_MAX_LEVELS = 48
_FACTOR_HALVINGS = 40


def expected_shared_sizes(
    degrees: DegreeDistribution, fanouts: Sequence[int], targets: float, *, iterations: int = 0
) -> BlockSizes:
    """Return expected |V^l| and |E^l| of a mini-batch of LABOR, and the sampling work.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbors per vertex and layer, the targets' layer first; -1 for all.
    targets
        Targets of the mini-batch, at least 0; capped at the number of possible targets.
    iterations
        Number of importance iterations, i of LABOR-i.

    Raises
    ------
    ValueError
        If a fan-out is neither -1 nor above 0, or `targets` is negative.
    """
    check_asked(fanouts, targets)
    growth = SharedGrowth(degrees, target_chances(degrees, targets), iterations)
    vertices, edges, read = [growth.present], [], 0.0
    for hop in range(len(fanouts)):
        read += growth.read
        edges.append(growth.grow(fanouts[: hop + 1]))
        vertices.append(growth.present)
    return BlockSizes(
        vertices=tuple(vertices[::-1]),
        edges=tuple(edges[::-1]),
        walk_steps=sum(edges),
        scanned_edges=read * (1 + 4 * iterations),
    )


class SharedGrowth:
    """Vertices of a LABOR mini-batch, hop by hop from the targets, like `hyrt_perfmodel.sizes.growth.Growth`.

    A source u has one random number per layer, and a destination w of in-degree d samples it if the number is
    below w's share, fan-out / d. So u is a source with the probability that its number is below the largest
    share of its out-neighbors that are destinations, whereas neighbor sampling would use a new number for
    each of them. That largest share has a distribution over the graph's degrees; `Growth` describes the
    presence of out-neighbors. LABOR-i reduces u's probability from the largest share by factors that are in
    turn functions of that share: u's factor is that of the out-neighbor with the largest share, and the
    factor of a share solves the paper's constraint on the variance, over the distribution of the largest
    shares of its neighbors (Balin and Catalyurek, "Layer-Neighbor Sampling", 2023).

    Parameters
    ----------
    degrees
        Degrees of the graph.
    chances
        [C] probability of a vertex of each class to be a target.
    iterations
        Number of importance iterations.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats, iterations: int) -> None:
        self._degrees = degrees
        self._iterations = iterations
        self._absent = self._neighbor_absent = 1.0 - chances
        # Per hop of arrival: probability that a neighbor arrived at that hop and has not yet sampled the
        # vertex.
        self._waiting = [chances]
        self._onward = np.maximum(degrees.out_degrees - degrees.reciprocity, 0.0)
        self._target_chance = min(float(degrees.counts @ chances) / max(degrees.num_targets, TINY), 1.0)
        mixing = degrees.mixing
        self._groups = np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups
        self._shares = np.ones((1, 1)) if mixing is None else mixing.shares
        self._ends = degrees.counts * degrees.in_degrees
        self._sources = degrees.counts * degrees.out_degrees
        self._group_ends = np.bincount(self._groups, self._ends, len(self._shares)).astype(np.float64)
        self.present = float(degrees.counts @ chances)

    @property
    def read(self) -> float:
        """Edges into the present vertices."""
        return float(self._ends @ (1.0 - self._absent))

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer and return its edges.

        `fanouts` are the fan-outs of all layers up to the added one, the targets' layer first.
        """
        degrees = self._degrees
        sampled = degrees.in_degrees if fanouts[-1] < 0 else np.minimum(degrees.in_degrees, fanouts[-1])
        share = sampled / np.maximum(degrees.in_degrees, TINY)
        levels, level = _share_levels(share, self._ends)
        present_chances = self._waiting[0].copy()
        for arrival, waiting in enumerate(self._waiting[1:], 1):
            overlap = degrees.overlap
            present_chances += waiting * distinct_share(overlap, fanouts, arrival, self._target_chance)
        below, onward = self._absence_above(present_chances, level, len(levels))
        chances, edges = levels, float(degrees.counts @ ((1.0 - self._absent) * sampled))
        if self._iterations:
            chances, retained = self._iterate_importance(levels, onward)
            edges = self._edges(retained[level], sampled)
        missing = 1.0 - chances @ np.diff(below, axis=0)
        missing_onward = 1.0 - chances @ np.diff(onward, axis=0)
        self._waiting = [waiting * (1.0 - share) for waiting in self._waiting]
        self._waiting.append(self._neighbor_absent * (1.0 - missing_onward))
        self._neighbor_absent = self._neighbor_absent * missing_onward
        self._absent = self._absent * missing
        present = float(degrees.counts @ (1.0 - self._absent))
        self.present = max(self.present, min(present, self.present + edges))
        return edges

    def _absence_above(
        self, present_chances: Floats, level: NDArray[np.int64], count: int
    ) -> tuple[Floats, Floats]:
        """Return [count + 1, C] probabilities that no out-neighbor of level j or above is present.

        The first table is for all out-neighbors, the second for all but one.
        """
        size, degrees = len(self._shares), self._degrees
        picks = np.zeros((count + 1, size))
        np.add.at(picks, (level, self._groups), self._ends * present_chances)
        from_level = np.cumsum(picks[::-1], axis=0)[::-1]
        reached = np.minimum(from_level / np.maximum(self._group_ends, TINY) @ self._shares.T, 1.0)
        part, spread = np.ones(1), np.full(1, spread_of(self.present, degrees.num_vertices))
        class_reached = reached[:, self._groups]
        return (
            np.stack([missed_chance(degrees.out_degrees, row, part, spread) for row in class_reached]),
            np.stack([missed_chance(self._onward, row, part, spread) for row in class_reached]),
        )

    def _iterate_importance(self, levels: Floats, onward: Floats) -> tuple[Floats, Floats]:
        """Return [J] source probabilities by largest share of the out-neighbors, and [J] kept fractions of
        neighbors.

        The second array is the fraction of its neighbors that a destination of each level keeps.
        """
        none_from = onward @ (self._sources / max(float(self._sources.sum()), TINY))
        # Given a destination of level j: distribution of the largest level of its neighbors.
        largest = [
            np.concatenate([none_from[j + 1 : j + 2], np.diff(none_from[j + 1 :])])
            for j in range(len(levels))
        ]
        # After one iteration, importances are the largest shares themselves.
        chances = levels
        for _ in range(self._iterations - 1):
            chances = np.maximum.accumulate(np.minimum(chances * _factors(levels, largest, chances), 1.0))
        factors = _factors(levels, largest, chances)
        retained = [np.minimum(1.0, factors[j] * chances[j:]) @ largest[j] for j in range(len(levels))]
        return np.maximum.accumulate(np.minimum(chances * factors, 1.0)), np.array(retained)

    def _edges(self, retained: Floats, sampled: Floats) -> float:
        """Return the edges of a layer: the kept fraction of every destination's in-edges."""
        ins = self._degrees.in_degrees
        per_vertex = np.where(sampled < ins, np.minimum(ins * retained, ins), ins)
        return float(self._degrees.counts @ ((1.0 - self._absent) * per_vertex))


def _share_levels(share: Floats, ends: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return [J] ascending shares, and the index of each class's representative share."""
    distinct = np.unique(share[share > 0])
    if len(distinct) > _MAX_LEVELS:
        order = np.argsort(share)
        sums = np.cumsum(ends[order])
        indices = np.searchsorted(sums, np.linspace(0, sums[-1], _MAX_LEVELS + 1)[1:] * (1 - 1e-12))
        distinct = np.unique(np.append(share[order][np.minimum(indices, len(order) - 1)], distinct[-1]))
        distinct = distinct[distinct > 0]
    if not len(distinct):
        return np.ones(1), np.zeros(len(share), np.int64)
    level = np.minimum(np.searchsorted(distinct, share), len(distinct) - 1)
    weights = np.bincount(level, ends, len(distinct))
    means = np.bincount(level, ends * share, len(distinct)) / np.maximum(weights, TINY)
    return np.where(weights > 0, means, distinct), level


def _factors(levels: Floats, largest: Sequence[Floats], chances: Floats) -> Floats:
    """Return [J] factors c that solve E[1 / min(1, c chance)] = 1 / share over a destination's neighbors."""
    factors = np.ones(len(levels))
    for j, share in enumerate(levels):
        low, high = 0.0, 1.0 / max(float(chances[j:].min()), TINY)
        for _ in range(_FACTOR_HALVINGS):
            middle = (low + high) / 2
            mean = largest[j] @ (1.0 / np.minimum(1.0, np.maximum(middle * chances[j:], TINY)))
            low, high = (middle, high) if mean > 1.0 / share else (low, middle)
        factors[j] = high
    return factors
