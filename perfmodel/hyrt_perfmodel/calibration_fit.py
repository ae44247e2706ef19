"""Fits of the performance model to measurements: trainer rates, synchronization cost, core contention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.platform import CoreContention, Host, Platform, TrainerRates
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction.stage_times import (
    contended_step_s,
    core_excess_s,
    host_trainers,
    iteration_s,
    pipeline_s,
    stage_times,
)
from hyrt_perfmodel.prediction.stages import (
    ExtraTerms,
    num_edge_rows,
    num_results,
    num_values,
    sparse_macs,
    split_layers,
    synchronize_s,
    threaded_layers_s,
    trainer_s,
    weight_gradients_s,
    without_sparse_product,
)
from hyrt_perfmodel.workload import TrainingWorkload, Workload


@dataclass(frozen=True, slots=True)
class FittedRates:
    """Rates of a trainer, and their errors on the measurements."""

    rates: TrainerRates
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured of each measurement."""


def fit_rates(
    workloads: Sequence[Workload],
    seconds: Sequence[float],
) -> FittedRates:
    """Fit a trainer's rates to measured T_trainer by relative least squares with nonnegative terms.

    `workloads` are the propagated workloads, without the first layer's edges if the input was already
    aggregated. `seconds` are the propagation times, which on the host are those with one thread. A term that
    has no effect on the measurements gets an infinite rate, and thus no cost. Raises ValueError if there are
    fewer measurements than terms.
    """
    terms = np.array([_terms(work) for work in workloads])
    measured = np.array(seconds, float)
    if len(measured) < terms.shape[1]:
        raise ValueError(
            f"{len(measured)} measurements are too few to fit {terms.shape[1]} terms: add measurements"
        )
    coefficients = fit_nonnegative(terms / measured[:, None])
    errors = terms @ coefficients / measured - 1

    def rate(coefficient: float) -> float:
        return 1 / float(coefficient) if coefficient > 0 else math.inf

    return FittedRates(
        TrainerRates(
            launch_s=float(coefficients[0]),
            memory_gb_s=rate(coefficients[1]) / 1e9,
            macs_per_s=rate(coefficients[2]),
            values_per_s=rate(coefficients[3]),
            edges_per_s=rate(coefficients[4]),
            layer_s=float(coefficients[5]),
            weights_per_s=rate(coefficients[6]),
            results_per_s=rate(coefficients[7]),
            rows_per_s=rate(coefficients[8]),
        ),
        tuple(float(error) for error in errors),
    )


def with_sparse_launch(rates: TrainerRates, workload: Workload, seconds: float) -> TrainerRates:
    """Return the rates of a trainer for dense rows, with the launch cost for sparse rows added.

    `seconds` is the time of a two-layer step over sparse rows, which is so small that launches dominate.
    """
    after = without_sparse_product(workload)
    costs = _costs(replace(rates, launch_s=0.0))
    sized_s = float(np.array(_terms(after)) @ costs) + sparse_macs(workload) / rates.macs_per_s
    return replace(rates, sparse_launch_s=max(0.0, seconds - sized_s))


def fit_threaded_rates(
    single_thread: TrainerRates,
    workloads: Sequence[Workload],
    seconds: Sequence[float],
    *,
    threads: int,
    chunk_rows: int,
) -> TrainerRates:
    """Fit the host trainer's rates with all threads, given its single-thread rates and a few steps.

    Fixed costs do not change, because they are interpreter costs; nor does the cost of weights, which one
    thread reads and writes. All other terms are sped up by one factor, and each shared layer adds the cost of
    waking threads. The factor and the waking cost minimize the mean squared relative error over `workloads`,
    which were propagated with all threads. Each thread computes `chunk_rows` rows at a time.
    """
    layers_of_runs, measured = [split_layers(work) for work in workloads], np.array(seconds, float)
    costs = _costs(single_thread)
    fixed = np.array([(np.array(_terms(work)) * costs)[_FIXED].sum() for work in workloads])

    def layer_s(rates: TrainerRates, work: Workload) -> float:
        return float((np.array(_terms(work)) * _costs(rates))[_SHARED].sum())

    def error(rates: TrainerRates) -> float:
        predicted = fixed + [
            threaded_layers_s(layers, single_thread, rates, threads, threads, layer_s)
            for layers in layers_of_runs
        ]
        return float(np.mean((predicted / measured - 1) ** 2))

    candidates = [
        replace(scale_rates(single_thread, factor), chunk_rows=chunk_rows, waking_s=waking_s)
        for factor in np.linspace(1.0, threads, 21).tolist()
        for waking_s in _WAKING_S
    ]
    return min(candidates, key=error)


def scale_rates(rates: TrainerRates, factor: float) -> TrainerRates:
    """Return rates that are `factor` times as fast, except for fixed costs and weights."""
    names = ("memory_gb_s", "macs_per_s", "values_per_s", "edges_per_s", "results_per_s", "rows_per_s")
    return replace(rates, **{name: factor * getattr(rates, name) for name in names})


_WAKING_S = [50e-6 * each for each in range(31)]
# Indices of the terms that threads share, and of the terms that a single thread computes.
_SHARED, _FIXED = [1, 2, 3, 4, 7, 8], [0, 5, 6]


def _terms(workload: Workload) -> tuple[float, ...]:
    """Return the variables in which a step's time is linear.

    The variables are: 1 (per step), aggregated bytes, multiply-accumulates, values, rows along edges, layers
    (or calls) beyond two, weights, result values, and result rows.
    """
    aggregated = trainer_s(workload, 1.0, math.inf)
    macs = trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)
    values, edge_rows = num_values(workload), num_edge_rows(workload)
    results, rows = num_results(workload), sum(workload.vertices[1:])
    return (
        *(1.0, aggregated, macs, values, edge_rows, workload.effective_layers - 2.0, workload.num_weights),
        *(results, rows),
    )


def _costs(rates: TrainerRates) -> NDArray[np.float64]:
    """Return the seconds per unit of each term."""
    per_s = (rates.memory_bytes_per_s, rates.macs_per_s, rates.values_per_s, rates.edges_per_s)
    layer_s = rates.fixed_s(3) - rates.fixed_s(2)
    return np.array(
        [
            *(rates.launch_s, *(1 / rate for rate in per_s), layer_s, 1 / rates.weights_per_s),
            *(1 / rates.results_per_s, 1 / rates.rows_per_s),
        ]
    )


def fit_nonnegative(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return coefficients >= 0 with which the sums of the rows are closest to 1 (least squares).

    Each set of columns is tried as the set with positive coefficients.
    """
    count = scaled.shape[1]
    best, min_residual = np.zeros(count), math.inf
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            solution, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(scaled)), rcond=None)
            if solution.min() < 0:
                continue
            residual = float(np.sum((scaled[:, chosen] @ solution - 1) ** 2))
            if residual < min_residual:
                min_residual = residual
                best = np.zeros(count)
                best[list(chosen)] = solution
    return best


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """Measurements of one training run."""

    platform: Platform
    """Platform that contains only the run's trainers."""
    training: TrainingWorkload
    assignment: Assignment
    iteration_s: float
    synchronize_s: float
    """Wall time of the synchronization of a step; `iteration_s` is that of the whole step."""
    gap_s: float
    """Time between the synchronization of a step and the propagation of the next step."""

    @property
    def host_kinds(self) -> str:
        """Kinds of the trainers that had targets and compute on host cores, as a key of `Host.sharing_of`."""
        trainers = self.platform.trainers(self.training.model)
        return host_trainers(
            [trainer for trainer, units in zip(trainers, self.assignment.split, strict=True) if units]
        )


@dataclass(frozen=True, slots=True)
class StageOverlapFit:
    """Fitted values of `Host`, and their errors on the runs."""

    weights_gb_s: float
    sharing_of: Mapping[str, CoreContention]
    """Core contention by set of trainers, over which the general values of `Host` are means."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured of each run."""

    def apply_to(self, host: Host) -> Host:
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
# Candidate waiting times per step for the interpreter lock, which sampling and loading hold. At the end of
# each call, the thread that needs the lock sleeps and has to be woken.
_LOCK_S = np.linspace(0.0, 2e-3, 41)


def fit_stage_overlap(runs: Sequence[MeasuredRun]) -> StageOverlapFit:
    """Fit the synchronization cost, the waiting time per step and the core efficiency to training runs.

    Synchronization has a cost per step for each set of host trainers, and a cost per weight, which are fitted
    to its measured times. The waiting time of a set is the lower quartile of its step times outside
    propagation and synchronization, because trainers also wait for slow earlier stages. Compared with a
    trainer alone, propagation waits for the interpreter lock once per step, and its work is divided by the
    efficiency. Both values minimize the sum of absolute relative errors over the steps of a set, which is
    less sensitive to a disturbed run than the total time. Raises ValueError if there are no runs.
    """
    if not runs:
        raise ValueError("there are no runs to fit the costs to: pass at least one run")
    sets = sorted({run.host_kinds for run in runs})
    terms = np.array(
        [[*(run.host_kinds == kinds for kinds in sets), _weights_gb(run)] for run in runs], float
    )
    *steps_s, weight_s = fit_nonnegative(terms / np.array([[run.synchronize_s] for run in runs])).tolist()
    weights_gb_s = 1 / weight_s if weight_s else math.inf
    sharing_of = {
        kinds: _fit_contention([run for run in runs if run.host_kinds == kinds], weights_gb_s, step_s)
        for kinds, step_s in zip(sets, steps_s, strict=True)
    }
    fit = StageOverlapFit(weights_gb_s, sharing_of, ())
    errors = []
    for run in runs:
        host = fit.apply_to(run.platform.host)
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        errors.append(iteration_s(times, host) / run.iteration_s - 1)
    return replace(fit, relative_errors=tuple(errors))


def _weights_gb(run: MeasuredRun) -> float:
    """Return the size of the gradients and weights that a step moves, in 1e9 bytes."""
    return synchronize_s(run.training.at(run.training.batch_size), 1e9)


def _fit_contention(runs: Sequence[MeasuredRun], weights_gb_s: float, step_s: float) -> CoreContention:
    """Fit the waiting times and the efficiency of one set of trainers to its runs."""
    gaps = sorted(run.gap_s for run in runs)
    sharing = CoreContention(step_s=step_s, efficiency=1.0, wait_s=max(0.0, gaps[len(gaps) // 4]))
    total = np.zeros((len(_LOCK_S), len(_EFFICIENCIES)))
    for run in runs:
        host = replace(run.platform.host, weights_gb_s=weights_gb_s, sharing_of={run.host_kinds: sharing})
        times = stage_times(replace(run.platform, host=host), run.training, run.assignment)
        stages_s, beyond_s = pipeline_s(times, ExtraTerms()), core_excess_s(times, host)
        predicted = [
            [contended_step_s(times, stages_s, beyond_s, efficiency, lock_s) for efficiency in _EFFICIENCIES]
            for lock_s in _LOCK_S
        ]
        total += np.abs(np.array(predicted) / run.iteration_s - 1)
    # If several pairs are equally good, choose the shortest wait and the highest efficiency.
    lock, column = np.unravel_index(int(np.argmin(total[:, ::-1])), total.shape)
    return replace(
        sharing,
        efficiency=float(_EFFICIENCIES[::-1][column]),
        lock_s=float(_LOCK_S[lock]),
    )
