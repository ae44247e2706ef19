"""Prediction of training: stages, iteration, epoch and memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hyrt_perfmodel.assignment import Assignment, Threads
from hyrt_perfmodel.checks import check_kind
from hyrt_perfmodel.platforms.platform import Platform, PlatformTrainer
from hyrt_perfmodel.prediction import stages
from hyrt_perfmodel.prediction.extra_terms import PAPER, Terms
from hyrt_perfmodel.prediction.mapping import initial_assignment
from hyrt_perfmodel.prediction.memory import (
    arrays_of_whole,
    host_memory_bytes,
    kept_rows_bytes,
    trainer_memory_bytes,
    weights_bytes,
)
from hyrt_perfmodel.prediction.stage_times import (
    StageTimes,
    StepModel,
    iteration_s,
    stage_times,
    stages_together_s,
)
from hyrt_perfmodel.workloads.workload import TrainingWorkload

_GIB = 2**30
# Relative error if a platform's numbers were never compared with the machine: effective fractions of
# datasheet values (bandwidths at 60 to 90 %) are uncertain by about this much.
ASSUMED_ERROR = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory of one device: needed and available bytes (None if unknown)."""

    need_bytes: float
    have_bytes: float | None

    @property
    def fits(self) -> bool:
        return self.have_bytes is None or self.need_bytes <= self.have_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Predicted performance of training on a platform."""

    platform: str
    """Name of the platform."""
    source: str
    """Source of the platform's numbers."""
    trainers: tuple[str, ...]
    """Trainer names, in split order."""
    assignment: Assignment
    """Assumed or chosen assignment."""
    stages: StageTimes
    """Stage times of one iteration."""
    iteration_s: float
    iterations: int
    epoch_s: float
    """`iteration_s`, `iterations` and `epoch_s`: seconds per step, steps per epoch, seconds per epoch."""
    throughput_mteps: float
    """Million sampled edges per second."""
    bottleneck: str
    """Stage that bounds the iteration; `cores` if the sum of the stages on the host cores bounds it
    instead."""
    memory: Mapping[str, Memory]
    """Memory of the host and of every accelerator with separate memory."""
    ideal_epoch_s: float
    """Epoch time if the trainers' speeds added up perfectly and nothing else took time."""
    relative_error: float
    """Expected relative error of the prediction."""
    arrays: Mapping[str, float] = field(default_factory=dict)
    """Full-graph training: bytes per array."""
    at_most: bool = True
    """Whether `arrays` is an upper bound instead of the actual sizes."""
    gather_share: float | None = None
    """Full-graph training: fraction of propagation that reads rows along edges."""

    @property
    def stages_s(self) -> dict[str, float]:
        """Seconds of the four stages, and of synchronization, which is part of propagate."""
        return {**self.stages.stages_s, "synchronize": self.stages.synchronize_s}

    def to_json(self) -> dict[str, Any]:
        """Return the content that `hyrt predict --json` prints."""
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
                    "need": math.ceil(memory.need_bytes),
                    "have": None if memory.have_bytes is None else math.floor(memory.have_bytes),
                }
                for name, memory in self.memory.items()
            },
            "ideal_epoch_s": self.ideal_epoch_s,
            "relative_error": self.relative_error,
            **self._whole_graph(),
        }

    def _whole_graph(self) -> dict[str, Any]:
        if not self.arrays:
            return {}
        arrays = {name: math.ceil(num_bytes) for name, num_bytes in self.arrays.items()}
        return {"arrays_bytes": arrays, "gather_share": self.gather_share}


def predict(
    platform: Platform,
    training: TrainingWorkload,
    *,
    assignment: Assignment | None = None,
    terms: Terms | None = None,
    paper: bool = False,
) -> Prediction:
    """Predict training.

    Parameters
    ----------
    platform, training
        The machine and the work.
    assignment
        Assignment to assume; by default the best one found (in the paper's form: `batch_per_trainer` per
        trainer).
    terms
        Terms beyond the paper's; all by default.
    paper
        Whether to use exactly the paper's form: its terms, without re-splitting.

    Raises
    ------
    ValueError
        If a step does not fit into the trainers' memory.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    check_kind("training", training, TrainingWorkload, "give a TrainingWorkload")
    check_kind("paper", paper, bool, "give True or False")
    terms = PAPER if paper else Terms() if terms is None else terms
    trainers = platform.trainers(training.model)
    if paper:
        # The paper's T_load is bytes over bandwidth, even if a table or the bandwidth of one thread is known.
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
    stages_s = stages_together_s(times, terms)
    full_graph: dict[str, Any] = {}
    if training.resident:
        [(trainer, work)] = [
            (trainer, training.at(units))
            for trainer, units in zip(trainers, assignment.split, strict=True)
            if units
        ]
        full_graph["arrays"] = arrays_of_whole(trainer, training, assignment.threads.train)
        full_graph["at_most"] = not trainer.is_host or training.whole is None
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
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: Terms, seconds: float
) -> float:
    """Return the time of full steps plus the last, partial step."""
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


def _memory(platform: Platform, training: TrainingWorkload, assignment: Assignment) -> dict[str, Memory]:
    trainers = platform.trainers(training.model)
    shares = list(zip(trainers, assignment.split, strict=True))
    host = platform.host
    if training.resident:
        return _memory_of_whole(platform, training, shares, assignment.threads)
    needs = {
        "host": host_memory_bytes(
            [trainer.taken(training.at(units)) for trainer, units in shares if units],
            training,
            _DEPTH,
            computed_here=[
                trainer.taken(training.at(n))
                for trainer, n in shares
                if n and math.isinf(trainer.device.link_gb_s)
            ],
        )
    }
    available = {"host": host.memory_gib}
    for trainer, units in shares:
        if math.isfinite(trainer.device.link_gb_s):
            # A trainer without targets still has a replica.
            needs[trainer.name] = kept_rows_bytes(trainer, training) + (
                trainer_memory_bytes(trainer.taken(training.at(units)))
                if units
                else weights_bytes(training.at(1.0))
            )
            available[trainer.name] = trainer.device.memory_gib
    return {
        name: Memory(need_bytes=need, have_bytes=None if (gib := available[name]) is None else gib * _GIB)
        for name, need in needs.items()
    }


def _memory_of_whole(
    platform: Platform,
    training: TrainingWorkload,
    shares: Sequence[tuple[PlatformTrainer, int]],
    threads: Threads,
) -> dict[str, Memory]:
    """Return the memory of full-graph training: the arrays on the training device or host.

    For other devices, return the memory that they would need.
    """

    def memory(need_bytes: float, have_gib: float | None) -> Memory:
        return Memory(need_bytes=need_bytes, have_bytes=None if have_gib is None else have_gib * _GIB)

    [chosen] = [trainer for trainer, units in shares if units]
    arrays = arrays_of_whole(chosen, training, threads.train)
    on_host = sum(arrays.values())
    if math.isfinite(chosen.device.link_gb_s):
        resident_arrays = ("topology", "edges by source", "features", "learned rows, moments")
        on_host = sum(arrays.get(name, 0.0) for name in resident_arrays) + 2 * weights_bytes(training.at(1.0))
    memories = {"host": memory(on_host, platform.host.memory_gib)}
    for trainer, _ in shares:
        if math.isfinite(trainer.device.link_gb_s):
            need_bytes = sum(arrays_of_whole(trainer, training, threads.train).values())
            memories[trainer.name] = memory(need_bytes, trainer.device.memory_gib)
    return memories


# Default number of mini-batches in flight.
_DEPTH = 4


def _ideal_s(platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: Terms) -> float:
    """Return the epoch time at the sum of the trainers' speeds, each with the full step and all cores."""
    model = StepModel(platform, training, terms)
    threads = replace(assignment.threads, train=platform.host.cores or 1)
    step = sum(assignment.split)
    work = training.at(step)
    speed = sum(step / model.propagate_s(trainer, work, threads) for trainer in model.trainers)
    return training.targets_per_epoch / speed


def with_accelerators(platform: Platform, count: int) -> Platform:
    """Return the platform with `count` accelerators in total, distributed in proportion to its kinds.

    Raises
    ------
    ValueError
        If the platform has no accelerators, or no trainer would be left.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"the number of accelerators is {count!r:.60}: give a whole number of at least 0")
    if not platform.accelerators:
        raise ValueError(
            f"platform {platform.name!r} has no accelerator whose number could change: give one that has"
        )
    kinds = platform.accelerators
    total = sum(kind.count for kind in kinds) or 1
    counts = [kind.count * count // total for kind in kinds]
    counts[0] += count - sum(counts)
    return replace(
        platform,
        accelerators=tuple(replace(kind, count=n) for kind, n in zip(kinds, counts, strict=True)),
    )
