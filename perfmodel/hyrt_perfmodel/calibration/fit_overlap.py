"""What a whole run adds to its stages, fitted to a few measured runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platforms.platform import Host, Platform, Sharing
from hyrt_perfmodel.prediction.stage_times import host_trainers, iteration_s, stage_times
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
    """The wall time of a step."""

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
            core_efficiency=fmean(sharing.efficiency for sharing in self.sharing_of.values()),
            weights_gb_s=self.weights_gb_s,
            sharing_of=self.sharing_of,
        )


# A step's own cost is a millisecond or a few, where trainers keep the cores from one another: more would
# stand for what else the model misses.
_STEP_S = np.concatenate([[0.0], np.geomspace(1e-4, 6e-3, 25)])
_WEIGHT_S_PER_GB = np.concatenate([[0.0], np.geomspace(0.05, 5.0, 9)])
_EFFICIENCY = np.linspace(0.4, 1.0, 31)


def fit_overlap(runs: Sequence[MeasuredRun]) -> Overlap:
    """The steps' own costs and the cores' efficiencies with which predictions come nearest to the runs.

    Both are fitted to the runs of each set of trainers on the host; what weights cost is one for all runs.

    Raises
    ------
    ValueError
        If there are no runs.
    """
    if not runs:
        raise ValueError("no runs to fit to")
    return min((_fit(1 / s if s else math.inf, runs) for s in _WEIGHT_S_PER_GB), key=_squares)


def _squares(overlap: Overlap) -> float:
    return sum(error**2 for error in overlap.relative_errors)


def _fit(weights_gb_s: float, runs: Sequence[MeasuredRun]) -> Overlap:
    """The best figures for each set of trainers, given the rest."""
    sharing_of = {
        kinds: _sharing([run for run in runs if run.together == kinds], weights_gb_s)
        for kinds in sorted({run.together for run in runs})
    }
    found = Overlap(weights_gb_s, sharing_of, ())
    errors = []
    for run in runs:
        host = found.of(run.platform.host)
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        errors.append(iteration_s(times, host) / run.iteration_s - 1)
    return replace(found, relative_errors=tuple(errors))


def _sharing(runs: Sequence[MeasuredRun], weights_gb_s: float) -> Sharing:
    best, least = Sharing(step_s=0.0, efficiency=1.0), math.inf
    for step_s in _STEP_S:
        squares = np.zeros(len(_EFFICIENCY))
        for run in runs:
            host = replace(
                run.platform.host,
                step_s=float(step_s),
                core_efficiency=1.0,
                weights_gb_s=weights_gb_s,
                sharing_of={},
            )
            times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
            cores_s = (times.core_s or 0.0) / (host.cores or 1)
            slowest = max(times.stages_s.values())
            squares += (np.maximum(slowest, cores_s / _EFFICIENCY) / run.iteration_s - 1) ** 2
        # Of equally good ones the highest: where the cores do not bound a run, nothing is lost.
        at = len(_EFFICIENCY) - 1 - int(np.argmin(squares[::-1]))
        if squares[at] < least:
            best, least = Sharing(step_s=float(step_s), efficiency=float(_EFFICIENCY[at])), float(squares[at])
    return best
