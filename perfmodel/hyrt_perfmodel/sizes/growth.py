"""Growth of a sampled mini-batch from its targets, in a graph of known degrees and mixing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.overlap import NeighborOverlap

Floats = NDArray[np.float64]

# Lower bound of divisors.
TINY = 1e-300


class Growth:
    """Vertices of a mini-batch, hop by hop from the targets.

    A vertex u is outside V^l unless it is a target or one of its out-neighbors w was in an earlier layer and
    sampled it. Out-neighbors are assumed independent given that u was not reached, as in a tree (the cavity
    method: Newman, Strogatz, Watts, "Random graphs with arbitrary degree distributions and their
    applications", Physical Review E 64, 2001; Karrer and Newman, "Message passing approach for general
    epidemic models", Physical Review E 82, 2010), with layers as time steps. The probability that w is
    present excludes paths through u, since w would not add u again. If paths meet more often than by chance,
    as in clustered graphs, the samples of vertices that were themselves reached are reduced by the counted
    overlap.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    chances
        [C] probability of a vertex of each class to be a target.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats) -> None:
        self._degrees = degrees
        self._not_target = 1.0 - chances
        self._absent = self._not_target
        self._neighbor_absent = self._not_target
        # Per hop of arrival: probability that a neighbor arrived at that hop and has not yet sampled the
        # vertex.
        self._waiting = [chances]
        # Out-degree of a neighbor without the edge back to the vertex.
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
            self._target_spread = spread_of(self.present, degrees.num_vertices)
        else:
            self._target_shares = counted
            self._target_ends = self._sums(degrees.target_counts * degrees.in_degrees)
            self._target_part = counted.sum(1)
            self._target_spread = spread_of(self.present, degrees.num_targets)

    @property
    def chances(self) -> Floats:
        """[C] probability of a vertex of each class to be present."""
        return 1.0 - self._absent

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer and return its edges.

        `fanouts` are the fan-outs of all layers up to the added one, the targets' layer first.
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
        # Fraction of the out-edges that can be sampled, and the correction for their distinct ends.
        fraction = (self._from_targets * self._target_part + self._from_others) / np.maximum(reached, TINY)
        correction = self._from_targets * self._target_spread
        correction += self._from_others * spread_of(self.present, degrees.num_vertices)
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
        """Return [G] sums over the classes of each group."""
        return np.bincount(self._groups, of_class, len(self._shares)).astype(np.float64)

    def _means(self, picks: Floats, ends: Floats) -> Floats:
        """Return [G] means of `picks`, weighted by the edges into each class; `ends` are the edges into each
        group.
        """
        means: Floats = self._sums(self._ends * picks) / np.maximum(ends, TINY)
        return means


def spread_of(drawn: float, total: float) -> float:
    """Return 1 / m - 1 / n for m of n vertices."""
    return max(1.0 / max(drawn, TINY) - 1.0 / max(total, TINY), 0.0)


def missed_chance(out_degrees: Floats, reached: Floats, part: Floats, spread: Floats) -> Floats:
    """Return the probability that none of a vertex's out-edges is sampled, each with probability `reached`.

    Only a fraction `part` of the edges can be sampled, o of them. Their ends are distinct: if m of n vertices
    sample, the number of those among the o ends is hypergeometric, and a binomial distribution of 1 / (1 / o
    + 1 / m - 1 / n) trials has the same mean and variance. `spread` is 1 / m - 1 / n.
    """
    trials_inverse = 1.0 / np.maximum(part, TINY) + out_degrees * spread
    chance = np.minimum(reached * trials_inverse, 1.0 - 1e-15)
    missed: Floats = np.exp(out_degrees / trials_inverse * np.log1p(-chance))
    return missed


def distinct_share(
    overlap: NeighborOverlap | None, fanouts: Sequence[int], arrival: int, drawn: float
) -> float:
    """Return the share of samples that reach a new vertex, for a vertex that arrived at hop `arrival`."""
    if overlap is None:
        return 1.0
    sample = overlap.near if arrival == 1 else overlap.far
    return sample.distinct(fanouts[arrival - 1], fanouts[-1], tuple(fanouts[arrival:]), drawn)
