"""Predicting training: stages, iteration, epoch, memory, and what to change next."""

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
# Where nobody has compared a platform's numbers with a machine: stated parts of data sheets (bandwidths of 60
# to 90 %) are a guess within about that much.
ASSUMED_ERROR = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Of one device: what training needs, and what there is (None where nobody said)."""

    need_bytes: float
    have_bytes: float | None

    @property
    def fits(self) -> bool:
        return self.have_bytes is None or self.need_bytes <= self.have_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What training takes on a platform."""

    platform: str
    """The platform's name."""
    source: str
    """The source of the platform's numbers."""
    trainers: tuple[str, ...]
    """Names, in the order of the split."""
    assignment: Assignment
    """The assignment that was assumed, or chosen."""
    stages: StageTimes
    """One iteration's stages."""
    iteration_s: float
    iterations: int
    epoch_s: float
    """`iteration_s`, `iterations` and `epoch_s`: a step, steps an epoch, and the epoch."""
    throughput_mteps: float
    """Million sampled edges a second."""
    bottleneck: str
    """The stage that bounds the iteration; `cores` where no stage does but their sum on the host's cores."""
    memory: Mapping[str, Memory]
    """Memory of the host, and of every accelerator that has its own."""
    ideal_epoch_s: float
    """If all trainers' speeds added up perfectly and nothing else took time."""
    relative_error: float
    """How far off this may be."""
    arrays: Mapping[str, float] = field(default_factory=dict)
    """Of training on the whole graph: what it keeps, array by array, in bytes."""
    at_most: bool = True
    """Whether `arrays` are the most that it may take, instead of what it takes."""
    gather_share: float | None = None
    """Of training on the whole graph: the part of its propagation that reads rows along edges."""

    @property
    def stages_s(self) -> dict[str, float]:
        """The four stages and synchronization, which is part of propagate."""
        return {**self.stages.stages_s, "synchronize": self.stages.synchronize_s}

    def to_json(self) -> dict[str, Any]:
        """As `hyrt predict --json` prints it."""
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
        What to assume; by default the best that is found (in the paper's form: `batch_per_trainer` for each).
    terms
        Beyond the paper's; all of them by default.
    paper
        The paper's form exactly: its terms, and nothing re-split.

    Raises
    ------
    ValueError
        If a step does not fit into the trainers' memories.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    check_kind("training", training, TrainingWorkload, "give a TrainingWorkload")
    check_kind("paper", paper, bool, "give True or False")
    terms = PAPER if paper else Terms() if terms is None else terms
    trainers = platform.trainers(training.model)
    if paper:
        # Its T_load is bytes over a bandwidth, also where a table, or one thread's part, is known.
        platform = replace(platform, host=replace(platform.host, loading=(), thread_load_gb_s=None))
        each = training.batch_per_trainer or training.batch_size
        training = replace(training, batch_size=each * len(trainers))
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
    of_whole: dict[str, Any] = {}
    if training.resident:
        [(trainer, work)] = [
            (trainer, training.at(units))
            for trainer, units in zip(trainers, assignment.split, strict=True)
            if units
        ]
        of_whole["arrays"] = arrays_of_whole(trainer, training, assignment.threads.train)
        of_whole["at_most"] = not trainer.is_host or training.whole is None
        model = StepModel(platform, training, terms)
        of_whole["gather_share"] = model.gather_share(trainer, work, assignment.threads)
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
        **of_whole,
    )


def _epoch_s(
    platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: Terms, seconds: float
) -> float:
    """Whole steps, and the last one with what is left."""
    step = sum(assignment.split)
    whole, left = divmod(training.targets_per_epoch, step)
    if not left:
        return whole * seconds
    ends = [round(sum(assignment.split[: i + 1]) * left / step) for i in range(len(assignment.split))]
    part = replace(
        assignment, split=tuple(end - start for start, end in zip([0, *ends[:-1]], ends, strict=True))
    )
    times = stage_times(platform, training, part, terms)
    return whole * seconds + iteration_s(times, platform.host, terms)


def _paper_assignment(training: TrainingWorkload, platform: Platform) -> Assignment:
    trainers = platform.trainers(training.model)
    cores = platform.host.cores or 1
    each = training.batch_size // len(trainers)
    return Assignment(split=(each,) * len(trainers), threads=Threads(sample=cores, load=cores, train=cores))


def _memory(platform: Platform, training: TrainingWorkload, assignment: Assignment) -> dict[str, Memory]:
    trainers = platform.trainers(training.model)
    given = list(zip(trainers, assignment.split, strict=True))
    host = platform.host
    if training.resident:
        return _memory_of_whole(platform, training, given, assignment.threads)
    needs = {
        "host": host_memory_bytes(
            [trainer.taken(training.at(units)) for trainer, units in given if units],
            training,
            _DEPTH,
            computed_here=[
                trainer.taken(training.at(n))
                for trainer, n in given
                if n and math.isinf(trainer.device.link_gb_s)
            ],
        )
    }
    has = {"host": host.memory_gib}
    for trainer, units in given:
        if math.isfinite(trainer.device.link_gb_s):
            # One without targets keeps its replica.
            needs[trainer.name] = kept_rows_bytes(trainer, training) + (
                trainer_memory_bytes(trainer.taken(training.at(units)))
                if units
                else weights_bytes(training.at(1.0))
            )
            has[trainer.name] = trainer.device.memory_gib
    return {
        name: Memory(need_bytes=need, have_bytes=None if (gib := has[name]) is None else gib * _GIB)
        for name, need in needs.items()
    }


def _memory_of_whole(
    platform: Platform,
    training: TrainingWorkload,
    given: Sequence[tuple[PlatformTrainer, int]],
    threads: Threads,
) -> dict[str, Memory]:
    """Of the whole graph: all of it in host memory, or in that of the device which trains.

    Of devices that do not, what they would need.
    """

    def memory(need_bytes: float, have_gib: float | None) -> Memory:
        return Memory(need_bytes=need_bytes, have_bytes=None if have_gib is None else have_gib * _GIB)

    [chosen] = [trainer for trainer, units in given if units]
    arrays = arrays_of_whole(chosen, training, threads.train)
    on_host = sum(arrays.values())
    if math.isfinite(chosen.device.link_gb_s):
        kept = ("topology", "edges by source", "features", "learned rows, moments")
        on_host = sum(arrays.get(name, 0.0) for name in kept) + 2 * weights_bytes(training.at(1.0))
    found = {"host": memory(on_host, platform.host.memory_gib)}
    for trainer, _ in given:
        if math.isfinite(trainer.device.link_gb_s):
            need_bytes = sum(arrays_of_whole(trainer, training, threads.train).values())
            found[trainer.name] = memory(need_bytes, trainer.device.memory_gib)
    return found


# Mini-batches in flight, as runs have by default.
_DEPTH = 4


def _ideal_s(platform: Platform, training: TrainingWorkload, assignment: Assignment, terms: Terms) -> float:
    """Targets over the sum of the trainers' speeds, each at its full share of a step and all cores."""
    model = StepModel(platform, training, terms)
    threads = replace(assignment.threads, train=platform.host.cores or 1)
    whole = sum(assignment.split)
    work = training.at(whole)
    speed = sum(whole / model.propagate_s(trainer, work, threads) for trainer in model.trainers)
    return training.targets_per_epoch / speed


def with_accelerators(platform: Platform, count: int) -> Platform:
    """The platform with that many accelerators in all, in proportion where it has several kinds.

    Raises
    ------
    ValueError
        If it has none to count, or none would be left to train.
    """
    check_kind("platform", platform, Platform, "give a platform, as load_platform returns")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"the number of accelerators is {count!r:.60}: give a whole number of at least 0")
    if not platform.accelerators:
        raise ValueError(
            f"platform {platform.name!r} has no accelerator whose number could change: give one that has"
        )
    kinds = platform.accelerators
    before = sum(kind.count for kind in kinds) or 1
    counts = [kind.count * count // before for kind in kinds]
    counts[0] += count - sum(counts)
    return replace(
        platform,
        accelerators=tuple(replace(kind, count=n) for kind, n in zip(kinds, counts, strict=True)),
    )
