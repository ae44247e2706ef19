"""Hotness of vertices: estimated or counted number of reads of each feature row per epoch."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.sampler_settings import SamplerSettings


def count_accesses(
    sampler: Sampler,
    steps: Sequence[int],
    fraction: float,
    num_vertices: int,
    workers: Workers,
    *,
    all_units: bool = False,
) -> NDArray[np.float64]:
    """Count how often a trainer reads the feature row of each vertex in some steps of the run, [V].

    The trainer gets `fraction` of the units of each step. If `all_units`, all units of a step are sampled in
    pieces of the trainer's size, and the counts are averaged. Set it if there are few units that differ much.
    """
    visits = np.zeros(num_vertices)
    for step in steps:
        units = sampler.units(step)
        size = math.ceil(fraction * len(units))
        starts = range(0, len(units) - size + 1, size) if all_units else range(1)
        for start in starts:
            batch = sampler.sample(step, units[start : start + size], workers, in_place=False)
            sources = batch.blocks[0].sources
            assert sources is not None
            np.add.at(visits, sources, 1 / len(starts))
            batch.release()
    return visits


def access_probabilities(
    topology: Topology, target_probabilities: NDArray[np.float64], fanouts: Sequence[int]
) -> NDArray[np.float64]:
    """Compute the probability that a mini-batch reads the row of each vertex, [V] float64.

    `target_probabilities` [V] is each vertex's probability of being a target of the mini-batch. `fanouts`
    begin with the targets' layer; -1 takes all neighbours.
    """
    degrees = np.maximum(topology.in_degrees, 1)
    reached = target_probabilities
    # Probability that a vertex is reached and samples a given neighbour, [V].
    drawing = np.zeros(len(target_probabilities))
    for fanout in fanouts:
        part = np.minimum(1.0, fanout / degrees) if fanout >= 0 else 1.0
        drawing += part * (reached - drawing)
        # log(0) would turn sums into NaN.
        missed = np.zeros(len(target_probabilities))
        _add_to_neighbours(
            topology.indptr, topology.indices, np.log1p(-np.minimum(drawing, 1 - 1e-15)), missed
        )
        reached = 1 - (1 - target_probabilities) * np.exp(missed)
    return reached


def expected_accesses(
    topology: Topology,
    target_weights: NDArray[np.float64],
    batches: Sequence[int],
    fanouts: Sequence[int],
) -> NDArray[np.float64]:
    """Compute the expected number of steps per epoch in which a rank reads each row, [V] float64.

    `target_weights` [V] is the probability that this rank trains a vertex in a step with one target.
    `batches` has the number of targets of each step over all ranks. `fanouts` begin with the targets' layer;
    -1 takes all neighbours.
    """
    total = np.zeros(topology.num_vertices)
    for size, steps in zip(*np.unique(batches, return_counts=True), strict=True):
        total += steps * access_probabilities(topology, np.minimum(size * target_weights, 1.0), fanouts)
    return total


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _add_to_neighbours(indptr, indices, values, sums):
    """Add values[v] to sums[u] for every edge from u to v."""
    for v in range(len(indptr) - 1):
        if values[v] != 0:
            for e in range(indptr[v], indptr[v + 1]):
                sums[indices[e]] += values[v]


# Number of sampled steps per fold.
_IN_FOLD = 16
# Number of folds if the ranking itself is based on counts.
_FOLDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class HotnessRanking:
    """Vertices whose rows may be read, in descending order of reads."""

    vertices: NDArray[Any]
    """Vertices in ranking order, [n]."""
    accesses: NDArray[np.float64]
    """Estimated steps per epoch that read each row, [n]; counted values may not be in descending order."""

    __repr__ = short_repr

    @classmethod
    def from_accesses(cls, accesses: NDArray[np.float64], dtype: np.dtype[Any]) -> HotnessRanking:
        """Rank vertices by expected reads [V] and drop unread vertices; `dtype` is that of vertex ids."""
        best = np.argsort(-accesses, kind="stable")[: np.count_nonzero(accesses)]
        return cls(best.astype(dtype), accesses[best])

    def covered_accesses(self, count: int) -> float:
        """Return the number of row reads per epoch from the first `count` vertices."""
        return float(self.accesses[:count].sum())

    def hit_rate(self, count: int) -> float:
        """Return the fraction of row reads from the first `count` vertices."""
        total = self.covered_accesses(len(self.accesses))
        return self.covered_accesses(count) / total if total else 0.0


def rank_by_hotness(
    settings: SamplerSettings,
    sampler: Sampler,
    topology: Topology,
    targets: NDArray[Any],
    batch_size: int,
    fanouts: Sequence[int],
    fraction: float,
    workers: Workers,
) -> HotnessRanking:
    """Rank the rows that a trainer reads if it gets `fraction` of the units of each step.

    For neighbour sampling, the ranking follows from sampling probabilities and the training vertices
    `targets` [n]. Reads per ranking position are then counted in a few steps that are sampled before
    training, because vertices of a cluster are read together more often than independent sampling would
    predict.

    For other samplers, the ranking is based on sampled steps too. These are divided into four folds, and the
    reads of each fold are counted with the ranking of the other three, because a ranking is too optimistic
    for the data that produced it. `batch_size` is the number of targets per step over all trainers, and
    `fanouts` begin with the targets' layer.
    """
    dtype, per_epoch = topology.indices.dtype, sampler.steps_per_epoch()
    # Folds must not share epochs, because the targets of a step do not occur in other steps of its epoch.
    epochs = -(-_IN_FOLD // per_epoch)

    def counted(fold: int) -> NDArray[np.float64]:
        steps = [(fold + number / _IN_FOLD) * epochs * per_epoch for number in range(_IN_FOLD)]
        all_units = settings.unit != "target"
        return count_accesses(
            sampler, list(map(int, steps)), fraction, topology.num_vertices, workers, all_units=all_units
        )

    if settings.kind == "neighbor":
        weights = np.zeros(topology.num_vertices)
        weights[targets] = fraction / len(targets)
        whole, rest = divmod(len(targets), batch_size)
        batches = [batch_size] * whole + [rest] * bool(rest)
        best = HotnessRanking.from_accesses(
            expected_accesses(topology, weights, batches, fanouts), dtype
        ).vertices
        accesses = counted(0)[best]
    else:
        counts = [counted(fold) for fold in range(_FOLDS)]
        total = np.sum(counts, axis=0)
        accesses = np.mean([each[np.argsort(each - total, kind="stable")] for each in counts], axis=0)
        best = np.argsort(-total, kind="stable").astype(dtype)
    return HotnessRanking(best, accesses * per_epoch / _IN_FOLD)
