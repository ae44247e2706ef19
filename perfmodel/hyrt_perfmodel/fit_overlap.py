"""What a whole run adds to its stages, fitted to a few measured runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platform import Host, Platform
from hyrt_perfmodel.stage_times import iteration_s, stage_times
from hyrt_perfmodel.workload import Training


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """One run.

    Parameters
    ----------
    platform
        With the run's trainers only.
    training, assignment
        What it did.
    iteration_s
        The wall time of a step.
    """

    platform: Platform
    training: Training
    assignment: Assignment
    iteration_s: float


@dataclass(frozen=True, slots=True)
class Overlap:
    """What was fitted, as in `Host`, and how well it explains the runs.

    Parameters
    ----------
    step_s, weights_gb_s, core_efficiency
        As in `Host`.
    relative_errors
        (predicted - measured) / measured, one a run.
    """

    step_s: float
    weights_gb_s: float
    core_efficiency: float
    relative_errors: tuple[float, ...]

    def of(self, host: Host) -> Host:
        """The host with what was fitted."""
        return replace(
            host,
            step_s=self.step_s,
            weights_gb_s=self.weights_gb_s,
            core_efficiency=self.core_efficiency,
        )


# Where the search looks: twice, the second time around the best of the first.
_STEP_S = np.concatenate([[0.0], np.geomspace(1e-4, 1e-2, 13)])
_WEIGHT_S_PER_GB = np.concatenate([[0.0], np.geomspace(0.05, 5.0, 9)])
_EFFICIENCY = np.linspace(0.5, 1.0, 11)


def fit_overlap(runs: Sequence[MeasuredRun]) -> Overlap:
    """The step's own cost and the cores' efficiency with which predictions come nearest to the runs, relatively.

    Raises
    ------
    ValueError
        If there are no runs.
    """
    if not runs:
        raise ValueError("no runs to fit to")
    best, least = Overlap(0.0, math.inf, 1.0, ()), math.inf
    grids = (_STEP_S, _WEIGHT_S_PER_GB, _EFFICIENCY)
    for _ in range(2):
        for step_s, weight_s, efficiency in itertools.product(*grids):
            candidate = Overlap(
                float(step_s), 1 / float(weight_s) if weight_s else math.inf, min(1.0, float(efficiency)), ()
            )
            errors = tuple(_error(candidate, run) for run in runs)
            squares = sum(error**2 for error in errors)
            if squares < least:
                best, least = replace(candidate, relative_errors=errors), squares
        grids = (
            best.step_s * np.linspace(0.75, 1.25, 9),
            np.array([1 / best.weights_gb_s]) * np.linspace(0.6, 1.4, 5),
            best.core_efficiency + np.linspace(-0.04, 0.04, 9),
        )
    return best


def _error(overlap: Overlap, run: MeasuredRun) -> float:
    platform = replace(run.platform, host=overlap.of(run.platform.host))
    times = stage_times(platform, run.training, run.assignment)
    return iteration_s(times, platform.host) / run.iteration_s - 1
