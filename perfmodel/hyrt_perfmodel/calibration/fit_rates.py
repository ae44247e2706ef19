"""Fit of a trainer's rates to measured step times."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.platforms.platform import TrainerRates
from hyrt_perfmodel.prediction.extra_terms import num_edge_rows, num_results, num_values, weight_gradients_s
from hyrt_perfmodel.prediction.host_threads import layers_apart, layers_shared_s
from hyrt_perfmodel.prediction.sparse_terms import multiplied_first, sparse_macs
from hyrt_perfmodel.prediction.stages import trainer_s
from hyrt_perfmodel.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class FittedRates:
    """Rates, and how well they explain the measurements."""

    rates: TrainerRates
    """The fitted coefficients."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured, per measurement."""


def fit_rates(
    workloads: Sequence[Workload],
    seconds: Sequence[float],
) -> FittedRates:
    """Fit rates to measured T_trainer by relative least squares with nonnegative terms.

    A term that the measurements do not need gets an infinite rate, and thus no cost.

    Parameters
    ----------
    workloads
        Propagated workloads, without the first layer's edges if the input was already aggregated.
    seconds
        Time per workload, in seconds; for the host, with one thread.

    Raises
    ------
    ValueError
        If there are fewer measurements than terms.
    """
    terms = np.array([_terms(work) for work in workloads])
    measured = np.array(seconds, float)
    if len(measured) < terms.shape[1]:
        raise ValueError(f"{len(measured)} measurements cannot fit {terms.shape[1]} terms")
    coefficients = non_negative(terms / measured[:, None])
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
    """Add the launch cost over sparse rows, from the measured time of a very small step.

    Parameters
    ----------
    rates
        Rates over dense rows.
    workload
        A step of two layers over sparse rows, small enough that launches dominate its time.
    seconds
        Measured time, in seconds.
    """
    after = multiplied_first(workload)
    costs = _costs(replace(rates, launch_s=0.0))
    sized_s = float(np.array(_terms(after)) @ costs) + sparse_macs(workload) / rates.macs_per_s
    return replace(rates, sparse_launch_s=max(0.0, seconds - sized_s))


def shared_rates(
    alone: TrainerRates,
    workloads: Sequence[Workload],
    seconds: Sequence[float],
    *,
    threads: int,
    chunk_rows: int,
) -> TrainerRates:
    """Fit the rates of the host trainer with all threads, from its single-thread rates and a few
    measurements.

    Fixed costs are interpreter costs and stay, like the cost of weights, which one thread reads and writes.
    Everything else is sped up by one factor, and each shared layer adds the cost of waking threads. Factor
    and waking cost minimize the mean squared relative error.

    Parameters
    ----------
    alone
        Rates with one thread.
    workloads, seconds
        Workloads propagated with all threads, and the time of each, in seconds.
    threads, chunk_rows
        Number of threads, and rows that each computes at a time.
    """
    layers_of_runs, measured = [layers_apart(work) for work in workloads], np.array(seconds, float)
    costs = _costs(alone)
    fixed = np.array([(np.array(_terms(work)) * costs)[_FIXED].sum() for work in workloads])

    def layer_s(rates: TrainerRates, work: Workload) -> float:
        return float((np.array(_terms(work)) * _costs(rates))[_SHARED].sum())

    def error(rates: TrainerRates) -> float:
        predicted = fixed + [
            layers_shared_s(layers, alone, rates, threads, threads, layer_s) for layers in layers_of_runs
        ]
        return float(np.mean((predicted / measured - 1) ** 2))

    candidates = [
        replace(faster(alone, factor), chunk_rows=chunk_rows, waking_s=waking_s)
        for factor in np.linspace(1.0, threads, 21).tolist()
        for waking_s in _WAKING_S
    ]
    return min(candidates, key=error)


def faster(rates: TrainerRates, factor: float) -> TrainerRates:
    """Return rates that are `factor` times as fast, except for fixed costs and weights."""
    names = ("memory_gb_s", "macs_per_s", "values_per_s", "edges_per_s", "results_per_s", "rows_per_s")
    return replace(rates, **{name: factor * getattr(rates, name) for name in names})


_WAKING_S = [50e-6 * each for each in range(31)]
# Indices of the terms that threads share, and of the terms that one thread computes.
_SHARED, _FIXED = [1, 2, 3, 4, 7, 8], [0, 5, 6]


def _terms(workload: Workload) -> tuple[float, ...]:
    """Return the variables in which a step's time is linear.

    They are: the step, bytes aggregated, multiply-accumulates, values, rows along edges, layers (or calls)
    beyond two, weights, result values, result rows.
    """
    aggregated = trainer_s(workload, 1.0, math.inf)
    macs = trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)
    values, edge_rows = num_values(workload), num_edge_rows(workload)
    results, rows = num_results(workload), sum(workload.vertices[1:])
    return (
        *(1.0, aggregated, macs, values, edge_rows, workload.launched - 2.0, workload.num_weights),
        *(results, rows),
    )


def _costs(rates: TrainerRates) -> NDArray[np.float64]:
    """Return the seconds per unit of each term."""
    per_s = (rates.memory_bytes_per_s, rates.macs_per_s, rates.values_per_s, rates.edges_per_s)
    layer_s = rates.launched_s(3) - rates.launched_s(2)
    return np.array(
        [
            *(rates.launch_s, *(1 / rate for rate in per_s), layer_s, 1 / rates.weights_per_s),
            *(1 / rates.results_per_s, 1 / rates.rows_per_s),
        ]
    )


def non_negative(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Fit coefficients >= 0 that minimize the squared error of row sums to 1, over all sets of positive
    terms.
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
