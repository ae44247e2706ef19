"""Fit of synchronization cost, waiting time and core contention to a few measured runs."""

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
    """Measurements of one run."""

    platform: Platform
    """The platform with only the run's trainers."""
    training: TrainingWorkload
    assignment: Assignment
    """`training` and `assignment`: work of the run."""
    iteration_s: float
    synchronize_s: float
    """`iteration_s` and `synchronize_s`: wall times of a step and of its synchronization."""
    gap_s: float
    """Step time outside propagation and synchronization: from their end to the next step's propagation."""

    @property
    def together(self) -> str:
        """Kinds of the trainers that had targets and compute on the host cores."""
        trainers = self.platform.trainers(self.training.model)
        return host_trainers(
            [trainer for trainer, units in zip(trainers, self.assignment.split, strict=True) if units]
        )


@dataclass(frozen=True, slots=True)
class Overlap:
    """Fitted values of `Host`, and how well they explain the runs."""

    weights_gb_s: float
    sharing_of: Mapping[str, Sharing]
    """`weights_gb_s` and `sharing_of`: values of `Host`, whose general values are the means over
    `sharing_of`."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured, per run."""

    def of(self, host: Host) -> Host:
        """Return the host with the fitted values."""
        return replace(
            host,
            step_s=fmean(sharing.step_s for sharing in self.sharing_of.values()),
            wait_s=fmean(sharing.wait_s for sharing in self.sharing_of.values()),
            lock_s=fmean(sharing.lock_s for sharing in self.sharing_of.values()),
            core_efficiency=fmean(sharing.efficiency for sharing in self.sharing_of.values()),
            weights_gb_s=self.weights_gb_s,
            sharing_of=self.sharing_of,
        )


_EFFICIENCIES = np.linspace(0.4, 1.0, 31)
# Seconds per step in which trainers wait for the interpreter lock that sampling and loading hold: at the end
# of each of their calls, the thread that needs the lock is put to sleep and woken.
_LOCK_S = np.linspace(0.0, 2e-3, 41)


def fit_overlap(runs: Sequence[MeasuredRun]) -> Overlap:
    """Fit synchronization cost, waiting time per step and core efficiency to the runs.

    Synchronization is fitted to its measured times: a cost per step for each set of host trainers, and a cost
    per weight. The waiting time of a set is the lower quartile of its step times outside propagation and
    synchronization; a quartile, because trainers also wait for slow earlier stages. The increase of
    propagation over its time alone is modeled as a wait for the interpreter lock per step, and a division of
    work by the efficiency. Both minimize the sum of absolute relative errors over the steps of a set, which
    is less sensitive to a disturbed run than the total time.

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
        kinds: _fit_contention([run for run in runs if run.together == kinds], weights_gb_s, step_s)
        for kinds, step_s in zip(sets, steps_s, strict=True)
    }
    fit = Overlap(weights_gb_s, sharing_of, ())
    errors = []
    for run in runs:
        host = fit.of(run.platform.host)
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        errors.append(iteration_s(times, host) / run.iteration_s - 1)
    return replace(fit, relative_errors=tuple(errors))


def _weights_gb(run: MeasuredRun) -> float:
    """Return the gradients and weights that a step moves, in 1e9 bytes."""
    return synchronize_s(run.training.at(run.training.batch_size), 1e9)


def _fit_contention(runs: Sequence[MeasuredRun], weights_gb_s: float, step_s: float) -> Sharing:
    """Fit the waiting time and the efficiency of one set of trainers to its runs."""
    gaps = sorted(run.gap_s for run in runs)
    sharing = Sharing(step_s=step_s, efficiency=1.0, wait_s=max(0.0, gaps[len(gaps) // 4]))
    total = np.zeros((len(_LOCK_S), len(_EFFICIENCIES)))
    for run in runs:
        host = replace(run.platform.host, weights_gb_s=weights_gb_s, sharing_of={run.together: sharing})
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        stages_s, beyond_s = stages_together_s(times, Terms()), beyond_cores_s(times, host)
        predicted = [
            [on_shared_cores_s(times, stages_s, beyond_s, efficiency, lock_s) for efficiency in _EFFICIENCIES]
            for lock_s in _LOCK_S
        ]
        total += np.abs(np.array(predicted) / run.iteration_s - 1)
    # Break ties in favor of the shortest wait and the highest efficiency, in case neither affects any run.
    lock, column = np.unravel_index(int(np.argmin(total[:, ::-1])), total.shape)
    return replace(
        sharing,
        efficiency=float(_EFFICIENCIES[::-1][column]),
        lock_s=float(_LOCK_S[lock]),
    )
