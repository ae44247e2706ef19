"""What a whole run adds to its stages, fitted to a few measured runs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hyrt_perfmodel.assignment import Assignment
from hyrt_perfmodel.platform import Host, Platform
from hyrt_perfmodel.stage_times import stage_times
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
    step_s, weights_gb_s, core_efficiency, efficiency_of
        As in `Host`; the general efficiency is the mean of those by trainers.
    relative_errors
        (predicted - measured) / measured, one a run.
    """

    step_s: float
    weights_gb_s: float
    core_efficiency: float
    efficiency_of: Mapping[str, float]
    relative_errors: tuple[float, ...]

    def of(self, host: Host) -> Host:
        """The host with what was fitted."""
        return replace(
            host,
            step_s=self.step_s,
            weights_gb_s=self.weights_gb_s,
            core_efficiency=self.core_efficiency,
            efficiency_of=self.efficiency_of,
        )


# Where the search looks: twice, the second time around the best of the first.
# A step's own cost is a millisecond or two: more would stand for what else the model misses.
_STEP_S = np.concatenate([[0.0], np.geomspace(1e-4, 2e-3, 13)])
_WEIGHT_S_PER_GB = np.concatenate([[0.0], np.geomspace(0.05, 5.0, 9)])
_EFFICIENCY = np.linspace(0.4, 1.0, 31)


def fit_overlap(runs: Sequence[MeasuredRun]) -> Overlap:
    """The step's own cost and the cores' efficiency with which predictions come nearest to the runs, relatively.

    The cost is one for all runs; the efficiency is fitted to the runs of each set of trainers on the host.

    Raises
    ------
    ValueError
        If there are no runs.
    """
    if not runs:
        raise ValueError("no runs to fit to")
    best, least = Overlap(0.0, math.inf, 1.0, {}, ()), math.inf
    grids = (_STEP_S, _WEIGHT_S_PER_GB)
    for _ in range(2):
        for step_s, weight_s in itertools.product(*grids):
            candidate = _with_efficiencies(float(step_s), 1 / float(weight_s) if weight_s else math.inf, runs)
            squares = sum(error**2 for error in candidate.relative_errors)
            if squares < least:
                best, least = candidate, squares
        grids = (
            best.step_s * np.linspace(0.75, 1.25, 9),
            np.array([1 / best.weights_gb_s]) * np.linspace(0.6, 1.4, 5),
        )
    return best


def _with_efficiencies(step_s: float, weights_gb_s: float, runs: Sequence[MeasuredRun]) -> Overlap:
    """The best efficiency for each set of trainers, given the rest."""
    bounds = []
    for run in runs:
        host = replace(
            run.platform.host, step_s=step_s, weights_gb_s=weights_gb_s, core_efficiency=1.0, efficiency_of={}
        )
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        slowest = max(times.stages_s.values())
        cores_s = (times.core_s or 0.0) / (host.cores or 1)
        bounds.append((times.host_trainers, slowest, cores_s, run.iteration_s))
    efficiency_of = {}
    for kinds in sorted({kinds for kinds, *_ in bounds}):
        mine = [(slowest, cores_s, seen) for name, slowest, cores_s, seen in bounds if name == kinds]
        stage_s, core_s, seen_s = (np.array(column)[:, None] for column in zip(*mine, strict=True))
        squares = ((np.maximum(stage_s, core_s / _EFFICIENCY) / seen_s - 1) ** 2).sum(0)
        # Of equally good ones the highest: where the cores do not bound a run, nothing is lost.
        efficiency_of[kinds] = float(_EFFICIENCY[len(_EFFICIENCY) - 1 - int(np.argmin(squares[::-1]))])
    errors = tuple(
        max(slowest, cores_s / efficiency_of[kinds]) / seen - 1 for kinds, slowest, cores_s, seen in bounds
    )
    return Overlap(step_s, weights_gb_s, float(np.mean(list(efficiency_of.values()))), efficiency_of, errors)
