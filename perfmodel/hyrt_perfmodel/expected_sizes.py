"""Expected sizes of sampled mini-batches, and interpolation between measured sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.degrees import DegreeDistribution, NeighborOverlap

Floats = NDArray[np.float64]

# Lower bound of divisors.
TINY = 1e-300


class Growth:
    """Expected vertices of a mini-batch, which grows from the targets hop by hop.

    A vertex u is in V^l if it is a target, or if one of its out-neighbors w was in an earlier layer and
    sampled it. Out-neighbors are assumed independent, given that u was not reached, as in a tree (the cavity
    method: Newman, Strogatz, Watts, "Random graphs with arbitrary degree distributions and their
    applications", Physical Review E 64, 2001; Karrer and Newman, "Message passing approach for general
    epidemic models", Physical Review E 82, 2010), with layers as time steps. The probability that w is
    present excludes paths through u, because w would not add u again. If paths meet more often than by
    chance, as in clustered graphs, the samples of reached vertices are reduced by the counted overlap.

    `chances` [C] is the probability of a vertex of each class to be a target.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats) -> None:
        self._degrees = degrees
        self._not_target = 1.0 - chances
        self._absent = self._not_target
        self._neighbor_absent = self._not_target
        # Per hop, the probability that a neighbor was first reached at that hop and has not sampled the
        # vertex since.
        self._waiting = [chances]
        # Number of a neighbor's out-edges other than the one back to the vertex.
        self._onward = np.maximum(degrees.out_degrees - degrees.reciprocity, 0.0)
        self.present = float(degrees.counts @ chances)
        self._target_chance = min(self.present / max(degrees.num_targets, TINY), 1.0)
        mixing = degrees.mixing
        self._groups = np.zeros(degrees.num_classes, np.int64) if mixing is None else mixing.groups
        self._shares = np.ones((1, 1)) if mixing is None else mixing.shares
        self._ends = degrees.counts * degrees.in_degrees
        self._group_ends = self._sums(self._ends)
        self._from_targets = np.zeros(len(self._shares))
        self._from_others = np.zeros(len(self._shares))
        counted = None if mixing is None else mixing.target_shares
        if counted is None or degrees.target_counts is None:
            self._target_shares, self._target_ends = self._shares, self._group_ends
            self._target_part = np.ones(len(self._shares))
            self._target_spread = distinct_correction(self.present, degrees.num_vertices)
        else:
            self._target_shares = counted
            self._target_ends = self._sums(degrees.target_counts * degrees.in_degrees)
            self._target_part = counted.sum(1)
            self._target_spread = distinct_correction(self.present, degrees.num_targets)

    @property
    def chances(self) -> Floats:
        """Probability that a vertex of each class is present: [C]."""
        return 1.0 - self._absent

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer, and return its number of edges.

        `fanouts` contains the fan-outs of all layers up to the added one, starting with the targets' layer.
        """
        degrees = self._degrees
        sampled = degrees.in_degrees if fanouts[-1] < 0 else np.minimum(degrees.in_degrees, fanouts[-1])
        edges = float(degrees.counts @ ((1.0 - self._absent) * sampled))
        share = sampled / np.maximum(degrees.in_degrees, TINY)
        target_picks = self._waiting[0] * share
        other_picks = np.zeros_like(share)
        for arrival, waiting in enumerate(self._waiting[1:], 1):
            other_picks += waiting * (
                share * distinct_share(degrees.overlap, fanouts, arrival, self._target_chance)
            )
        self._waiting = [waiting * (1.0 - share) for waiting in self._waiting]
        self._from_targets += self._target_shares @ self._means(target_picks, self._target_ends)
        self._from_others += self._shares @ self._means(other_picks, self._group_ends)
        reached = self._from_targets + self._from_others
        # Fraction of the out-edges that may be sampled, and a correction because their ends are distinct.
        fraction = (self._from_targets * self._target_part + self._from_others) / np.maximum(reached, TINY)
        correction = self._from_targets * self._target_spread
        correction += self._from_others * distinct_correction(self.present, degrees.num_vertices)
        correction /= np.maximum(reached, TINY)
        class_arguments = [
            values[self._groups] for values in (np.minimum(reached, 1.0), fraction, correction)
        ]
        absent_before = self._neighbor_absent
        self._neighbor_absent = np.minimum(
            absent_before, self._not_target * missed_chance(self._onward, *class_arguments)
        )
        self._absent = np.minimum(
            self._absent, self._not_target * missed_chance(degrees.out_degrees, *class_arguments)
        )
        self._waiting.append(absent_before - self._neighbor_absent)
        present = float(degrees.counts @ (1.0 - self._absent))
        self.present = max(self.present, min(present, self.present + edges))
        return edges

    def _sums(self, of_class: Floats) -> Floats:
        """Return the sums over the classes of each group: [G]."""
        return np.bincount(self._groups, of_class, len(self._shares)).astype(np.float64)

    def _means(self, picks: Floats, ends: Floats) -> Floats:
        """Return the means of `picks` in each group, weighted by the edges into each class: [G].

        `ends` contains the numbers of edges into each group.
        """
        means: Floats = self._sums(self._ends * picks) / np.maximum(ends, TINY)
        return means


def distinct_correction(drawn: float, total: float) -> float:
    """Return 1 / m - 1 / n for m = `drawn` of n = `total` vertices."""
    return max(1.0 / max(drawn, TINY) - 1.0 / max(total, TINY), 0.0)


def missed_chance(out_degrees: Floats, reached: Floats, fraction: Floats, correction: Floats) -> Floats:
    """Return the probability that none of a vertex's out-edges is sampled; each is with chance `reached`.

    Only a fraction `fraction` of the edges, o edges, can be sampled. The ends of these edges are distinct: if
    m of n vertices sample, the number of sampling vertices among the o ends is hypergeometric. A binomial
    distribution of 1 / (1 / o + 1 / m - 1 / n) trials has the same mean and variance. `correction` is 1 / m -
    1 / n.
    """
    trials_inverse = 1.0 / np.maximum(fraction, TINY) + out_degrees * correction
    chance = np.minimum(reached * trials_inverse, 1.0 - 1e-15)
    missed: Floats = np.exp(out_degrees / trials_inverse * np.log1p(-chance))
    return missed


def distinct_share(
    overlap: NeighborOverlap | None, fanouts: Sequence[int], arrival: int, drawn: float
) -> float:
    """Return the share of samples that reach new vertices, for a vertex that arrived at hop `arrival`."""
    if overlap is None:
        return 1.0
    sample = overlap.near if arrival == 1 else overlap.far
    return sample.distinct_share(fanouts[arrival - 1], fanouts[-1], tuple(fanouts[arrival:]), drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSizes:
    """Numbers of vertices and edges of one mini-batch."""

    vertices: tuple[float, ...]
    """|V^0| .. |V^L|: numbers of vertices, targets last."""
    edges: tuple[float, ...]
    """|E^1| .. |E^L|: numbers of edges."""
    walk_steps: float = 0.0
    scanned_edges: float = 0.0
    """Work of sampling random-walk subgraphs, together with `walk_steps`; see `Workload`."""

    def __post_init__(self) -> None:
        if len(self.vertices) != len(self.edges) + 1:
            raise ValueError(
                f"sizes: there are {len(self.vertices)} vertex counts and {len(self.edges)} edge counts, "
                "expected one more vertex count than edge counts"
            )
        if not min(self.row) >= 0:
            raise ValueError(
                f"sizes: every size must be a number of at least 0, got {self.vertices} and {self.edges}"
            )

    @property
    def row(self) -> tuple[float, ...]:
        """All sizes as one sequence; `from_row` is the inverse."""
        return (*self.vertices, *self.edges, self.walk_steps, self.scanned_edges)

    @classmethod
    def from_row(cls, row: Sequence[float]) -> BlockSizes:
        """Create sizes from one sequence in the order of the property `row`."""
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
    """Return the expected |V^l| and |E^l| of a mini-batch.

    `fanouts` contains the number of neighbors per vertex in each layer (-1 for all), starting with the
    targets' layer. `targets` is limited to the number of possible targets. Raises ValueError if a fan-out is
    neither -1 nor above 0, or `targets` is negative.
    """
    check_sampling(fanouts, targets)
    chances = target_chances(degrees, targets)
    growth = Growth(degrees, chances)
    vertices, edges = [growth.present], []
    for hop in range(len(fanouts)):
        edges.append(growth.grow(fanouts[: hop + 1]))
        vertices.append(growth.present)
    return BlockSizes(vertices=tuple(vertices[::-1]), edges=tuple(edges[::-1]))


def check_sampling(fanouts: Sequence[int], targets: float) -> None:
    """Raise ValueError if a fan-out is neither -1 nor above 0, or `targets` is negative."""
    if not fanouts or any(fanout != -1 and fanout < 1 for fanout in fanouts):
        raise ValueError(
            f"sizes: the fan-outs are {list(fanouts)}: use one per layer, either above 0 or -1 for all "
            "neighbours"
        )
    if not targets >= 0:
        raise ValueError(f"sizes: targets must be a number of at least 0, got {targets!r}")


def target_chances(degrees: DegreeDistribution, targets: float) -> Floats:
    """Return the probability that a vertex of each class is a target: [C]."""
    weights = degrees.counts if degrees.target_counts is None else degrees.target_counts
    total = float(weights.sum())
    if total == 0:
        return np.zeros(degrees.num_classes)
    chances: Floats = weights / np.maximum(degrees.counts, 1e-300) * (min(targets, total) / total)
    return np.minimum(chances, 1.0)


def expected_bounded_subgraphs(
    degrees: DegreeDistribution, *, layers: int, hops: int, fanout: int, targets: float
) -> BlockSizes:
    """Return the expected |V^l| and |E^l| of a mini-batch of `layers` blocks, and the sampling work.

    Each subgraph grows from its target like a mini-batch with one target and `hops` layers, in which each
    vertex adds `fanout` neighbors. The edges by which it grew are known, and so are their reverses if they
    exist. Other edges between its vertices exist by chance, because edges are assumed to depend only on
    degrees. Raises ValueError if a number is negative.
    """
    check_sampling([fanout], targets)
    growth = Growth(degrees, target_chances(degrees, 1.0))
    for hop in range(hops):
        growth.grow([fanout] * (hop + 1))
    counts, chances = degrees.counts, growth.chances
    members = float(counts @ chances)
    into, out_of = (
        float(counts @ (chances * class_degrees))
        for class_degrees in (degrees.in_degrees, degrees.out_degrees)
    )
    grown = max(members - min(1.0, degrees.num_targets), 0.0) * (1.0 + degrees.reciprocity)
    by_chance = max(into - grown, 0.0) * max(out_of - grown, 0.0) / max(degrees.num_edges, 1)
    inner = min(grown + by_chance, into)
    # Count the edges into the target: those by which its neighbors were added, and others by chance.
    chosen = target_chances(degrees, 1.0)
    sampled = degrees.in_degrees.clip(max=fanout)
    others = (degrees.in_degrees - sampled) * min(out_of / max(degrees.num_edges, 1), 1.0)
    target_edges = float(counts @ (chosen * (sampled + others)))
    return BlockSizes(
        vertices=(*[targets * members] * layers, targets),
        edges=(*[targets * inner] * (layers - 1), targets * min(target_edges, inner)),
        walk_steps=targets * members,
        scanned_edges=2 * targets * into,
    )


# Replacement for zero sizes (layers without edges), which have no logarithm.
_ZERO = 1e-9


class SizeCurves:
    """Mini-batch sizes that are known for some numbers of targets, and interpolated for others.

    The logarithms of the sizes are monotone cubics in the logarithm of the targets (Fritsch and Butland, "A
    method for constructing local monotone piecewise cubic interpolants", SIAM Journal on Scientific and
    Statistical Computing 5, 1984): they follow the bend of saturating sizes and never decrease. Below the
    smallest known number of targets, sizes are proportional to the targets, because small mini-batches do not
    overlap. Above the largest, they continue with the last slope, at most in proportion to the targets.

    `measured` maps numbers of targets (above 0) to sequences of sizes, which must have the same length.
    Raises ValueError if it is empty.
    """

    def __init__(self, measured: Mapping[float, Sequence[float]]) -> None:
        if not measured:
            raise ValueError("sampled sizes: there are no measurements: sample at least one mini-batch")
        if not min(measured) > 0:
            raise ValueError(f"sampled sizes: numbers of targets must be above 0, got {min(measured)!r}")
        targets = sorted(measured)
        rows = [measured[count] for count in targets]
        table = np.maximum.accumulate(np.array(rows, np.float64), axis=0)
        self._targets = np.log(np.array(targets, np.float64))
        self._sizes = np.log(np.maximum(table, _ZERO))
        self._slopes = _slopes(self._targets, self._sizes)

    def at(self, targets: float) -> list[float]:
        """Return the sizes for a number of targets; raise ValueError if it is negative."""
        if not targets >= 0:
            raise ValueError(f"sampled sizes: targets must be a number of at least 0, got {targets!r}")
        sizes = np.zeros(self._sizes.shape[1])
        if targets > 0:
            sizes = np.exp(self._logarithms(float(np.log(targets))))
            sizes[sizes <= 2 * _ZERO] = 0.0
        values: list[float] = sizes.tolist()
        return values

    def _logarithms(self, targets: float) -> NDArray[np.float64]:
        positions = self._targets
        right = int(np.searchsorted(positions, targets))
        if right == 0 or len(positions) == 1:
            proportional: NDArray[np.float64] = self._sizes[0] + (targets - positions[0])
            return proportional
        if right == len(positions):
            # Limit the growth to proportionality: a steeper slope between two measurements is noise.
            slopes = np.minimum(self._slopes[-1], 1.0)
            extrapolated: NDArray[np.float64] = self._sizes[-1] + slopes * (targets - positions[-1])
            return extrapolated
        width = positions[right] - positions[right - 1]
        t = (targets - positions[right - 1]) / width
        rise = self._sizes[right] - self._sizes[right - 1]
        first, last = self._slopes[right - 1] * width, self._slopes[right] * width
        interpolated: NDArray[np.float64] = self._sizes[right - 1] + t * (
            first + t * (3 * rise - 2 * first - last + t * (first + last - 2 * rise))
        )
        return interpolated


class SampledSizes:
    """Block sizes that were measured for some numbers of targets (above 0), interpolated by `SizeCurves`.

    Raises ValueError if `measured` is empty, or the numbers of layers differ.
    """

    def __init__(self, measured: Mapping[float, BlockSizes]) -> None:
        layers = {len(sizes.edges) for sizes in measured.values()}
        if len(layers) > 1:
            raise ValueError(
                f"sampled sizes: the mini-batches have {sorted(layers)} layers: use mini-batches of one model"
            )
        self._curves = SizeCurves({count: sizes.row for count, sizes in measured.items()})

    def at(self, targets: float) -> BlockSizes:
        """Return the sizes of a mini-batch with a number of targets; raise ValueError if it is negative."""
        return BlockSizes.from_row(self._curves.at(targets))


def _slopes(positions: NDArray[np.float64], sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the slopes at the n known positions, limited so that the cubics do not overshoot: [n, sizes]."""
    if len(positions) == 1:
        return np.ones_like(sizes)
    secants = np.diff(sizes, axis=0) / np.diff(positions)[:, None]
    inside = 2 * secants[1:] * secants[:-1] / np.maximum(secants[1:] + secants[:-1], 1e-300)
    return np.concatenate([secants[:1], inside, secants[-1:]])
