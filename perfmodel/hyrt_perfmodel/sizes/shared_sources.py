"""Expected sizes of LABOR's mini-batches, without sampling: destinations share their sources.

A source u has one number in a layer, and a destination w of in-degree d picks it if the number is below w's
share, fan-out / d. So u is a source with the probability that its number is below the largest share of the
out-neighbours that are destinations, where neighbour sampling would draw anew for each of them. That largest
share has a distribution over the graph's degrees; growth.py says how out-neighbours are present. LABOR-i
lowers u's chance from the largest share by factors that are again functions of it: u's factor is that of the
out-neighbour with the largest share, and the factor of a share solves the paper's constraint on the variance,
over the distribution of the largest shares of its neighbours (Balin and Catalyurek, "Layer-Neighbor
Sampling", 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.expected_sizes import BlockSizes, check_asked, target_chances
from hyrt_perfmodel.sizes.growth import TINY, distinct_share, missed_chance, spread_of

Floats = NDArray[np.float64]

# How many shares are told apart.
_LEVELS = 48
_HALVINGS = 40


def expected_shared_sizes(
    degrees: DegreeDistribution, fanouts: Sequence[int], targets: float, *, iterations: int = 0
) -> BlockSizes:
    """Expected |V^l| and |E^l| of a mini-batch of LABOR, and what drawing it looks at.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    targets
        Targets of the mini-batch, any number of at least 0; more than the graph has count as all of them.
    iterations
        How often importances are raised, i of LABOR-i.

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
    """The vertices of a mini-batch, hop by hop from the targets, as `hyrt_perfmodel.sizes.growth.Growth`.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    chances
        [C] each class's chance of being a target.
    iterations
        How often importances are raised.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats, iterations: int) -> None:
        self._degrees = degrees
        self._iterations = iterations
        self._absent = self._neighbor_absent = 1.0 - chances
        # By hop of arrival: a neighbour's chance that it came then and has not yet picked the vertex looked
        # at.
        self._waiting = [chances]
        self._onward = np.maximum(degrees.out_degrees - degrees.reciprocity, 0.0)
        self._drawn = min(float(degrees.counts @ chances) / max(degrees.num_targets, TINY), 1.0)
        mixing = degrees.mixing
        self._groups = np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups
        self._shares = np.ones((1, 1)) if mixing is None else mixing.shares
        self._ends = degrees.counts * degrees.in_degrees
        self._sources = degrees.counts * degrees.out_degrees
        self._group_ends = np.bincount(self._groups, self._ends, len(self._shares)).astype(np.float64)
        self.present = float(degrees.counts @ chances)

    @property
    def read(self) -> float:
        """Edges into the vertices that are there."""
        return float(self._ends @ (1.0 - self._absent))

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer, the last of `fanouts`, the targets' first; returns its edges."""
        degrees = self._degrees
        taken = degrees.in_degrees if fanouts[-1] < 0 else np.minimum(degrees.in_degrees, fanouts[-1])
        share = taken / np.maximum(degrees.in_degrees, TINY)
        levels, level = _levels(share, self._ends)
        there = self._waiting[0].copy()
        for arrival, waiting in enumerate(self._waiting[1:], 1):
            overlap = degrees.overlap
            there += waiting * distinct_share(overlap, fanouts, arrival, self._drawn)
        below, onward = self._none_from(there, level, len(levels))
        chances, edges = levels, float(degrees.counts @ ((1.0 - self._absent) * taken))
        if self._iterations:
            chances, kept = self._raised(levels, onward)
            edges = self._edges(kept[level], taken)
        missing = 1.0 - chances @ np.diff(below, axis=0)
        missing_onward = 1.0 - chances @ np.diff(onward, axis=0)
        self._waiting = [waiting * (1.0 - share) for waiting in self._waiting]
        self._waiting.append(self._neighbor_absent * (1.0 - missing_onward))
        self._neighbor_absent = self._neighbor_absent * missing_onward
        self._absent = self._absent * missing
        present = float(degrees.counts @ (1.0 - self._absent))
        self.present = max(self.present, min(present, self.present + edges))
        return edges

    def _none_from(self, there: Floats, level: NDArray[np.int64], count: int) -> tuple[Floats, Floats]:
        """[count + 1, C] chances that no out-neighbour of level j or above is there: of all, and of all but
        one.
        """
        size, degrees = len(self._shares), self._degrees
        picks = np.zeros((count + 1, size))
        np.add.at(picks, (level, self._groups), self._ends * there)
        from_level = np.cumsum(picks[::-1], axis=0)[::-1]
        reached = np.minimum(from_level / np.maximum(self._group_ends, TINY) @ self._shares.T, 1.0)
        part, spread = np.ones(1), np.full(1, spread_of(self.present, degrees.num_vertices))
        of_class = reached[:, self._groups]
        return (
            np.stack([missed_chance(degrees.out_degrees, row, part, spread) for row in of_class]),
            np.stack([missed_chance(self._onward, row, part, spread) for row in of_class]),
        )

    def _raised(self, levels: Floats, onward: Floats) -> tuple[Floats, Floats]:
        """[J] the chance of a source whose out-neighbours' largest share is each level; and what part of its
        neighbours a destination of each level keeps.
        """
        none_from = onward @ (self._sources / max(float(self._sources.sum()), TINY))
        # Where a destination of level j is there: the chances of the largest level of its neighbours.
        largest = [
            np.concatenate([none_from[j + 1 : j + 2], np.diff(none_from[j + 1 :])])
            for j in range(len(levels))
        ]
        # Raised once, importances are the largest shares themselves.
        chances = levels
        for _ in range(self._iterations - 1):
            chances = np.maximum.accumulate(np.minimum(chances * _factors(levels, largest, chances), 1.0))
        factors = _factors(levels, largest, chances)
        kept = [np.minimum(1.0, factors[j] * chances[j:]) @ largest[j] for j in range(len(levels))]
        return np.maximum.accumulate(np.minimum(chances * factors, 1.0)), np.array(kept)

    def _edges(self, kept: Floats, taken: Floats) -> float:
        """Edges of a layer: the kept part of every destination's."""
        ins = self._degrees.in_degrees
        per_vertex = np.where(taken < ins, np.minimum(ins * kept, ins), ins)
        return float(self._degrees.counts @ ((1.0 - self._absent) * per_vertex))


def _levels(share: Floats, ends: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """[J] ascending shares, and the number of the one that stands for each class's."""
    known = np.unique(share[share > 0])
    if len(known) > _LEVELS:
        order = np.argsort(share)
        sums = np.cumsum(ends[order])
        at = np.searchsorted(sums, np.linspace(0, sums[-1], _LEVELS + 1)[1:] * (1 - 1e-12))
        known = np.unique(np.append(share[order][np.minimum(at, len(order) - 1)], known[-1]))
        known = known[known > 0]
    if not len(known):
        return np.ones(1), np.zeros(len(share), np.int64)
    level = np.minimum(np.searchsorted(known, share), len(known) - 1)
    weights = np.bincount(level, ends, len(known))
    means = np.bincount(level, ends * share, len(known)) / np.maximum(weights, TINY)
    return np.where(weights > 0, means, known), level


def _factors(levels: Floats, largest: Sequence[Floats], chances: Floats) -> Floats:
    """[J] factors c that solve E[1 / min(1, c chance)] = 1 / share over a destination's neighbours."""
    factors = np.ones(len(levels))
    for j, share in enumerate(levels):
        low, high = 0.0, 1.0 / max(float(chances[j:].min()), TINY)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            mean = largest[j] @ (1.0 / np.minimum(1.0, np.maximum(middle * chances[j:], TINY)))
            low, high = (middle, high) if mean > 1.0 / share else (low, middle)
        factors[j] = high
    return factors
