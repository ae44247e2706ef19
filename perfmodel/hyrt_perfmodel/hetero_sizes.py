"""Degrees of heterogeneous graphs by relation, and expected sizes of their mini-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.expected_sizes import TINY, distinct_correction
from hyrt_perfmodel.model_workload import RelationSizes

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RelationDegrees:
    """Edges of one relation, by classes of their source and destination vertices."""

    source: int
    destination: int
    """Type number of the destinations; `source` is that of the sources."""
    in_degrees: Floats
    """Mean in-degree of each class in the relation: [C_destination] float64."""
    out_degrees: Floats
    """Mean out-degree of each class in the relation: [C_source] float64. Degrees are Poisson distributed
    around the mean of their class, as in a random graph."""
    reverse: int | None = None
    """Index of the relation with the same edges in reverse, if there is one."""

    def __post_init__(self) -> None:
        for name in ("in_degrees", "out_degrees"):
            values = getattr(self, name)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ValueError(f"relation: {name} must contain only finite numbers of at least 0")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeteroDegrees:
    """Degree classes of the vertices of each type, and the relations between types.

    Edges of a relation depend only on the degrees in that relation.
    """

    counts: tuple[Floats, ...]
    """Number of vertices in each class of each type: [T] of [C_t] float64."""
    relations: tuple[RelationDegrees, ...]
    target: int
    """Number of the targets' type."""
    num_targets: float
    """Number of possible targets, which are assumed to be typical vertices of their type."""

    def __post_init__(self) -> None:
        for relation in self.relations:
            ends = (relation.source, relation.out_degrees), (relation.destination, relation.in_degrees)
            for number, degrees in ends:
                if degrees.shape != self.counts[number].shape:
                    raise ValueError(
                        f"relation: there are {len(degrees)} degrees for {len(self.counts[number])} classes, "
                        "expected one per class"
                    )

    @property
    def num_vertices(self) -> list[float]:
        """Number of vertices of each type: [T]."""
        return [float(counts.sum()) for counts in self.counts]

    @property
    def num_edges(self) -> list[float]:
        """Number of edges of each relation: [R]."""
        return [float(self.counts[relation.destination] @ relation.in_degrees) for relation in self.relations]


def assumed_relations(
    counts: Sequence[int],
    relations: Sequence[tuple[int, int, int]],
    *,
    target: int,
    num_targets: int,
    sigma: float = 1.2,
) -> HeteroDegrees:
    """Return log-normal degrees for a heterogeneous graph of known size.

    `counts` [T] contains the number of vertices of each type, and `relations` [R] the source type,
    destination type and number of edges of each relation. `target` is the type of the targets. A vertex with
    many edges of one relation has proportionally many edges of the others.
    """
    distributions = [DegreeDistribution.assumed(count, count, sigma=sigma) for count in counts]
    class_counts = [distribution.counts for distribution in distributions]

    def degrees(number: int, edges: int) -> Any:
        # Scale the in-degree distribution, which has one edge per vertex, to `edges` edges.
        return distributions[number].in_degrees * (edges / counts[number])

    return HeteroDegrees(
        counts=tuple(class_counts),
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


# Above this mean, three points (Gauss-Hermite) approximate the degree distribution; below, it is exact.
_MAX_EXACT_MEAN = 40.0
_POINTS = (-math.sqrt(3.0), 0.0, math.sqrt(3.0))
_POINT_SHARES = (1 / 6, 2 / 3, 1 / 6)


def expected_relation_sizes(
    degrees: HeteroDegrees, fanouts: Sequence[Sequence[int]], targets: float
) -> RelationSizes:
    """Return the expected sizes of a mini-batch by type and relation.

    As in `hyrt_perfmodel.expected_sizes`, a vertex is in a mini-batch if it is a target, or if the end of one
    of its edges was present and sampled it, and ends are independent, as in a tree. Degrees in a relation are
    distributed around their means as in a random graph. The end of an edge then has as many further edges as
    any vertex of its class, so the probability that it was reached in another way needs no correction.

    `fanouts` [L][R] contains the number of neighbors per vertex along each relation, starting with the
    targets' layer; -1 means all, 0 none. `targets` is limited to the number of possible targets.
    """
    growth = _RelationGrowth(degrees, targets)
    vertices, runs, edges = [growth.present], [], []
    for hop in range(len(fanouts)):
        layer_runs, layer_edges = growth.grow(fanouts[: hop + 1])
        runs.append(layer_runs)
        edges.append(layer_edges)
        vertices.append(growth.present)
    return RelationSizes(vertices=tuple(vertices[::-1]), segments=tuple(runs[::-1]), edges=tuple(edges[::-1]))


class _RelationGrowth:
    """Expected vertices of a mini-batch, which grows from the targets hop by hop."""

    def __init__(self, degrees: HeteroDegrees, targets: float) -> None:
        self._degrees = degrees
        size = float(degrees.counts[degrees.target].sum())
        chance = min(targets, degrees.num_targets) / max(size, TINY)
        # Probability of being absent, [T] of [C_t], and by hop of arrival, of having arrived at this hop.
        self._not_target = [
            np.full(len(counts), 1.0 - chance * (number == degrees.target))
            for number, counts in enumerate(degrees.counts)
        ]
        self._absent = self._not_target
        self._arrived = [[1.0 - item for item in self._not_target]]
        self._degrees_of_edges = [_SizeBiasedDegrees(item) for item in degrees.relations]
        # Probability that an edge of each relation has been sampled.
        self._picked = [0.0] * len(degrees.relations)

    @property
    def present(self) -> tuple[float, ...]:
        """Expected number of present vertices of each type: [T]."""
        pairs = zip(self._degrees.counts, self._absent, strict=True)
        return tuple(float(counts @ (1.0 - absent)) for counts, absent in pairs)

    def grow(self, fanouts: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Add a layer with the last of `fanouts`, and return its expected segments and edges: [R] each."""
        degrees, present = self._degrees, self.present
        runs, edges, reached = [], [], []
        # Log-probability that a vertex of each degree class was not sampled.
        missed = [np.zeros(len(counts)) for counts in degrees.counts]
        for number, relation in enumerate(degrees.relations):
            counts = degrees.counts[relation.destination]
            relation_fanouts = [layer_fanouts[number] for layer_fanouts in fanouts]
            absent = self._absent[relation.destination]
            scatter = self._degrees_of_edges[number]
            # A vertex that was reached over the reverse relation has at least one edge of this relation, and
            # therefore more edges than other vertices of its class on average.
            reverse_chance = 0.0 if relation.reverse is None else self._picked[relation.reverse]
            sampled_chance = relation.in_degrees * scatter.sampled_chance(
                relation_fanouts[-1], absent, reverse_chance
            )
            edges.append(float(counts @ sampled_chance))
            runs.append(
                float(counts @ scatter.with_edges(absent, reverse_chance)) if relation_fanouts[-1] else 0.0
            )
            ends = counts * relation.in_degrees
            picked = sum(
                float(
                    ends @ (arrivals[relation.destination] * scatter.sampled_once(relation_fanouts[arrival:]))
                )
                for arrival, arrivals in enumerate(self._arrived)
            ) / max(float(ends.sum()), TINY)
            reached.append(picked)
            missed[relation.source] += _log_missed(
                relation.out_degrees, picked, present[relation.destination], float(counts.sum())
            )
        absent_after = [
            np.minimum(before, outside * np.exp(log))
            for before, outside, log in zip(self._absent, self._not_target, missed, strict=True)
        ]
        self._arrived.append([old - new for old, new in zip(self._absent, absent_after, strict=True)])
        self._absent, self._picked = absent_after, reached
        return tuple(runs), tuple(edges)


def _log_missed(out_degrees: Floats, picked: float, num_sampling: float, total: float) -> Floats:
    """Return the log-probability of each class that none of a vertex's out-edges is sampled: [C].

    Each edge is sampled with probability `picked`. Of the `total` possible ends, only `num_sampling` sample,
    each at most one edge.
    """
    spread, hits = distinct_correction(num_sampling, total), out_degrees * min(picked, 1.0)
    if spread == 0:
        return -hits
    log: Floats = np.log1p(-np.minimum(hits * spread, 1.0 - 1e-15)) / spread
    return log


class _SizeBiasedDegrees:
    """Degrees of a relation's destinations as seen from an edge: values and probabilities, [C, Q] each."""

    def __init__(self, relation: RelationDegrees) -> None:
        means = relation.in_degrees[:, None]
        small_degrees = np.arange(int(2 * _MAX_EXACT_MEAN + 20), dtype=np.float64)
        capped_means = np.minimum(means, _MAX_EXACT_MEAN)
        logs = (
            small_degrees * np.log(np.maximum(capped_means, TINY))
            - capped_means
            - _log_factorials(len(small_degrees))
        )
        exact = np.exp(np.where(small_degrees == 0, -capped_means, logs))
        exact /= exact.sum(1, keepdims=True)
        points = np.maximum(means + np.sqrt(means) * np.array(_POINTS), 0.0)
        is_large = means > _MAX_EXACT_MEAN
        width = max(len(small_degrees), len(_POINTS))
        padded, shares = np.ones((len(means), width)), np.zeros((len(means), width))
        padded[:, : len(_POINTS)], shares[:, : len(_POINTS)] = points, _POINT_SHARES
        # A vertex at the end of an edge has this edge, and as many further edges as any vertex.
        self._values = 1.0 + np.where(is_large, padded, small_degrees)
        self._shares = np.where(is_large, shares, exact)
        self._means = relation.in_degrees

    def sampled_chance(self, fanout: int, absent: Floats, picked: float) -> Floats:
        """Return the probability of each class that an edge's end is present and samples the edge: [C].

        `absent` [C] is the probability that a vertex of each class is absent. `picked` is the probability
        that the end is present because of the reverse of one of these edges, or 0.
        """
        share = np.ones_like(self._values) if fanout < 0 else np.minimum(1.0, fanout / self._values)
        chance: Floats = (share * (1.0 - self._absent(absent, picked)) * self._shares).sum(1)
        return chance

    def with_edges(self, absent: Floats, picked: float) -> Floats:
        """Return the probability of each class that a vertex is present and has an edge: [C]."""
        others = absent * np.exp(np.minimum(self._means * picked, 600.0))
        none = np.exp(-self._means) * (1.0 - np.minimum(others, 1.0))
        chance: Floats = np.maximum(1.0 - absent - none, 0.0)
        return chance

    def _absent(self, absent: Floats, picked: float) -> Floats:
        """Return the probability that a vertex with each number of edges is absent: [C, Q]."""
        log = np.log(np.maximum(absent, TINY)) + self._means * picked
        missed = np.log1p(-min(picked, 1.0 - 1e-12)) * self._values
        chance: Floats = np.minimum(np.exp(log[:, None] + missed), 1.0)
        return chance

    def sampled_once(self, fanouts: Sequence[int]) -> Floats:
        """Return the probability of each class that an edge is sampled in at least one layer: [C]."""
        missed = np.ones_like(self._values)
        for fanout in fanouts:
            share = np.ones_like(self._values) if fanout < 0 else np.minimum(1.0, fanout / self._values)
            missed = missed * (1.0 - share)
        chance: Floats = ((1.0 - missed) * self._shares).sum(1)
        return chance


def _log_factorials(count: int) -> Floats:
    logs: Floats = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, count)))])
    return logs
