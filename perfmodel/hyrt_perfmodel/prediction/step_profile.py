"""Times and resource demands of a simulated step, with noise and speed changes of the machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hyrt_perfmodel.platform import Host, Platform, PlatformTrainer
from hyrt_perfmodel.policy import Assignment
from hyrt_perfmodel.prediction import stages
from hyrt_perfmodel.prediction.stage_times import StageTimes, StepModel
from hyrt_perfmodel.prediction.stages import ExtraTerms, without_sparse_product
from hyrt_perfmodel.validation import Positive, check_numbers
from hyrt_perfmodel.workload import TrainingWorkload, Workload

PARTS = ("sample", "links", "host_memory")
"""Parts besides trainers whose speed may change. Loading and the CPU trainer read `host_memory`."""


Speeds = tuple[tuple[int | str, float], ...]
"""(part, factor) of every part whose speed differs from the platform's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perturbation:
    """Change of the speed of a part of the machine, from a given step on."""

    step: int
    """First step with the new speed."""
    trainer: int | str
    """Index of the trainer whose propagation changes, or one of `PARTS`."""
    factor: Positive
    """Speed relative to that of the platform, until the next change of the same part."""

    def __post_init__(self) -> None:
        check_numbers("change", self)
        if self.step < 0:
            raise ValueError(f"change: step must be at least 0, got {self.step}")
        if isinstance(self.trainer, str) and self.trainer not in PARTS:
            raise ValueError(
                f"change: trainer must be a trainer's index or one of {', '.join(PARTS)}, got "
                f"{self.trainer!r}"
            )


def check_perturbations(changes: Sequence[Perturbation], num_trainers: int) -> None:
    """Raise ValueError if a change concerns a trainer that the platform does not have."""
    for change in changes:
        if isinstance(change.trainer, int) and not 0 <= change.trainer < num_trainers:
            raise ValueError(
                f"change at step {change.step}: trainer must be from 0 to {num_trainers - 1}, the trainers "
                f"of the platform, got {change.trainer}"
            )


def speeds_at(changes: Sequence[Perturbation], step: int) -> Speeds:
    """Return the speeds at a step. If changes have the same step and part, the last one applies."""
    past = sorted((change for change in changes if change.step <= step), key=lambda change: change.step)
    factors = {change.trainer: change.factor for change in past}
    return tuple(item for item in factors.items() if item[1] != 1)


def host_with_memory(host: Host, factor: float) -> Host:
    """Return the host with `factor` times the memory bandwidth for everything that reads its memory."""

    def scaled(gb_s: float | None) -> float | None:
        return None if gb_s is None else gb_s * factor

    models = {
        kind: replace(rates, memory_gb_s=rates.memory_gb_s * factor) for kind, rates in host.models.items()
    }
    return replace(
        host,
        memory_gb_s=host.memory_gb_s * factor,
        shared_memory_gb_s=scaled(host.shared_memory_gb_s),
        thread_load_gb_s=scaled(host.thread_load_gb_s),
        models=models,
        loading=tuple(
            replace(cost, row_s=cost.row_s / factor, gb_s=cost.gb_s * factor) for cost in host.loading
        ),
    )


_GB = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class StepProfile:
    """Durations of the stages of a step, each alone on the machine, and their resource demands."""

    sample_s: tuple[float, ...]
    load_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    propagate_s: tuple[float, ...]
    """`sample_s`, `load_s`, `transfer_s`, `propagate_s`: one value per trainer. The first two run in
    sequence."""
    synchronize_s: float
    demands: tuple[tuple[float, ...], ...]
    """Demand of each server at full speed: [2 n + 3][resources]. The servers are sample, load, each trainer's
    transfer, each trainer's propagation, and synchronize. The resources are cores, bytes per second of host
    memory, and bytes per second of each switch."""
    capacities: tuple[float, ...]


def can_slow(profiles: Sequence[StepProfile]) -> bool:
    """Return whether stages of such steps can slow each other down in any overlap."""
    trainers = len(profiles[0].sample_s)
    for resource, capacities in enumerate(zip(*(profile.capacities for profile in profiles), strict=True)):
        peaks = [
            max(demand[resource] for demand in demands)
            for demands in zip(*(profile.demands for profile in profiles), strict=True)
        ]
        # All propagations of a step end before its synchronization begins.
        last = max(sum(peaks[2 + trainers : -1]), peaks[-1])
        if sum(peaks[: 2 + trainers]) + last > min(capacities):
            return True
    return False


def has_shared_resources(platform: Platform, terms: ExtraTerms) -> bool:
    """Return whether stages may slow each other down with any assignment."""
    host = platform.host
    return (
        bool(terms.shared_cores and host.cores)
        or host.shared_memory_gb_s is not None
        or any(accelerator.switch_gb_s is not None for accelerator in platform.accelerators)
    )


def step_profile(
    platform: Platform,
    training: TrainingWorkload,
    terms: ExtraTerms,
    assignment: Assignment,
    speeds: Speeds = (),
) -> StepProfile:
    """Return the profile of a step with an assignment and the changed `speeds` of some parts."""
    factors = dict(speeds)
    if "host_memory" in factors:
        platform = replace(platform, host=host_with_memory(platform.host, factors["host_memory"]))
    model = StepModel(platform, training, terms)
    times = model.times(assignment)
    works = [training.at(units) if units else None for units in assignment.split]
    links = factors.get("links", 1.0)
    transfer_s = tuple(seconds / links for seconds in times.trainer_transfer_s)
    propagate_s = tuple(
        seconds / factors.get(index, 1.0) for index, seconds in enumerate(times.trainer_propagate_s)
    )
    resources = _ResourceDemands(platform, model, assignment, works)
    return StepProfile(
        sample_s=_sample_parts(times, works, factors.get("sample", 1.0)),
        load_s=times.trainer_load_s,
        transfer_s=transfer_s,
        propagate_s=propagate_s,
        synchronize_s=times.synchronize_s + times.wait_s + times.lock_s,
        demands=resources.demands(times.trainer_load_s, transfer_s, propagate_s),
        capacities=resources.capacities,
    )


def _sample_parts(times: StageTimes, works: list[Workload | None], factor: float) -> tuple[float, ...]:
    """Divide T_sample among the trainers in proportion to their edges."""
    edges = [0.0 if work is None else work.num_edges for work in works]
    total = sum(edges)
    return tuple(times.sample_s / factor * count / total if total else 0.0 for count in edges)


class _ResourceDemands:
    """Demands of a step's stages for cores, host memory bandwidth and switch bandwidth."""

    def __init__(
        self, platform: Platform, model: StepModel, assignment: Assignment, works: list[Workload | None]
    ) -> None:
        self._model, self._trainers = model, model.trainers
        self._threads, self._works = assignment.threads, works
        self._switches: list[int | None] = [None] * len(self._trainers)
        host = platform.host
        cores = host.cores * host.core_efficiency if model.terms.shared_cores and host.cores else math.inf
        memory = math.inf if host.shared_memory_gb_s is None else host.shared_memory_gb_s * _GB
        capacities = [cores, memory]
        index = int(host.trains)
        for accelerator in platform.accelerators:
            if accelerator.switch_gb_s is not None:
                for trainer in range(index, index + accelerator.count):
                    self._switches[trainer] = len(capacities)
                capacities.append(accelerator.switch_gb_s * _GB)
            index += accelerator.count
        self.capacities = tuple(capacities)

    def demands(
        self, load_s: tuple[float, ...], transfer_s: tuple[float, ...], propagate_s: tuple[float, ...]
    ) -> tuple[tuple[float, ...], ...]:
        pairs = list(zip(self._trainers, self._works, strict=True))
        loaded = sum(self._model.load_bytes(trainer, work) for trainer, work in pairs if work is not None)
        rows = [
            self._row(cores=self._threads.sample),
            self._row(cores=self._threads.load, memory=_rate(loaded, sum(load_s))),
        ]
        for (trainer, work), seconds, switch in zip(pairs, transfer_s, self._switches, strict=True):
            transferred = 0.0 if work is None else self._model.link_bytes(trainer, work)
            rows.append(self._row(memory=_rate(transferred, seconds), switch=switch))
        for (trainer, work), seconds in zip(pairs, propagate_s, strict=True):
            read = 0.0 if work is None else self._aggregated_bytes(trainer, work)
            rows.append(self._row(cores=self._trainer_cores(trainer), memory=_rate(read, seconds)))
        rows.append(self._row(cores=1))
        return tuple(rows)

    def _row(
        self, *, cores: float = 0.0, memory: float = 0.0, switch: int | None = None
    ) -> tuple[float, ...]:
        row = [cores, memory] + [0.0] * (len(self.capacities) - 2)
        if switch is not None:
            row[switch] = memory
        return tuple(row)

    def _trainer_cores(self, trainer: PlatformTrainer) -> float:
        """Return the cores that a trainer uses, as in `stage_times`: serial parts use one thread."""
        if not trainer.is_host:
            return float(trainer.device.host_cores)
        host = self._model.host
        threads = min(self._threads.train, host.cores or self._threads.train)
        return 1 / (host.serial_part + (1 - host.serial_part) / threads)

    def _aggregated_bytes(self, trainer: PlatformTrainer, work: Workload) -> float:
        """Return the bytes that a trainer aggregates in host memory.

        All layers count in the forward pass, and all but the first in the backward pass.
        """
        if not math.isinf(trainer.device.link_gb_s):
            return 0.0
        work = without_sparse_product(trainer.adapt_workload(work))
        layers = [stages.aggregate_s(work, layer, 1.0) for layer in range(1, work.layers + 1)]
        if self._model.load_form(trainer) == "aggregated":
            layers[0] = 0.0
        return sum(layers) + sum(layers[1:])


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


@dataclass(slots=True)
class SimulatedStep:
    """Demands of a simulated step, and its start and end times."""

    step: int
    assignment: Assignment
    profile: StepProfile
    sample_s: list[float]
    load_s: list[float]
    transfer_s: list[float]
    propagate_s: list[float]
    synchronize_s: float
    """`sample_s`, `load_s`, `transfer_s`, `propagate_s` and `synchronize_s` contain the time of the stage
    alone on the machine, with noise, and after the stage has ended its actual time."""
    started_s: float = 0.0
    """Time when sampling started."""
    done_s: float = 0.0
    """Time when synchronization ended."""


BeginCallback = Callable[[int], SimulatedStep]
"""Callback that is called when the sampling of a step begins, in the order of steps."""

EndCallback = Callable[[SimulatedStep], None]
"""Callback that is called when a step is synchronized, in the order of steps."""


def with_noise(
    step: int, assignment: Assignment, profile: StepProfile, factors: Sequence[float]
) -> SimulatedStep:
    """Return a step whose stage times (sample, load, transfers, propagations, synchronize) are scaled."""
    sample, load, *rest, synchronize = factors
    count = len(profile.sample_s)
    return SimulatedStep(
        step,
        assignment,
        profile,
        [seconds * sample for seconds in profile.sample_s],
        [seconds * load for seconds in profile.load_s],
        [seconds * factor for seconds, factor in zip(profile.transfer_s, rest[:count], strict=True)],
        [seconds * factor for seconds, factor in zip(profile.propagate_s, rest[count:], strict=True)],
        profile.synchronize_s * synchronize,
    )


# Number of steps whose factors are generated at once.
_BATCH_STEPS = 1024


def noise_factors(deviation: float, num_stages: int, seed: int) -> Iterator[list[float]]:
    """Yield, for each step, `num_stages` log-normal factors with mean 1 for its stage times.

    `deviation` is the standard deviation of the factors' logarithms; 0 means no noise.
    """
    rng = np.random.default_rng(seed)
    while not deviation:
        yield [1.0] * num_stages
    while True:
        normal = rng.standard_normal((_BATCH_STEPS, num_stages))
        yield from np.exp(deviation * normal - deviation**2 / 2).tolist()
