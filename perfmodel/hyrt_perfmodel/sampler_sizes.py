"""Expected mini-batch sizes of layer-wise, LABOR and random-walk samplers, and expected cache hit rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.expected_sizes import (
    TINY,
    BlockSizes,
    Floats,
    Growth,
    check_sampling,
    distinct_correction,
    distinct_share,
    missed_chance,
    target_chances,
)

# Up to this mean, the distribution of the number of edges is modeled; above it, only the mean is used.
_MAX_EXACT_MEAN = 30.0
_HALVINGS = 60


def expected_layerwise_sizes(
    degrees: DegreeDistribution, *, layers: int, size: int, targets: float, among_neighbors: bool
) -> BlockSizes:
    """Return the expected |V^l| and |E^l| of a mini-batch of `layers` blocks, and the sampling work.

    A source is sampled with a probability that follows from its importance. This is a sum over all its
    out-edges (FastGCN), or with `among_neighbors` over those that end in a destination of the step (LADIES),
    whose number is assumed to be Poisson distributed. A source is read if it is sampled and one of its edges
    ends in a destination of the mini-batch. `size` sources are sampled per layer. `targets` is limited to the
    number of possible targets. Raises ValueError if it is negative.
    """
    check_sampling([size], targets)
    counts, ins, outs = degrees.counts, degrees.in_degrees, degrees.out_degrees
    mixing = degrees.mixing
    groups = np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups
    shares = np.ones((1, 1)) if mixing is None else mixing.shares
    ends = counts * ins

    def end_means(values: Floats) -> Floats:
        """Return the mean of `values` over the ends of each class's out-edges: [C]."""
        sums, total = (np.bincount(groups, weights, len(shares)) for weights in (ends * values, ends))
        means: Floats = (shares @ (sums / np.maximum(total, TINY)))[groups]
        return means

    present = target_chances(degrees, targets)
    vertices, edges, read = [float(counts @ present)], [], 0.0
    for _ in range(layers):
        read += float(ends @ present)
        reached = np.minimum(end_means(present), 1.0)
        # Compute the contribution of a counted out-edge to the importance of its source.
        if among_neighbors:
            weight = end_means(present / (ins + 1.0)) / np.maximum(reached, TINY) / (ins + 1.0)
            number, chance = _poisson(outs * reached)
        else:
            weight = end_means(1.0 / (ins + 1.0)) / (ins + 1.0)
            number, chance = outs[:, None], np.ones((len(counts), 1))
        sampled = _sampling_chances(number * weight[:, None], counts[:, None] * chance, size)
        if among_neighbors:
            chosen = (chance * sampled).sum(1)
            edges.append(float(counts @ (chance * sampled * number).sum(1)))
        else:
            chosen = sampled[:, 0] * (1.0 - np.exp(outs * np.log1p(-np.minimum(reached, 1.0 - 1e-15))))
            edges.append(float(counts @ (sampled[:, 0] * outs * reached)))
        present = 1.0 - (1.0 - present) * (1.0 - chosen)
        vertices.append(float(counts @ present))
    return BlockSizes(
        vertices=tuple(vertices[::-1]),
        edges=tuple(edges[::-1]),
        walk_steps=sum(edges),
        scanned_edges=read * (3 if among_neighbors else 2),
    )


def _poisson(means: Floats) -> tuple[Floats, Floats]:
    """Return numbers and their probabilities, [C, K] each, for Poisson distributions with these means."""
    max_number = int(_MAX_EXACT_MEAN + 8 * np.sqrt(_MAX_EXACT_MEAN))
    number = np.broadcast_to(np.arange(max_number + 1.0), (len(means), max_number + 1)).copy()
    small = np.minimum(means, _MAX_EXACT_MEAN)[:, None]
    factors = np.concatenate([np.exp(-small), small / np.arange(1.0, max_number + 1.0)[None, :]], axis=1)
    chance = np.cumprod(factors, axis=1)
    is_large = means > _MAX_EXACT_MEAN
    number[is_large], chance[is_large] = means[is_large, None], 0.0
    chance[is_large, 0] = 1.0
    return number, chance


def _sampling_chances(importance: Floats, counts: Floats, size: float) -> Floats:
    """Return probabilities in proportion to importance, at most 1, whose sum weighted by `counts` is `size`.

    If `size` exceeds the number of candidates, all probabilities are 1.
    """
    is_candidate = importance > 0
    if float(counts[is_candidate].sum()) <= size:
        return is_candidate.astype(np.float64)
    low, high = 0.0, 1.0 / float(importance[is_candidate].min())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        over = float((counts * np.minimum(1.0, middle * importance)).sum()) > size
        low, high = (low, middle) if over else (middle, high)
    return np.minimum(1.0, high * importance)


# Maximum number of distinct shares that are distinguished.
_MAX_LEVELS = 48
_FACTOR_HALVINGS = 40


def expected_labor_sizes(
    degrees: DegreeDistribution, fanouts: Sequence[int], targets: float, *, iterations: int = 0
) -> BlockSizes:
    """Return the expected |V^l| and |E^l| of a mini-batch of LABOR-i with i = `iterations`.

    Other parameters and the errors are those of `expected_sizes`.
    """
    check_sampling(fanouts, targets)
    growth = LaborGrowth(degrees, target_chances(degrees, targets), iterations)
    vertices, edges, read = [growth.present], [], 0.0
    for hop in range(len(fanouts)):
        read += growth.num_in_edges
        edges.append(growth.grow(fanouts[: hop + 1]))
        vertices.append(growth.present)
    return BlockSizes(
        vertices=tuple(vertices[::-1]),
        edges=tuple(edges[::-1]),
        walk_steps=sum(edges),
        scanned_edges=read * (1 + 4 * iterations),
    )


class LaborGrowth:
    """Expected vertices of a LABOR mini-batch, hop by hop, like `hyrt_perfmodel.expected_sizes.Growth`.

    A source u has one random number per layer, and a destination w of in-degree d samples it if the number is
    below w's share, fan-out / d. So u is a source with the probability that its number is below the largest
    share of its out-neighbors that are destinations, whereas neighbor sampling would use a new number for
    each out-neighbor. The largest share has a distribution over the graph's degrees; `Growth` describes the
    presence of out-neighbors. LABOR-i multiplies the largest share by factors that are in turn functions of
    this share: u's factor is that of the out-neighbor with the largest share, and the factor of a share
    solves the paper's constraint on the variance, over the distribution of the largest shares of its
    neighbors (Balin and Catalyurek, "Layer-Neighbor Sampling", 2023).

    `chances` [C] is the probability that a vertex of each class is a target. `iterations` is the i of
    LABOR-i.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats, iterations: int) -> None:
        self._degrees = degrees
        self._iterations = iterations
        self._absent = self._neighbor_absent = 1.0 - chances
        # Probability, by hop of arrival, that a neighbor arrived at this hop and has not yet sampled the
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
    def num_in_edges(self) -> float:
        """Number of edges into the present vertices."""
        return float(self._ends @ (1.0 - self._absent))

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer, and return its number of edges.

        `fanouts` contains the fan-outs of all layers up to the added one, starting with the targets' layer.
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
        """Return the probability that no out-neighbor of level j or above is present: [count + 1, C].

        The first array is for all out-neighbors, the second for all but one.
        """
        size, degrees = len(self._shares), self._degrees
        picks = np.zeros((count + 1, size))
        np.add.at(picks, (level, self._groups), self._ends * present_chances)
        from_level = np.cumsum(picks[::-1], axis=0)[::-1]
        reached = np.minimum(from_level / np.maximum(self._group_ends, TINY) @ self._shares.T, 1.0)
        part, spread = np.ones(1), np.full(1, distinct_correction(self.present, degrees.num_vertices))
        class_reached = reached[:, self._groups]
        return (
            np.stack([missed_chance(degrees.out_degrees, row, part, spread) for row in class_reached]),
            np.stack([missed_chance(self._onward, row, part, spread) for row in class_reached]),
        )

    def _iterate_importance(self, levels: Floats, onward: Floats) -> tuple[Floats, Floats]:
        """Return the source probability for each largest share, and the retained fractions: [J] each.

        The largest share is that among the out-neighbors. The second array is the fraction of its neighbors
        that a destination of each level retains.
        """
        none_from = onward @ (self._sources / max(float(self._sources.sum()), TINY))
        # Distribution of the largest levels of the neighbors of a destination of level j.
        largest = [
            np.concatenate([none_from[j + 1 : j + 2], np.diff(none_from[j + 1 :])])
            for j in range(len(levels))
        ]
        # After one iteration, the importances are the largest shares themselves.
        chances = levels
        for _ in range(self._iterations - 1):
            chances = np.maximum.accumulate(np.minimum(chances * _factors(levels, largest, chances), 1.0))
        factors = _factors(levels, largest, chances)
        retained = [np.minimum(1.0, factors[j] * chances[j:]) @ largest[j] for j in range(len(levels))]
        return np.maximum.accumulate(np.minimum(chances * factors, 1.0)), np.array(retained)

    def _edges(self, retained: Floats, sampled: Floats) -> float:
        """Return the edges of a layer, given the retained fractions of the destinations' in-edges."""
        ins = self._degrees.in_degrees
        per_vertex = np.where(sampled < ins, np.minimum(ins * retained, ins), ins)
        return float(self._degrees.counts @ ((1.0 - self._absent) * per_vertex))


def _share_levels(share: Floats, ends: Floats) -> tuple[Floats, NDArray[np.int64]]:
    """Return ascending shares [J], and the index of the share that represents each class."""
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
    """Return factors c, [J], with E[1 / min(1, c chance)] = 1 / share over a destination's neighbors."""
    factors = np.ones(len(levels))
    for j, share in enumerate(levels):
        low, high = 0.0, 1.0 / max(float(chances[j:].min()), TINY)
        for _ in range(_FACTOR_HALVINGS):
            middle = (low + high) / 2
            mean = largest[j] @ (1.0 / np.minimum(1.0, np.maximum(middle * chances[j:], TINY)))
            low, high = (middle, high) if mean > 1.0 / share else (low, middle)
        factors[j] = high
    return factors


# Lower bound of divisors.
_TINY = 1e-300


def expected_subgraphs(
    degrees: DegreeDistribution, *, layers: int, roots: int, walk_length: int, subgraphs: float
) -> BlockSizes:
    """Return the expected |V^l| and |E^l| of a mini-batch of `subgraphs` subgraphs, and the sampling work.

    A walk begins at a target and continues at the source of a uniformly sampled incoming edge. Its position
    after k steps has a known distribution over the degree classes, so the probability q that it visits a
    given vertex is the sum over the steps, less the steps that return along the previous edge. A subgraph of
    R walks contains the vertex with probability 1 - (1 - q)^R, and both ends of an edge with 1 - (1 - q_u)^R
    - (1 - q_v)^R + (1 - q_u - q_v + q_uv)^R, where q_uv is the probability that a walk visits both, mostly by
    following the edge. If edges do not depend on degree, the sum over all edges is a product of two sums over
    their ends.

    Each subgraph has `roots` walks of `walk_length` steps. All `layers` blocks are the subgraphs with their
    inner edges, except that the last has only targets as destinations.
    """
    # Distinguish targets from the other vertices of a class, because walks begin at targets.
    targets = degrees.counts if degrees.target_counts is None else degrees.target_counts
    counts = np.concatenate([targets, np.maximum(degrees.counts - targets, 0.0)])
    is_target = np.arange(len(counts)) < len(targets)
    ins, outs = np.tile(degrees.in_degrees, 2), np.tile(degrees.out_degrees, 2)
    mixing = degrees.mixing
    groups = np.tile(np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups, 2)
    shares = np.ones((1, 1)) if mixing is None else mixing.shares

    def by_group(values: Floats) -> Floats:
        return np.bincount(groups, values, len(shares)).astype(np.float64)

    leaving, entering = counts * outs, counts * ins
    # [G, G] edges from group to group, which a step follows backward.
    edges = by_group(leaving)[:, None] * shares
    step_shares = edges / np.maximum(edges.sum(0), _TINY)
    group_share = leaving / np.maximum(by_group(leaving), _TINY)[groups]

    position: Floats = np.where(is_target, counts, 0.0) / max(float(targets.sum()), _TINY)
    visited, followed, not_returning = position / np.maximum(counts, _TINY), np.zeros(len(counts)), 1.0
    for _ in range(walk_length):
        followed = followed + position / np.maximum(entering, _TINY) * (ins > 0)
        staying = np.where(ins > 0, 0.0, position)
        position = group_share * (step_shares @ by_group(position - staying))[groups]
        visited = visited + not_returning * position / np.maximum(counts, _TINY)
        # The next step may return to the previous vertex of the walk.
        not_returning = 1.0 - degrees.reciprocity * float(position @ (1.0 / np.maximum(ins, 1.0)))
        position = position + staying
    exponents = roots * np.log1p(-np.minimum(visited, 1.0 - 1e-15))
    missed = np.exp(exponents)
    source = np.exp(np.minimum(exponents + roots * degrees.reciprocity * followed, 0.0))
    destination = np.exp(np.minimum(exponents + roots * followed, 0.0))

    def inside(ends: Floats) -> float:
        """Return the number of edges with both ends in a subgraph, among `ends` in-edges of each class."""
        out_share, in_sums = group_share, by_group(ends)
        group_edges = edges * (in_sums / np.maximum(edges.sum(0), _TINY))
        per_source = by_group(out_share * missed)[:, None], by_group(out_share * source)[:, None]
        in_share = ends / np.maximum(in_sums, _TINY)[groups]
        per_end = by_group(in_share * missed), by_group(in_share * destination)
        both = 1.0 - per_source[0] - per_end[0] + np.minimum(per_source[1] * per_end[1], 1.0)
        return float((group_edges * np.clip(both, 0.0, 1.0)).sum())

    present = counts * (1.0 - missed)
    vertices, in_targets = float(present.sum()), float(present[is_target].sum())
    inner, into_targets = inside(entering), inside(np.where(is_target, entering, 0.0))
    return BlockSizes(
        vertices=(*[subgraphs * vertices] * layers, subgraphs * in_targets),
        edges=(*[subgraphs * inner] * (layers - 1), subgraphs * into_targets),
        walk_steps=subgraphs * roots * (walk_length + 1),
        scanned_edges=subgraphs * float(present @ ins),
    )


_POINTS = 1000


@dataclass(frozen=True, slots=True, eq=False)
class CacheHitCurve:
    """Hit rates of caches that hold the most frequently read rows."""

    fractions: Floats
    """Cached fractions of all rows, ascending from 0: [n]."""
    rates: Floats
    """Fraction of the reads that hit the cached rows, for each cached fraction: [n]."""

    @classmethod
    def from_classes(cls, counts: Floats, visits: Floats, num_vertices: float) -> CacheHitCurve:
        """Create a curve from classes of vertices.

        `counts` [C] contains the number of vertices of each class, and `visits` [C] the number of reads per
        row in any period. `num_vertices` includes vertices without a class.
        """
        order = np.argsort(-visits, kind="stable")
        return cls.from_ranking(counts[order], visits[order], num_vertices)

    @classmethod
    def from_ranking(cls, counts: Floats, visits: Floats, num_vertices: float) -> CacheHitCurve:
        """Create a curve for caches that hold the first classes in the given order."""
        rows = np.concatenate([[0.0], np.cumsum(counts)]) / max(num_vertices, 1.0)
        reads = np.concatenate([[0.0], np.cumsum(counts * visits)])
        rates = reads / reads[-1] if reads[-1] else np.zeros(len(reads))
        if len(rows) > _POINTS:
            indices = np.unique(np.geomspace(1, len(rows) - 1, _POINTS).astype(np.int64))
            indices = np.concatenate([[0], indices])
            rows, rates = rows[indices], rates[indices]
        return cls(rows, rates)

    def __call__(self, part: float) -> float:
        """Return the hit rate if a fraction `part` of all rows is cached."""
        return float(np.interp(part, self.fractions, self.rates))


def expected_hit_rates(degrees: DegreeDistribution, fanouts: Sequence[int], targets: float) -> CacheHitCurve:
    """Estimate the hit rates of neighbor sampling from degrees alone: equal degrees have equal reads.

    The parameters are those of `expected_sizes`.
    """
    check_sampling(fanouts, targets)
    growth = Growth(degrees, target_chances(degrees, targets))
    for hop in range(len(fanouts)):
        growth.grow(fanouts[: hop + 1])
    return CacheHitCurve.from_classes(degrees.counts, growth.chances, degrees.num_vertices)
