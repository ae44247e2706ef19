"""A trainer's rates from measured step times: the coefficients of the model's fixed terms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.platforms.platform import TrainerRates
from hyrt_perfmodel.prediction.extra_terms import num_edge_rows, num_values, weight_gradients_s
from hyrt_perfmodel.prediction.shared_rows import shared_in_chunks
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
    *,
    chunk_rows: int | None = None,
    threads: int = 1,
) -> FittedRates:
    """The rates with which T_trainer comes nearest to measured times: relative least squares, terms >= 0.

    A term that the measurements do not need costs nothing: its rate is infinite.

    Parameters
    ----------
    workloads
        What was propagated, with the first layer's edges left out where they had been aggregated before.
    seconds
        The time that each took, in seconds.
    chunk_rows, threads
        How many rows a thread computes at a time, and how many threads there were.

    Raises
    ------
    ValueError
        If there are fewer measurements than terms.
    """
    terms = np.array([_terms(shared_in_chunks(each, chunk_rows, threads)) for each in workloads])
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
            chunk_rows=chunk_rows,
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


def slowed_rates(
    rates: TrainerRates, workloads: Sequence[Workload], seconds: Sequence[float]
) -> TrainerRates:
    """The rates of a trainer with fewer threads, from a few measurements of it.

    Fixed costs are the interpreter's and stay, with those of weights, which one thread reads and writes;
    everything else is slower by one factor, that of relative least squares.

    Parameters
    ----------
    rates
        Those with all threads.
    workloads, seconds
        What was propagated with fewer, and the time that each took, in seconds.

    Returns
    -------
    The rates; the same where fewer threads were not slower.
    """
    terms = np.array([_terms(workload) for workload in workloads])
    measured = np.array(seconds, float)
    each = terms * _costs(rates) / measured[:, None]
    part, left = each[:, _SHARED].sum(1), 1 - each[:, _FIXED].sum(1)
    factor = max(1.0, float(part @ left / (part @ part)))
    return replace(
        rates,
        memory_gb_s=rates.memory_gb_s / factor,
        macs_per_s=rates.macs_per_s / factor,
        values_per_s=rates.values_per_s / factor,
        edges_per_s=rates.edges_per_s / factor,
    )


# Places of the terms that threads share, and of those that one thread does.
_SHARED, _FIXED = [1, 2, 3, 4], [0, 5, 6]


def _terms(workload: Workload) -> tuple[float, ...]:
    """What a step's time is linear in: the step, bytes aggregated, multiply-accumulates, values, rows along
    edges, layers beyond two, weights.
    """
    aggregated = trainer_s(workload, 1.0, math.inf)
    macs = trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)
    values, edge_rows = num_values(workload), num_edge_rows(workload)
    return 1.0, aggregated, macs, values, edge_rows, workload.layers - 2.0, workload.num_weights


def _costs(rates: TrainerRates) -> NDArray[np.float64]:
    """What one of each term takes, in seconds."""
    per_s = (rates.memory_bytes_per_s, rates.macs_per_s, rates.values_per_s, rates.edges_per_s)
    layer_s = rates.launched_s(3) - rates.launched_s(2)
    return np.array([rates.launch_s, *(1 / each for each in per_s), layer_s, 1 / rates.weights_per_s])


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
