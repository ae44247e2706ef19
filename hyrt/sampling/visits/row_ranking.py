"""Hotness ranking: vertices by how often their feature rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line
from hyrt.sampling.sampler import Sampler
from hyrt.sampling.sampler_settings import SamplerSettings
from hyrt.sampling.visits.counted_visits import counted_visits
from hyrt.sampling.visits.expected_visits import expected_reads

# Sampled steps per fold.
_IN_FOLD = 16
# Number of folds if the ranking itself is based on counts.
_FOLDS = 4


@dataclass(frozen=True, slots=True, eq=False)
class RowRanking:
    """Vertices whose rows may be read, the most frequently read ones first."""

    vertices: NDArray[Any]
    """[n] the vertices."""
    visits: NDArray[np.float64]
    """[n] estimated number of steps per epoch that read each row; if counted, not necessarily decreasing."""

    __repr__ = one_line

    @classmethod
    def of(cls, visits: NDArray[np.float64], dtype: np.dtype[Any]) -> RowRanking:
        """Rank vertices by [V] expected reads, without unread vertices. `dtype` is the dtype of vertex
        ids.
        """
        best = np.argsort(-visits, kind="stable")[: np.count_nonzero(visits)]
        return cls(best.astype(dtype), visits[best])

    def of_first(self, count: int) -> float:
        """Return how many row reads of an epoch are of the first `count` vertices."""
        return float(self.visits[:count].sum())

    def hit_rate(self, count: int) -> float:
        """Return the fraction of row reads that are of the first `count` vertices."""
        total = self.of_first(len(self.visits))
        return self.of_first(count) / total if total else 0.0


def rank_rows(
    settings: SamplerSettings,
    sampler: Sampler,
    topology: Topology,
    targets: NDArray[Any],
    batch_size: int,
    fanouts: Sequence[int],
    part: float,
    workers: Workers,
) -> RowRanking:
    """Rank the rows that one trainer of a run reads.

    The ranks of neighbour sampling follow from its probabilities and the training split; how often rows of
    each rank are read is counted in a few steps that are sampled ahead, since vertices in clusters are read
    together more often than independent draws would have it. Of other kinds of samplers more steps are
    sampled, for the ranks, too. How often a row of some rank is read is counted in each quarter of them by
    the ranking of the other three, since a ranking looks too good by what it was made of.

    Parameters
    ----------
    settings, sampler
        The kind of sampler, and the run's.
    topology
        The edges.
    targets
        [n] the training vertices.
    batch_size
        Targets of a step, over all trainers.
    fanouts
        Neighbours of each vertex per layer, the targets' layer first; -1 takes all.
    part
        The part of a step's units that the trainer has, above 0 and at most 1.
    workers
        The threads that sample.
    """
    dtype, per_epoch = topology.indices.dtype, sampler.steps_per_epoch()
    # Each fold has epochs of its own: what a step has trained, the others of its epoch do not.
    epochs = -(-_IN_FOLD // per_epoch)

    def counted(fold: int) -> NDArray[np.float64]:
        steps = [(fold + number / _IN_FOLD) * epochs * per_epoch for number in range(_IN_FOLD)]
        all_units = settings.unit != "target"
        return counted_visits(
            sampler, list(map(int, steps)), part, topology.num_vertices, workers, all_units=all_units
        )

    if settings.kind == "neighbor":
        weights = np.zeros(topology.num_vertices)
        weights[targets] = part / len(targets)
        whole, rest = divmod(len(targets), batch_size)
        batches = [batch_size] * whole + [rest] * bool(rest)
        best = RowRanking.of(expected_reads(topology, weights, batches, fanouts), dtype).vertices
        judged = counted(0)[best]
    else:
        counts = [counted(fold) for fold in range(_FOLDS)]
        total = np.sum(counts, axis=0)
        judged = np.mean([each[np.argsort(each - total, kind="stable")] for each in counts], axis=0)
        best = np.argsort(-total, kind="stable").astype(dtype)
    return RowRanking(best, judged * per_epoch / _IN_FOLD)
