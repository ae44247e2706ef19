"""What a whole run adds to its stages, fitted to a few measured runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.calibration.fit_rates import non_negative
from hyrt_perfmodel.platforms.platform import Host, Platform, Sharing
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.stage_times import (
    beyond_cores_s,
    host_trainers,
    iteration_s,
    on_shared_cores_s,
    stage_times,
    stages_together_s,
)
from hyrt_perfmodel.prediction.stages import synchronize_s
from hyrt_perfmodel.workloads.workload import TrainingWorkload


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run."""

    platform: Platform
    """The platform with the run's trainers only."""
    training: TrainingWorkload
    assignment: Assignment
    """`training` and `assignment`: what it did."""
    iteration_s: float
    synchronize_s: float
    """`iteration_s` and `synchronize_s`: the wall times of a step and of its synchronization."""
    gap_s: float
    """What a step took besides propagation and synchronization: from there to the next one's propagation."""

    @property
    def together(self) -> str:
        """The trainers that had targets and compute on the host's cores."""
        trainers = self.platform.trainers(self.training.model)
        return host_trainers(
            [trainer for trainer, units in zip(trainers, self.assignment.split, strict=True) if units]
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """What was fitted, as in `Host`, and how well it explains the runs."""

    weights_gb_s: float
    sharing_of: Mapping[str, Sharing]
    """`weights_gb_s` and `sharing_of`: the figures of `Host`; its general ones are the means of those by
    trainers."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured, one a run."""

    def of(self, host: Host) -> Host:
        """The host with what was fitted."""
        return replace(
            host,
            step_s=fmean(sharing.step_s for sharing in self.sharing_of.values()),
            wait_s=fmean(sharing.wait_s for sharing in self.sharing_of.values()),
            lock_s=fmean(sharing.lock_s for sharing in self.sharing_of.values()),
            core_efficiency=fmean(sharing.efficiency for sharing in self.sharing_of.values()),
            weights_gb_s=self.weights_gb_s,
            sharing_of=self.sharing_of,
        )


_EFFICIENCY = np.linspace(0.4, 1.0, 31)
# Seconds of a step in which trainers wait for the interpreter lock that sampling and loading keep: whenever
# one of their calls ends, the thread that needs the lock is put to sleep and woken.
_LOCK_S = np.linspace(0.0, 2e-3, 41)


def fit_overlap(runs: Sequence[MeasuredRun]) -> Overlap:
    """What synchronization costs, a step's wait and the cores' efficiency that come nearest to the runs.

    Synchronization is fitted to its measured times: a cost of a step for each set of trainers on the host,
    and one for each weight. A step's wait is at least what the steps of a set took besides propagation and
    synchronization: the lower quartile, for where a stage before the trainers is slow, they wait for it, too.
    What propagation takes longer than alone is a wait for the interpreter lock in each step, and work over
    the efficiency. Both are fitted to the steps of each set: with the least sum of relative errors, that
    a run that something disturbed changes less than their total.

    Raises
    ------
    ValueError
        If there are no runs.
    """
    if not runs:
        raise ValueError("no runs to fit to")
    sets = sorted({run.together for run in runs})
    terms = np.array([[*(run.together == kinds for kinds in sets), _weights_gb(run)] for run in runs], float)
    *steps_s, weight_s = non_negative(terms / np.array([[run.synchronize_s] for run in runs])).tolist()
    weights_gb_s = 1 / weight_s if weight_s else math.inf
    sharing_of = {
        kinds: _sharing([run for run in runs if run.together == kinds], weights_gb_s, step_s)
        for kinds, step_s in zip(sets, steps_s, strict=True)
    }
    found = Overlap(weights_gb_s, sharing_of, ())
    errors = []
    for run in runs:
        host = found.of(run.platform.host)
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        errors.append(iteration_s(times, host) / run.iteration_s - 1)
    return replace(found, relative_errors=tuple(errors))


def _weights_gb(run: MeasuredRun) -> float:
    """1e9 bytes of gradients and weights that a step moves."""
    return synchronize_s(run.training.at(run.training.batch_size), 1e9)


def _sharing(runs: Sequence[MeasuredRun], weights_gb_s: float, step_s: float) -> Sharing:
    """The wait of one set of trainers, and the efficiency with which it comes nearest to its runs."""
    gaps = sorted(run.gap_s for run in runs)
    sharing = Sharing(step_s=step_s, efficiency=1.0, wait_s=max(0.0, gaps[len(gaps) // 4]))
    total = np.zeros((len(_LOCK_S), len(_EFFICIENCY)))
    for run in runs:
        host = replace(run.platform.host, weights_gb_s=weights_gb_s, sharing_of={run.together: sharing})
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        stages_s, beyond_s = stages_together_s(times, Terms()), beyond_cores_s(times, host)
        predicted = [
            [on_shared_cores_s(times, stages_s, beyond_s, efficiency, lock_s) for efficiency in _EFFICIENCY]
            for lock_s in _LOCK_S
        ]
        total += np.abs(np.array(predicted) / run.iteration_s - 1)
    # Of equally good ones the shortest wait and the highest efficiency: where neither bounds a run, nothing
    # is lost.
    lock, place = np.unravel_index(int(np.argmin(total[:, ::-1])), total.shape)
    return replace(
        sharing,
        efficiency=float(_EFFICIENCY[::-1][place]),
        lock_s=float(_LOCK_S[lock]),
    )
