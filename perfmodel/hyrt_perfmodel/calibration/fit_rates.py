"""A trainer's rates from measured step times: the coefficients of the model's fixed terms."""

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
    """Rates and how well they explain what was measured."""

    rates: TrainerRates
    """The coefficients."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured, one a measurement."""


def fit_rates(
    workloads: Sequence[Workload],
    seconds: Sequence[float],
) -> FittedRates:
    """The rates with which T_trainer comes nearest to measured times: relative least squares, terms >= 0.

    A term that the measurements do not need costs nothing: its rate is infinite.

    Parameters
    ----------
    workloads
        What was propagated, with the first layer's edges left out where they had been aggregated before.
    seconds
        The time that each took, in seconds; of the host, with one thread.

    Raises
    ------
    ValueError
        If there are fewer measurements than terms.
    """
    terms = np.array([_terms(each) for each in workloads])
    measured = np.array(seconds, float)
    if len(measured) < terms.shape[1]:
        raise ValueError(f"{len(measured)} measurements cannot fit {terms.shape[1]} terms")
    found = non_negative(terms / measured[:, None])
    errors = terms @ found / measured - 1

    def rate(coefficient: float) -> float:
        return 1 / float(coefficient) if coefficient > 0 else math.inf

    return FittedRates(
        TrainerRates(
            launch_s=float(found[0]),
            memory_gb_s=rate(found[1]) / 1e9,
            macs_per_s=rate(found[2]),
            values_per_s=rate(found[3]),
            edges_per_s=rate(found[4]),
            layer_s=float(found[5]),
            weights_per_s=rate(found[6]),
            results_per_s=rate(found[7]),
            rows_per_s=rate(found[8]),
        ),
        tuple(float(error) for error in errors),
    )


def with_sparse_launch(rates: TrainerRates, workload: Workload, seconds: float) -> TrainerRates:
    """The rates of a trainer that takes sparse rows, from a measurement of a very small step over them.

    Parameters
    ----------
    rates
        Those over dense rows.
    workload
        A step of two layers over sparse rows, so small that launches are nearly all of it.
    seconds
        The time that it took, in seconds.
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
    """The rates of the host's trainer with all threads, from those with one and a few measurements.

    Fixed costs are the interpreter's and stay, with those of weights, which one thread reads and writes.
    Everything else is faster by one factor, and each layer that is shared costs the waking of threads. Both
    are what explains the measurements best, in the mean of squared relative errors.

    Parameters
    ----------
    alone
        The rates with one thread.
    workloads, seconds
        What was propagated with all threads, and the time that each took, in seconds.
    threads, chunk_rows
        How many threads there were, and how many rows each computes at a time.
    """
    apart, measured = [layers_apart(work) for work in workloads], np.array(seconds, float)
    costs = _costs(alone)
    fixed = np.array([(np.array(_terms(work)) * costs)[_FIXED].sum() for work in workloads])

    def layer_s(rates: TrainerRates, work: Workload) -> float:
        return float((np.array(_terms(work)) * _costs(rates))[_SHARED].sum())

    def error(rates: TrainerRates) -> float:
        predicted = fixed + [
            layers_shared_s(layers, alone, rates, threads, threads, layer_s) for layers in apart
        ]
        return float(np.mean((predicted / measured - 1) ** 2))

    candidates = [
        replace(faster(alone, factor), chunk_rows=chunk_rows, waking_s=waking_s)
        for factor in np.linspace(1.0, threads, 21).tolist()
        for waking_s in _WAKING_S
    ]
    return min(candidates, key=error)


def faster(rates: TrainerRates, factor: float) -> TrainerRates:
    """Rates by which everything but fixed costs and weights takes less by a factor."""
    names = ("memory_gb_s", "macs_per_s", "values_per_s", "edges_per_s", "results_per_s", "rows_per_s")
    return replace(rates, **{name: factor * getattr(rates, name) for name in names})


_WAKING_S = [50e-6 * each for each in range(31)]
# Places of the terms that threads share, and of those that one thread does.
_SHARED, _FIXED = [1, 2, 3, 4, 7, 8], [0, 5, 6]


def _terms(workload: Workload) -> tuple[float, ...]:
    """What a step's time is linear in: the step, bytes aggregated, multiply-accumulates, values, rows along
    edges, layers (or calls) beyond two, weights, values of results, rows of results.
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
    """What one of each term takes, in seconds."""
    per_s = (rates.memory_bytes_per_s, rates.macs_per_s, rates.values_per_s, rates.edges_per_s)
    layer_s = rates.launched_s(3) - rates.launched_s(2)
    return np.array(
        [
            *(rates.launch_s, *(1 / each for each in per_s), layer_s, 1 / rates.weights_per_s),
            *(1 / rates.results_per_s, 1 / rates.rows_per_s),
        ]
    )


def non_negative(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
    """Coefficients >= 0 that bring every row's sum nearest to 1, over all sets of positive terms."""
    count = scaled.shape[1]
    best, least = np.zeros(count), math.inf
    for size in range(1, count + 1):
        for chosen in itertools.combinations(range(count), size):
            part, *_ = np.linalg.lstsq(scaled[:, chosen], np.ones(len(scaled)), rcond=None)
            if part.min() < 0:
                continue
            residual = float(np.sum((scaled[:, chosen] @ part - 1) ** 2))
            if residual < least:
                least = residual
                best = np.zeros(count)
                best[list(chosen)] = part
    return best
