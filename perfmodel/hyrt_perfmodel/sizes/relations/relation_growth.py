"""Expected sizes of mini-batches of a typed graph, without sampling: from degrees and fan-outs by relation.

As in `hyrt_perfmodel.sizes.growth`, a vertex is outside a mini-batch unless it is a target, or one of the
ends of its edges was there and picked it, and ends are independent of each other, as in a tree. Degrees in a
relation scatter around their means as in a random graph: an edge's end then has as many further edges as any
vertex of its class, so that the chance that it was reached by another way needs no correction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.sizes.growth import TINY, spread_of
from hyrt_perfmodel.sizes.relations.relation_degrees import RelationDegrees, TypedDegrees
from hyrt_perfmodel.sizes.relations.relation_sizes import RelationSizes

Floats = NDArray[np.float64]

# Above this mean, three points stand for the scatter of degrees (Gauss-Hermite); below, all that matter do.
_MANY = 40.0
_POINTS = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))
_POINT_SHARES = (1 / 6, 2 / 3, 1 / 6)


def expected_relation_sizes(
    degrees: TypedDegrees, fanouts: Sequence[Sequence[int]], targets: float
) -> RelationSizes:
    """Expected sizes of a mini-batch, by type and relation.

    Parameters
    ----------
    degrees
        Degrees of the graph.
    fanouts
        [L][R] neighbours of each vertex along each relation, the targets' layer first; -1 takes all, and 0
        none.
    targets
        Targets of the mini-batch, any number of at least 0; more than there are count as all of them.
    """
    growth = _RelationGrowth(degrees, targets)
    vertices, runs, edges = [growth.present], [], []
    for hop in range(len(fanouts)):
        of_runs, of_edges = growth.grow(fanouts[: hop + 1])
        runs.append(of_runs)
        edges.append(of_edges)
        vertices.append(growth.present)
    return RelationSizes(vertices=tuple(vertices[::-1]), runs=tuple(runs[::-1]), edges=tuple(edges[::-1]))


class _RelationGrowth:
    """The vertices of a mini-batch, hop by hop from the targets."""

    def __init__(self, degrees: TypedDegrees, targets: float) -> None:
        self._degrees = degrees
        size = float(degrees.counts[degrees.target].sum())
        chance = min(targets, degrees.num_targets) / max(size, TINY)
        # [T] of [C_t]: the chance of not being there; and by hop of arrival, of having come then.
        self._not_target = [
            np.full(len(counts), 1.0 - chance * (number == degrees.target))
            for number, counts in enumerate(degrees.counts)
        ]
        self._absent = self._not_target
        self._arrived = [[1.0 - each for each in self._not_target]]
        self._scatter = [_Scatter(each) for each in degrees.relations]
        # Each relation's chance that one of its edges has been picked.
        self._picked = [0.0] * len(degrees.relations)

    @property
    def present(self) -> tuple[float, ...]:
        """[T] the vertices that are there."""
        pairs = zip(self._degrees.counts, self._absent, strict=True)
        return tuple(float(counts @ (1.0 - absent)) for counts, absent in pairs)

    def grow(self, fanouts: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Add a layer, the last of `fanouts`; returns its runs and edges, [R] each."""
        degrees, present = self._degrees, self.present
        runs, edges, reached = [], [], []
        # The logarithm of each class's chance that nobody picked it.
        missed = [np.zeros(len(counts)) for counts in degrees.counts]
        for number, relation in enumerate(degrees.relations):
            counts = degrees.counts[relation.destination]
            ways = [of_layer[number] for of_layer in fanouts]
            absent = self._absent[relation.destination]
            scatter = self._scatter[number]
            # One that was reached over the edges of the relation that goes back has some, and so has more
            # of them than others of its class.
            back = 0.0 if relation.reverse is None else self._picked[relation.reverse]
            drawn = relation.in_degrees * scatter.drawn(ways[-1], absent, back)
            edges.append(float(counts @ drawn))
            runs.append(float(counts @ scatter.with_edges(absent, back)) if ways[-1] else 0.0)
            ends = counts * relation.in_degrees
            picked = sum(
                float(ends @ (of_hop[relation.destination] * scatter.once(ways[arrival:])))
                for arrival, of_hop in enumerate(self._arrived)
            ) / max(float(ends.sum()), TINY)
            reached.append(picked)
            missed[relation.source] += _log_missed(
                relation.out_degrees, picked, present[relation.destination], float(counts.sum())
            )
        after = [
            np.minimum(before, outside * np.exp(log))
            for before, outside, log in zip(self._absent, self._not_target, missed, strict=True)
        ]
        self._arrived.append([old - new for old, new in zip(self._absent, after, strict=True)])
        self._absent, self._picked = after, reached
        return tuple(runs), tuple(edges)


def _log_missed(out_degrees: Floats, picked: float, drawing: float, total: float) -> Floats:
    """[C] the logarithm of the chance that none of a vertex's out-edges is picked, each with one chance.

    Of `total` ends that edges may have, only those that are `drawing` pick, each an edge at most.
    """
    spread, hits = spread_of(drawing, total), out_degrees * min(picked, 1.0)
    if spread == 0:
        return -hits
    log: Floats = np.log1p(-np.minimum(hits * spread, 1.0 - 1e-15)) / spread
    return log


class _Scatter:
    """Degrees of a relation's destinations, seen from an edge: [C, Q] values and how likely each is."""

    def __init__(self, relation: RelationDegrees) -> None:
        means = relation.in_degrees[:, None]
        few = np.arange(int(2 * _MANY + 20), dtype=np.float64)
        least = np.minimum(means, _MANY)
        logs = few * np.log(np.maximum(least, TINY)) - least - _log_factorials(len(few))
        exact = np.exp(np.where(few == 0, -least, logs))
        exact /= exact.sum(1, keepdims=True)
        points = np.maximum(means + np.sqrt(means) * np.array(_POINTS), 0.0)
        many = means > _MANY
        width = max(len(few), len(_POINTS))
        padded, shares = np.ones((len(means), width)), np.zeros((len(means), width))
        padded[:, : len(_POINTS)], shares[:, : len(_POINTS)] = points, _POINT_SHARES
        # An edge's end has that edge, and as many others as any vertex.
        self._values = 1.0 + np.where(many, padded, few)
        self._shares = np.where(many, shares, exact)
        self._means = relation.in_degrees

    def drawn(self, fanout: int, absent: Floats, picked: float) -> Floats:
        """[C] the chance that an edge's end is there, and draws the edge.

        Parameters
        ----------
        fanout
            How many edges it draws.
        absent
            [C] the chance of a vertex of each class not to be there.
        picked
            The chance that it is there because of one of these edges, seen the other way round; 0 for none.
        """
        share = np.ones_like(self._values) if fanout < 0 else np.minimum(1.0, fanout / self._values)
        chance: Floats = (share * (1.0 - self._absent(absent, picked)) * self._shares).sum(1)
        return chance

    def with_edges(self, absent: Floats, picked: float) -> Floats:
        """[C] the chance that a vertex is there and has an edge; see `drawn`."""
        others = absent * np.exp(np.minimum(self._means * picked, 600.0))
        none = np.exp(-self._means) * (1.0 - np.minimum(others, 1.0))
        chance: Floats = np.maximum(1.0 - absent - none, 0.0)
        return chance

    def _absent(self, absent: Floats, picked: float) -> Floats:
        """[C, Q] the chance not to be there, of a vertex with so many edges that may have brought it."""
        log = np.log(np.maximum(absent, TINY)) + self._means * picked
        missed = np.log1p(-min(picked, 1.0 - 1e-12)) * self._values
        chance: Floats = np.minimum(np.exp(log[:, None] + missed), 1.0)
        return chance

    def once(self, fanouts: Sequence[int]) -> Floats:
        """[C] the chance that an edge is drawn in at least one of some layers."""
        missed = np.ones_like(self._values)
        for fanout in fanouts:
            share = np.ones_like(self._values) if fanout < 0 else np.minimum(1.0, fanout / self._values)
            missed = missed * (1.0 - share)
        chance: Floats = ((1.0 - missed) * self._shares).sum(1)
        return chance


def _log_factorials(count: int) -> Floats:
    found: Floats = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])
    return found
