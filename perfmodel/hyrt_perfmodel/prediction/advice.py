"""Advice on what to buy or change next: predictions with one property of the platform or the work
improved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hyrt_perfmodel.platforms.platform import Accelerator, Platform, TrainerRates
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.predict import Prediction, predict, with_accelerators
from hyrt_perfmodel.prediction.stage_times import StepModel
from hyrt_perfmodel.workloads.workload import TrainingWorkload

# Minimum relative saving for a change to be listed.
_WORTH = 0.03
# A row of int8 values has a scale.
_SCALE_BYTES = 4
# Cache sizes to propose, as fractions of all rows.
_CACHES = (0.1, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change and its predicted effect."""

    change: str
    """Short description of the change."""
    epoch_s: float
    bottleneck: str
    """`epoch_s` and `bottleneck`: the prediction with the change."""
    moved: float = 1.0
    """Ratio of feature bytes moved per step after and before the change, for the same split: bytes
    transferred to accelerators or, if nothing is transferred, bytes that loading reads."""


def advise(
    platform: Platform,
    training: TrainingWorkload,
    now: Prediction,
    *,
    terms: Terms | None = None,
    paper: bool = False,
    others: Sequence[tuple[str, TrainingWorkload]] = (),
    ways: Sequence[tuple[str, Terms]] = (),
    most: int = 3,
) -> list[Advice]:
    """Return the changes that save most, best first.

    Parameters
    ----------
    platform, training
        The current machine and work.
    now
        Prediction for the current machine and work.
    terms, paper
        Options of that prediction.
    others
        Further changes of the work, as (description, changed work) pairs.
    ways
        Other ways to run the same work, as (description, terms) pairs.
    most
        Maximum number of changes to return.
    """
    advice = []
    moved_before = _moved_bytes(platform, training, now, terms)
    changes = [
        *((*change, terms) for change in _changes(platform, training)),
        *((change, platform, work, terms) for change, work in others),
        *((change, platform, training, changed_terms) for change, changed_terms in ways),
    ]
    for change, changed_platform, work, changed_terms in changes:
        try:
            prediction = predict(changed_platform, work, terms=changed_terms, paper=paper)
        except ValueError:
            continue  # The change does not fit into memory.
        if prediction.epoch_s < now.epoch_s * (1 - _WORTH):
            moved_ratio = 1.0
            if changed_platform is platform and moved_before:
                moved_ratio = _moved_bytes(platform, work, now, terms) / moved_before
            advice.append(
                Advice(
                    change=change,
                    epoch_s=prediction.epoch_s,
                    bottleneck=prediction.bottleneck,
                    moved=moved_ratio,
                )
            )
    return sorted(advice, key=lambda entry: entry.epoch_s)[:most]


def _changes(
    platform: Platform, training: TrainingWorkload
) -> Iterator[tuple[str, Platform, TrainingWorkload]]:
    host = platform.host
    yield (
        "host memory twice as fast",
        replace(
            platform,
            host=replace(
                host,
                memory_gb_s=2 * host.memory_gb_s,
                loading=tuple(
                    replace(cost, row_s=cost.row_s / 2, gb_s=2 * cost.gb_s) for cost in host.loading
                ),
            ),
        ),
        training,
    )
    if host.cores:
        larger = replace(
            host,
            cores=2 * host.cores,
            macs_per_s=2 * host.macs_per_s,
            values_per_s=2 * host.values_per_s,
            models={kind: _more_cores(rates) for kind, rates in host.models.items()},
        )
        yield "twice the cores", replace(platform, host=larger), training
    if training.sample_s:
        yield "sampling twice as fast", platform, replace(training, sample_s=training.sample_s / 2)
    elif host.thread_edges_per_s is not None and not host.sampling:
        faster = replace(host, thread_edges_per_s=2 * host.thread_edges_per_s)
        yield "sampling twice as fast", replace(platform, host=faster), training
    links = tuple(
        replace(accelerator, link_gb_s=2 * accelerator.link_gb_s) for accelerator in platform.accelerators
    )
    if links:
        yield "links twice as fast", replace(platform, accelerators=links), training
        count = sum(accelerator.count for accelerator in platform.accelerators)
        kind = platform.accelerators[0].kind
        yield f"one more {kind}", with_accelerators(platform, count + 1), training
    for i, accelerator in enumerate(platform.accelerators):
        kinds = (*platform.accelerators[:i], _faster(accelerator), *platform.accelerators[i + 1 :])
        yield f"{accelerator.kind} computing twice as fast", replace(platform, accelerators=kinds), training
    sample = training.at(1.0)
    # The feature tables of a heterogeneous graph stay in their stored format.
    if sample.sparse is None and sample.edge_bytes is None and not training.resident:
        width = sample.features[0]
        for description, row_bytes in (
            ("features in 16 bits (data.rows=float16)", 2.0 * width),
            ("features in 8 bits (data.rows=int8)", width + _SCALE_BYTES),
        ):
            if row_bytes < sample.dense_row_bytes:
                yield description, platform, training.with_rows_of(row_bytes)
        # FPGA kernels of a known design cache no rows.
        can_cache = any(accelerator.design is None for accelerator in platform.accelerators)
        if training.hit_rate is not None and not training.kept_part and can_cache:
            for fraction in _CACHES:
                description = (
                    f"{fraction:.0%} of the rows kept on each accelerator (data.cache={fraction:.0%})"
                )
                yield description, platform, replace(training, kept_part=fraction)


def _moved_bytes(
    platform: Platform, training: TrainingWorkload, now: Prediction, terms: Terms | None
) -> float:
    """Return the feature bytes that a step of the predicted split transfers to accelerators.

    If nothing is transferred, return the bytes that loading reads.
    """
    model = StepModel(platform, training, Terms() if terms is None else terms)
    busy = [
        (trainer, training.at(units))
        for trainer, units in zip(model.trainers, now.assignment.split, strict=True)
        if units
    ]
    return sum(model.link_bytes(*entry) for entry in busy) or sum(model.load_bytes(*entry) for entry in busy)


def _more_cores(rates: TrainerRates) -> TrainerRates:
    """Return the CPU trainer's rates with twice the cores: compute rates double, memory bandwidth stays."""
    return replace(
        rates,
        macs_per_s=2 * rates.macs_per_s,
        values_per_s=2 * rates.values_per_s,
        edges_per_s=2 * rates.edges_per_s,
        results_per_s=2 * rates.results_per_s,
        rows_per_s=2 * rates.rows_per_s,
    )


def _twice(rates: TrainerRates) -> TrainerRates:
    return replace(_more_cores(rates), memory_gb_s=2 * rates.memory_gb_s)


def _faster(accelerator: Accelerator) -> Accelerator:
    return replace(
        accelerator,
        memory_gb_s=2 * accelerator.memory_gb_s,
        macs_per_s=2 * accelerator.macs_per_s,
        values_per_s=2 * accelerator.values_per_s,
        models={kind: _twice(rates) for kind, rates in accelerator.models.items()},
    )
