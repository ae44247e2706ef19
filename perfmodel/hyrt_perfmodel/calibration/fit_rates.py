"""A trainer's rates from measured step times: the coefficients of the model's fixed terms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.platforms.platform import TrainerRates
from hyrt_perfmodel.prediction.extra_terms import launches, num_edge_rows, num_values, weight_gradients_s
from hyrt_perfmodel.prediction.stages import trainer_s
from hyrt_perfmodel.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class FittedRates:
    """Rates and how well they explain what was measured."""

    rates: TrainerRates
    """The coefficients."""
    relative_errors: tuple[float, ...]
    """(predicted - measured) / measured, one a measurement."""


def fit_rates(workloads: Sequence[Workload], seconds: Sequence[float]) -> FittedRates:
    """The rates with which T_trainer comes nearest to measured times: relative least squares, terms >= 0.

    A term that the measurements do not need costs nothing: its rate is infinite.

    Parameters
    ----------
    workloads
        What was propagated, with the first layer's edges left out where they had been aggregated before.
    seconds
        The time that each took, in seconds.

    Raises
    ------
    ValueError
        If there are fewer measurements than terms.
    """
    terms = np.array([_terms(workload) for workload in workloads])
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
        ),
        tuple(float(error) for error in errors),
    )


def slowed_rates(
    rates: TrainerRates, workloads: Sequence[Workload], seconds: Sequence[float]
) -> TrainerRates:
    """The rates of a trainer with fewer threads, from a few measurements of it.

    Fixed costs are the interpreter's and stay; everything else is slower by one factor, that of relative
    least squares.

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
    per_s = (rates.memory_bytes_per_s, rates.macs_per_s, rates.values_per_s, rates.edges_per_s)
    costs = [1 / each for each in per_s]
    part = terms[:, 1:] @ costs / measured
    left = 1 - rates.launch_s * terms[:, 0] / measured
    factor = max(1.0, float(part @ left / (part @ part)))
    return TrainerRates(
        launch_s=rates.launch_s,
        memory_gb_s=rates.memory_gb_s / factor,
        macs_per_s=rates.macs_per_s / factor,
        values_per_s=rates.values_per_s / factor,
        edges_per_s=rates.edges_per_s / factor,
    )


def _terms(workload: Workload) -> tuple[float, float, float, float, float]:
    """What a step's time is linear in: launches, bytes aggregated, multiply-accumulates, values, edges."""
    aggregated = trainer_s(workload, 1.0, math.inf)
    macs = trainer_s(workload, math.inf, 1.0) + weight_gradients_s(workload, 1.0)
    return launches(workload), aggregated, macs, num_values(workload), num_edge_rows(workload)


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
