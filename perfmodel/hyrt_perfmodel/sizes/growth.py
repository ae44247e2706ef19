"""How a sampled mini-batch grows from its targets in a graph of which degrees and mixing are known.

A vertex u is outside V^l unless it is a target or one of its out-neighbours w was in an earlier layer and
picked it. Out-neighbours are taken to be independent of each other given that u was not reached, as in a tree
(the cavity method: Newman, Strogatz, Watts, "Random graphs with arbitrary degree distributions and their
applications", Physical Review E 64, 2001; Karrer and Newman, "Message passing approach for general epidemic
models", Physical Review E 82, 2010), where a layer is a time step. w's own chance of being there leaves out
u, through which it would bring nothing new: a mini-batch does not walk back. Where paths meet more often than
by chance, as in clustered graphs, the picks of vertices that were themselves reached are thinned by the
counted overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.degrees import DegreeDistribution
from hyrt_perfmodel.sizes.overlap import NeighborOverlap

Floats = NDArray[np.float64]

# Instead of 0 where something is divided by.
TINY = 1e-300


class Growth:
    """The vertices of a mini-batch, hop by hop from the targets.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    chances
        [C] each class's chance of being a target.
    """

    def __init__(self, degrees: DegreeDistribution, chances: Floats) -> None:
        self._degrees = degrees
        self._not_target = 1.0 - chances
        self._absent = self._not_target
        self._neighbor_absent = self._not_target
        # By hop of arrival: a neighbour's chance that it came then and has not yet picked the vertex looked
        # at.
        self._waiting = [chances]
        # Without the edge by which the neighbour is looked at, where it is an edge both ways.
        self._onward = np.maximum(degrees.out_degrees - degrees.reciprocity, 0.0)
        self.present = float(degrees.counts @ chances)
        self._drawn = min(self.present / max(degrees.num_targets, TINY), 1.0)
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
        """[C] each class's chance of being there."""
        return 1.0 - self._absent

    def grow(self, fanouts: Sequence[int]) -> float:
        """Add a layer, the last of `fanouts`, the targets' first; returns its edges."""
        degrees = self._degrees
        taken = degrees.in_degrees if fanouts[-1] < 0 else np.minimum(degrees.in_degrees, fanouts[-1])
        edges = float(degrees.counts @ ((1.0 - self._absent) * taken))
        share = taken / np.maximum(degrees.in_degrees, TINY)
        by_targets = self._waiting[0] * share
        by_others = np.zeros_like(share)
        for arrival, waiting in enumerate(self._waiting[1:], 1):
            by_others += waiting * (share * distinct_share(degrees.overlap, fanouts, arrival, self._drawn))
        self._waiting = [waiting * (1.0 - share) for waiting in self._waiting]
        self._from_targets += self._target_shares @ self._means(by_targets, self._target_ends)
        self._from_others += self._shares @ self._means(by_others, self._group_ends)
        reached = self._from_targets + self._from_others
        # What part of the out-edges may be picked at all, and how much the distinct ends narrow it.
        part = (self._from_targets * self._target_part + self._from_others) / np.maximum(reached, TINY)
        spread = self._from_targets * self._target_spread
        spread += self._from_others * spread_of(self.present, degrees.num_vertices)
        spread /= np.maximum(reached, TINY)
        of_class = [values[self._groups] for values in (np.minimum(reached, 1.0), part, spread)]
        before = self._neighbor_absent
        self._neighbor_absent = np.minimum(before, self._not_target * missed_chance(self._onward, *of_class))
        self._absent = np.minimum(
            self._absent, self._not_target * missed_chance(degrees.out_degrees, *of_class)
        )
        self._waiting.append(before - self._neighbor_absent)
        present = float(degrees.counts @ (1.0 - self._absent))
        self.present = max(self.present, min(present, self.present + edges))
        return edges

    def _sums(self, of_class: Floats) -> Floats:
        """[G] sums over the classes of each group."""
        return np.bincount(self._groups, of_class, len(self._shares)).astype(np.float64)

    def _means(self, picks: Floats, ends: Floats) -> Floats:
        """[G] mean of `picks` over `ends`, edges into each group."""
        means: Floats = self._sums(self._ends * picks) / np.maximum(ends, TINY)
        return means


def spread_of(drawn: float, total: float) -> float:
    """1 / m - 1 / n of m drawn among n."""
    return max(1.0 / max(drawn, TINY) - 1.0 / max(total, TINY), 0.0)


def missed_chance(out_degrees: Floats, reached: Floats, part: Floats, spread: Floats) -> Floats:
    """Chance that none of a vertex's out-edges is picked, each being with chance `reached`.

    Only a `part` of the edges can be picked, o of them. Their ends are distinct: if m of n vertices draw, the
    number of those among the o ends is hypergeometric, and a binomial of 1 / (1 / o + 1 / m - 1 / n) trials
    has the same mean and variance. `spread` is 1 / m - 1 / n.
    """
    each = 1.0 / np.maximum(part, TINY) + out_degrees * spread
    chance = np.minimum(reached * each, 1.0 - 1e-15)
    missed: Floats = np.exp(out_degrees / each * np.log1p(-chance))
    return missed


def distinct_share(
    overlap: NeighborOverlap | None, fanouts: Sequence[int], arrival: int, drawn: float
) -> float:
    """Share of the picks of a vertex that came at hop `arrival` which nothing near it has picked too."""
    if overlap is None:
        return 1.0
    sample = overlap.near if arrival == 1 else overlap.far
    return sample.distinct(fanouts[arrival - 1], fanouts[-1], tuple(fanouts[arrival:]), drawn)
