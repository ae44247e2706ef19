"""What to buy or change next: the platform or the work with one thing better, predicted again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hyrt_perfmodel.platforms.platform import Accelerator, Platform, TrainerRates
from hyrt_perfmodel.prediction.extra_terms import Terms
from hyrt_perfmodel.prediction.predict import Prediction, predict, with_accelerators
from hyrt_perfmodel.prediction.stage_times import StepModel
from hyrt_perfmodel.workloads.workload import TrainingWorkload

# A change that saves less is not worth a line.
_WORTH = 0.03
# A row of int8 has a scale.
_SCALE_BYTES = 4
# Caches to propose, as parts of all rows.
_CACHES = (0.1, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One change and what it gives."""

    change: str
    """What changes, in a few words."""
    epoch_s: float
    bottleneck: str
    """`epoch_s` and `bottleneck`: the prediction with the change."""
    moved: float = 1.0
    """Bytes of feature rows that a step then moves to the accelerators, or reads where none is sent any, over
    those that it moves now, of the same split."""


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
    """The changes that save most, the best first; none where nothing does.

    Parameters
    ----------
    platform, training
        The machine and the work as they are.
    now
        The prediction for the machine as it is.
    terms, paper
        The options that the prediction was made with.
    others
        Further changes of the work, each in a few words with the work that it makes of this one.
    ways
        Other ways to run the same work, each in a few words with its terms.
    most
        How many to name.
    """
    found = []
    before = _moved_bytes(platform, training, now, terms)
    further = [
        *((*change, terms) for change in _changes(platform, training)),
        *((change, platform, work, terms) for change, work in others),
        *((change, platform, training, way) for change, way in ways),
    ]
    for change, other, work, way in further:
        try:
            then = predict(other, work, terms=way, paper=paper)
        except ValueError:
            continue  # It does not fit into the memories, so it is no advice.
        if then.epoch_s < now.epoch_s * (1 - _WORTH):
            moved = 1.0
            if other is platform and before:
                moved = _moved_bytes(platform, work, now, terms) / before
            found.append(Advice(change=change, epoch_s=then.epoch_s, bottleneck=then.bottleneck, moved=moved))
    return sorted(found, key=lambda advice: advice.epoch_s)[:most]


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
        more = replace(
            host,
            cores=2 * host.cores,
            macs_per_s=2 * host.macs_per_s,
            values_per_s=2 * host.values_per_s,
            models={kind: _more_cores(rates) for kind, rates in host.models.items()},
        )
        yield "twice the cores", replace(platform, host=more), training
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
    # The tables of a typed graph stay as they are stored.
    if sample.sparse is None and sample.edge_bytes is None and not training.resident:
        width = sample.features[0]
        for words, row_bytes in (
            ("features in 16 bits (data.rows=float16)", 2.0 * width),
            ("features in 8 bits (data.rows=int8)", width + _SCALE_BYTES),
        ):
            if row_bytes < sample.dense_row_bytes:
                yield words, platform, training.with_rows_of(row_bytes)
        # The kernels of a known design keep none.
        keeps = any(each.design is None for each in platform.accelerators)
        if training.hit_rate is not None and not training.kept_part and keeps:
            for part in _CACHES:
                words = f"{part:.0%} of the rows kept on each accelerator (data.cache={part:.0%})"
                yield words, platform, replace(training, kept_part=part)


def _moved_bytes(
    platform: Platform, training: TrainingWorkload, now: Prediction, terms: Terms | None
) -> float:
    """Bytes of feature rows that a step of the predicted split sends to accelerators; where it sends none,
    that loading reads.
    """
    model = StepModel(platform, training, Terms() if terms is None else terms)
    busy = [
        (trainer, training.at(units))
        for trainer, units in zip(model.trainers, now.assignment.split, strict=True)
        if units
    ]
    return sum(model.link_bytes(*each) for each in busy) or sum(model.load_bytes(*each) for each in busy)


def _more_cores(rates: TrainerRates) -> TrainerRates:
    """The CPU trainer's with twice the cores: products double, the memory stays."""
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
