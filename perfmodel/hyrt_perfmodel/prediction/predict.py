"""Prediction of training, and advice on changes that would make it faster."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hyrt_perfmodel.platform import Accelerator, Platform, PlatformTrainer, TrainerRates
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction import stages
from hyrt_perfmodel.prediction.initial_assignment import (
    feature_cache_bytes,
    host_memory_bytes,
    initial_assignment,
    trainer_full_graph_arrays,
    trainer_memory_bytes,
    weights_bytes,
)
from hyrt_perfmodel.prediction.stage_times import StageTimes, StepModel, iteration_s, pipeline_s, stage_times
from hyrt_perfmodel.prediction.stages import PAPER_TERMS, ExtraTerms
from hyrt_perfmodel.validation import check_kind
from hyrt_perfmodel.workload import TrainingWorkload

_GIB = 2**30
# Relative error of a platform whose rates were never compared with the machine: effective fractions of
# datasheet values (bandwidths at 60 to 90 %) are uncertain by about this much.
ASSUMED_ERROR = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Required and available memory of one device in bytes. `None` means unknown."""

    needed_bytes: float
    available_bytes: float | None

    @property
    def fits(self) -> bool:
        return self.available_bytes is None or self.needed_bytes <= self.available_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted performance of training on a platform."""

    platform: str
    source: str
    """Origin of the platform's rates."""
    trainers: tuple[str, ...]
    assignment: Assignment
    """Assignment that was given or chosen."""
    stages: StageTimes
    iteration_s: float
    iterations: int
    epoch_s: float
    throughput_mteps: float
    """Number of sampled edges per second, in millions."""
    bottleneck: str
    """Stage that limits the iteration, or `cores` if the sum of the stages on host cores does."""
    memory: Mapping[str, MemoryNeed]
    """Memory requirements of the host and of each accelerator with separate memory, by name."""
    ideal_epoch_s: float
    """Epoch time if the speeds of the trainers added up perfectly and nothing else took time."""
    relative_error: float
    arrays: Mapping[str, float] = field(default_factory=dict)
    """Bytes of each array in full-graph training."""
    is_upper_bound: bool = True
    """Whether `arrays` contains upper bounds instead of actual sizes."""
    gather_share: float | None = None
    """Fraction of propagation in full-graph training that reads rows along edges."""

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds of the four stages, and of synchronization, which is part of `propagate`."""
        return {**self.stages.stages_s, "synchronize": self.stages.synchronize_s}

    def to_json(self) -> dict[str, Any]:
        """Return the values that `hyrt predict --json` prints."""
        return {
            "platform": self.platform,
            "source": self.source,
            "stages_s": self.stages_s,
            "iteration_s": self.iteration_s,
            "epoch_s": self.epoch_s,
            "iterations": self.iterations,
            "throughput_mteps": self.throughput_mteps,
            "bottleneck": self.bottleneck,
            "assignment": {
                "split": dict(zip(self.trainers, self.assignment.split, strict=True)),
                "threads": self.assignment.threads.by_name(),
            },
            "memory_bytes": {
                name: {
                    "need": math.ceil(memory.needed_bytes),
                    "have": None if memory.available_bytes is None else math.floor(memory.available_bytes),
                }
                for name, memory in self.memory.items()
            },
            "ideal_epoch_s": self.ideal_epoch_s,
            "relative_error": self.relative_error,
            **self._full_graph_entries(),
        }

    def _full_graph_entries(self) -> dict[str, Any]:
        if not self.arrays:
            return {}
        arrays = {name: math.ceil(num_bytes) for name, num_bytes in self.arrays.items()}
        return {"arrays_bytes": arrays, "gather_share": self.gather_share}


def predict(
    platform: Platform,
    training: TrainingWorkload,
    *,
    assignment: Assignment | None = None,
    terms: ExtraTerms | None = None,
    paper: bool = False,
) -> Prediction:
    """Predict training on a platform.

    Parameters
    ----------
    platform, training
        Machine and work to predict.
    assignment
        Assignment of the steps, by default the best one (in the paper's form, `batch_per_trainer` targets per
        trainer).
    terms
        Terms that extend the paper's model, by default all of these.
    paper
        Whether to use exactly the paper's model: its terms, and no redistribution of targets.

    Raises
    ------
    ValueError
        If a step does not fit in the trainers' memory.
    """
    check_kind("platform", platform, Platform, "pass a platform from load_platform")
    check_kind("training", training, TrainingWorkload, "pass a TrainingWorkload")
    check_kind("paper", paper, bool, "pass True or False")
    terms = PAPER_TERMS if paper else ExtraTerms() if terms is None else terms
    trainers = platform.trainers(training.model)
    if paper:
        # The paper's T_load is bytes over bandwidth, even if a table or one thread's bandwidth is known.
        platform = replace(platform, host=replace(platform.host, loading=(), thread_load_gb_s=None))
        targets_per_trainer = training.batch_per_trainer or training.batch_size
        training = replace(training, batch_size=targets_per_trainer * len(trainers))
    if assignment is None:
        assignment = (
            _paper_assignment(training, platform)
            if paper
            else initial_assignment(platform, training, terms=terms)
        )
    times = stage_times(platform, training, assignment, terms)
    seconds = iteration_s(times, platform.host, terms)
    step = sum(assignment.split)
    iterations = math.ceil(training.targets_per_epoch / step)
    workloads = [training.at(units) for units in assignment.split if units]
    stages_s = pipeline_s(times, terms)
    full_graph: dict[str, Any] = {}
    if training.resident:
        [(trainer, work)] = [
            (trainer, training.at(units))
            for trainer, units in zip(trainers, assignment.split, strict=True)
            if units
        ]
        full_graph["arrays"] = trainer_full_graph_arrays(trainer, training, assignment.threads.train)
        full_graph["is_upper_bound"] = not trainer.is_host or training.full_graph_step is None
        model = StepModel(platform, training, terms)
        full_graph["gather_share"] = model.gather_share(trainer, work, assignment.threads)
    return Prediction(
        platform=platform.name,
        source=platform.source,
        trainers=tuple(trainer.name for trainer in trainers),
        assignment=assignment,
        stages=times,
        iteration_s=seconds,
        iterations=iterations,
        epoch_s=seconds * iterations if paper else _epoch_s(platform, training, assignment, terms, seconds),
        throughput_mteps=stages.throughput_mteps(workloads, seconds),
        bottleneck=times.bottleneck if seconds <= stages_s * (1 + 1e-9) else "cores",
        memory=_memory(platform, training, assignment),
        ideal_epoch_s=_ideal_s(platform, training, assignment, terms),
        relative_error=ASSUMED_ERROR if platform.relative_error is None else platform.relative_error,
        **full_graph,
    )


def _epoch_s(
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: ExtraTerms, seconds: float
) -> float:
    """Return the time of all full steps and the last step, which may be smaller."""
    step = sum(assignment.split)
    num_full, remaining = divmod(training.targets_per_epoch, step)
    if not remaining:
        return num_full * seconds
    ends = [round(sum(assignment.split[: i + 1]) * remaining / step) for i in range(len(assignment.split))]
    last = replace(
        assignment, split=tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))
    )
    times = stage_times(platform, training, last, terms)
    return num_full * seconds + iteration_s(times, platform.host, terms)


def _paper_assignment(training: TrainingWorkload, platform: Platform) -> Assignment:
    trainers = platform.trainers(training.model)
    cores = platform.host.cores or 1
    units = training.batch_size // len(trainers)
    return Assignment(split=(units,) * len(trainers), threads=Threads(sample=cores, load=cores, train=cores))


def _memory(platform: Platform, training: TrainingWorkload, assignment: Assignment) -> dict[str, MemoryNeed]:
    trainers = platform.trainers(training.model)
    shares = list(zip(trainers, assignment.split, strict=True))
    host = platform.host
    if training.resident:
        return _memory_of_whole(platform, training, shares, assignment.threads)
    needs = {
        "host": host_memory_bytes(
            [trainer.adapt_workload(training.at(units)) for trainer, units in shares if units],
            training,
            _DEPTH,
            host_workloads=[
                trainer.adapt_workload(training.at(n))
                for trainer, n in shares
                if n and math.isinf(trainer.device.link_gb_s)
            ],
        )
    }
    available = {"host": host.memory_gib}
    for trainer, units in shares:
        if math.isfinite(trainer.device.link_gb_s):
            # A trainer without targets has a replica too.
            needs[trainer.name] = feature_cache_bytes(trainer, training) + (
                trainer_memory_bytes(trainer.adapt_workload(training.at(units)))
                if units
                else weights_bytes(training.at(1.0))
            )
            available[trainer.name] = trainer.device.memory_gib
    return {
        name: MemoryNeed(
            needed_bytes=need, available_bytes=None if (gib := available[name]) is None else gib * _GIB
        )
        for name, need in needs.items()
    }


def _memory_of_whole(
    platform: Platform,
    training: TrainingWorkload,
    shares: Sequence[tuple[PlatformTrainer, int]],
    threads: Threads,
) -> dict[str, MemoryNeed]:
    """Return the memory of full-graph training: the arrays on the device or host that trains.

    For other devices, this is the memory that they would need.
    """

    def memory(need_bytes: float, have_gib: float | None) -> MemoryNeed:
        return MemoryNeed(
            needed_bytes=need_bytes, available_bytes=None if have_gib is None else have_gib * _GIB
        )

    [chosen] = [trainer for trainer, units in shares if units]
    arrays = trainer_full_graph_arrays(chosen, training, threads.train)
    on_host = sum(arrays.values())
    if math.isfinite(chosen.device.link_gb_s):
        resident_arrays = ("topology", "edges by source", "features", "learned rows, moments")
        on_host = sum(arrays.get(name, 0.0) for name in resident_arrays) + 2 * weights_bytes(training.at(1.0))
    memories = {"host": memory(on_host, platform.host.memory_gib)}
    for trainer, _ in shares:
        if math.isfinite(trainer.device.link_gb_s):
            need_bytes = sum(trainer_full_graph_arrays(trainer, training, threads.train).values())
            memories[trainer.name] = memory(need_bytes, trainer.device.memory_gib)
    return memories


# Default number of mini-batches in flight.
_DEPTH = 4


def _ideal_s(
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: ExtraTerms
) -> float:
    """Return the epoch time at the sum of the trainers' speeds, each with a full step and all cores."""
    model = StepModel(platform, training, terms)
    threads = replace(assignment.threads, train=platform.host.cores or 1)
    step = sum(assignment.split)
    work = training.at(step)
    speed = sum(step / model.propagate_s(trainer, work, threads) for trainer in model.trainers)
    return training.targets_per_epoch / speed


def with_accelerators(platform: Platform, count: int) -> Platform:
    """Return the platform with `count` accelerators in total, distributed in proportion to its kinds.

    Raises ValueError if the platform has no accelerators, or no trainer would be left.
    """
    check_kind("platform", platform, Platform, "pass a platform from load_platform")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"the number of accelerators must be an integer of at least 0, got {count!r:.60}")
    if not platform.accelerators:
        raise ValueError(
            f"platform {platform.name!r} has no accelerators to add or remove: choose one with accelerators"
        )
    kinds = platform.accelerators
    total = sum(kind.count for kind in kinds) or 1
    counts = [kind.count * count // total for kind in kinds]
    counts[0] += count - sum(counts)
    return replace(
        platform,
        accelerators=tuple(replace(kind, count=n) for kind, n in zip(kinds, counts, strict=True)),
    )


# Minimum relative saving of a change that is listed.
_WORTH = 0.03
# Bytes of the scale of an int8 row.
_SCALE_BYTES = 4
# Cache sizes that are proposed, as fractions of all rows.
_CACHES = (0.1, 0.3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Suggested change and its predicted effect."""

    change: str
    epoch_s: float
    bottleneck: str
    """Bottleneck after the change; `epoch_s` is the epoch time."""
    moved_ratio: float = 1.0
    """Ratio of the feature bytes that move per step after and before the change, with the same split: bytes
    to accelerators or, if nothing is transferred, bytes that loading reads."""


def advise(
    platform: Platform,
    training: TrainingWorkload,
    current: Prediction,
    *,
    terms: ExtraTerms | None = None,
    paper: bool = False,
    other_workloads: Sequence[tuple[str, TrainingWorkload]] = (),
    other_terms: Sequence[tuple[str, ExtraTerms]] = (),
    max_changes: int = 3,
) -> list[Advice]:
    """Return up to `max_changes` changes that save the most time, best first.

    `current` is the prediction for the given machine and work with `terms` and `paper`. `other_workloads`
    contains alternatives of the work, and `other_terms` other schedules, each with a description.
    """
    advice = []
    moved_before = _moved_bytes(platform, training, current, terms)
    changes = [
        *((*change, terms) for change in _changes(platform, training)),
        *((change, platform, work, terms) for change, work in other_workloads),
        *((change, platform, training, changed_terms) for change, changed_terms in other_terms),
    ]
    for change, changed_platform, work, changed_terms in changes:
        try:
            prediction = predict(changed_platform, work, terms=changed_terms, paper=paper)
        except ValueError:
            continue  # The change does not fit in memory.
        if prediction.epoch_s < current.epoch_s * (1 - _WORTH):
            moved_ratio = 1.0
            if changed_platform is platform and moved_before:
                moved_ratio = _moved_bytes(platform, work, current, terms) / moved_before
            advice.append(
                Advice(
                    change=change,
                    epoch_s=prediction.epoch_s,
                    bottleneck=prediction.bottleneck,
                    moved_ratio=moved_ratio,
                )
            )
    return sorted(advice, key=lambda entry: entry.epoch_s)[:max_changes]


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
    # Feature tables of heterogeneous graphs are always used in their stored format.
    if sample.sparse is None and sample.edge_bytes is None and not training.resident:
        width = sample.features[0]
        for description, row_bytes in (
            ("features in 16 bits (data.feature_dtype=float16)", 2.0 * width),
            ("features in 8 bits (data.feature_dtype=int8)", width + _SCALE_BYTES),
        ):
            if row_bytes < sample.dense_row_bytes:
                yield description, platform, training.with_row_bytes(row_bytes)
        # FPGA kernels with a known design do not cache rows.
        can_cache = any(accelerator.design is None for accelerator in platform.accelerators)
        if training.hit_rate is not None and not training.cached_fraction and can_cache:
            for fraction in _CACHES:
                description = (
                    f"{fraction:.0%} of the rows cached on each accelerator (data.cache={fraction:.0%})"
                )
                yield description, platform, replace(training, cached_fraction=fraction)


def _moved_bytes(
    platform: Platform, training: TrainingWorkload, now: Prediction, terms: ExtraTerms | None
) -> float:
    """Return the feature bytes that a step with the predicted split transfers to accelerators.

    If nothing is transferred, return the bytes that loading reads.
    """
    model = StepModel(platform, training, ExtraTerms() if terms is None else terms)
    busy = [
        (trainer, training.at(units))
        for trainer, units in zip(model.trainers, now.assignment.split, strict=True)
        if units
    ]
    return sum(model.link_bytes(*entry) for entry in busy) or sum(model.load_bytes(*entry) for entry in busy)


def _more_cores(rates: TrainerRates) -> TrainerRates:
    """Return the CPU trainer's rates with twice the cores, which do not change the memory bandwidth."""
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
