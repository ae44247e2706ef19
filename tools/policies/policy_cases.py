"""Random machines, workloads and starting assignments for the comparison of policies.

The seeds were fixed before any policy was tested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, AssignmentLimits, Threads
from hyrt_perfmodel.prediction.simulate import Perturbation, simulate
from hyrt_perfmodel.prediction.stage_times import StageTimes, StepModel, iteration_s
from hyrt_perfmodel.prediction.stages import ExtraTerms
from hyrt_perfmodel.workload import LoadForm, TrainingWorkload, Workload

DELAY = 4


@dataclass(frozen=True)
class PolicyCase:
    """Machine, workload and starting assignment. `slow` is a trainer and its speed factor."""

    seed: int
    platform: Platform
    training: TrainingWorkload
    limits: AssignmentLimits
    start: Assignment
    slow: tuple[int, float] | None = None

    @cached_property
    def _model(self) -> StepModel:
        """Return the cached equations of the machine, which a search evaluates thousands of times."""
        return StepModel(self.platform, self.training, ExtraTerms())

    def times(self, assignment: Assignment) -> StageTimes:
        """Return the stage times without noise."""
        times = self._model.times(assignment)
        if not self.slow:
            return times
        trainer, factor = self.slow
        propagate = list(times.trainer_propagate_s)
        propagate[trainer] /= factor
        return replace(
            times,
            trainer_propagate_s=tuple(propagate),
            propagate_s=max(propagate) + times.synchronize_s,
        )

    def seconds(self, assignment: Assignment) -> float:
        """Return the iteration time according to the equations, without noise."""
        return iteration_s(self.times(assignment), self.platform.host)

    def simulated_s(self, assignment: Assignment, iterations: int = 40, noise: float = 0.0) -> float:
        """Return the iteration time of a simulated run with a static assignment and always equal noise."""
        changes = [Perturbation(step=0, trainer=self.slow[0], factor=self.slow[1])] if self.slow else []
        run = simulate(
            self.platform,
            self.training,
            start=assignment,
            iterations=iterations,
            depth=DELAY,
            noise=noise,
            seed=self.seed,
            limits=self.limits,
            changes=changes,
        )
        return run.settled_iteration_s(iterations // 3)


def random_case(seed: int) -> PolicyCase:
    """Return the case for a seed."""
    rng = np.random.default_rng([20261121, seed])
    host = _host(rng)
    accelerators = _accelerators(rng)
    platform = Platform(name=f"random {seed}", host=host, accelerators=accelerators)
    # Cache the sizes, because a search evaluates the same numbers of targets repeatedly.
    training = _training(rng).with_cached_sizes()
    trainers = platform.trainers(training.model)
    count = len(trainers)
    limits = AssignmentLimits(
        trainers=tuple(trainer.name for trainer in trainers),
        is_host=tuple(trainer.is_host for trainer in trainers),
        max_units=_max_units(rng, count, training.batch_size),
        cores=host.cores or 8,
        delay=DELAY,
        threads_are_shared=bool(rng.random() < 0.15),
    )
    return PolicyCase(seed, platform, training, limits, random_assignment(rng, limits, training.batch_size))


def random_assignment(rng: np.random.Generator, limits: AssignmentLimits, total: int) -> Assignment:
    """Return a random assignment: a split between even and nearly all on one trainer, and any threads."""
    count = len(limits.trainers)
    parts = rng.dirichlet(np.full(count, rng.choice([0.3, 1.0, 5.0])))
    split = np.floor(parts * total).astype(int)
    split = np.minimum(split, limits.max_units)
    while split.sum() < total:
        trainers_with_capacity = [index for index in range(count) if split[index] < limits.max_units[index]]
        index = rng.choice(trainers_with_capacity)
        split[index] += min(limits.max_units[index] - split[index], total - split.sum())
    stages = 3 if any(limits.is_host) else 2
    if limits.threads_are_shared:
        threads = rng.integers(1, limits.cores + 1, size=stages)
    else:
        spare = limits.cores - stages
        threads = 1 + rng.multinomial(spare, rng.dirichlet(np.ones(stages)))
    sample, load, train = (int(number) for number in [*threads, 1][:3])
    return Assignment(
        split=tuple(int(units) for units in split), threads=Threads(sample=sample, load=load, train=train)
    )


def _log(rng: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(rng.uniform(math.log(low), math.log(high))))


def _host(rng: np.random.Generator) -> Host:
    cores = int(rng.choice([4, 6, 8, 16, 24, 32, 64, 128]))
    memory_gb_s = _log(rng, 15, 400)
    return Host(
        memory_gb_s=memory_gb_s,
        shared_memory_gb_s=memory_gb_s * float(rng.uniform(1, 2)) if rng.random() < 0.25 else None,
        macs_per_s=cores * _log(rng, 5e9, 6e10),
        trains=bool(rng.random() < 0.7),
        cores=cores,
        thread_load_gb_s=_log(rng, 0.5, 12),
        thread_edges_per_s=_log(rng, 1e6, 3e7),
        launch_s=_log(rng, 1e-4, 3e-3),
        values_per_s=cores * _log(rng, 1e8, 2e9),
        step_s=_log(rng, 1e-4, 3e-3),
        serial_part=float(rng.uniform(0, 0.15)),
        forms=("rows", "in_place") if rng.random() < 0.25 else ("rows",),
    )


def _accelerators(rng: np.random.Generator) -> tuple[Accelerator, ...]:
    left = int(rng.integers(1, 9))
    scale = _log(rng, 0.2, 5)
    accelerators: list[Accelerator] = []
    while left:
        count = int(rng.integers(1, left + 1))
        left -= count
        # Devices of one kind are usually, but not always, equal.
        is_odd = bool(accelerators) and rng.random() < 0.2
        forms: tuple[LoadForm, ...] = ("rows", "in_place") if rng.random() < 0.1 else ("rows",)
        link_gb_s = math.inf if rng.random() < 0.1 else _log(rng, 1, 50)
        is_pipelined = bool(rng.random() < 0.3)
        accelerators.append(
            Accelerator(
                kind=accelerators[-1].kind if is_odd else f"kind{len(accelerators)}",
                count=count,
                memory_gb_s=scale * _log(rng, 30, 600),
                macs_per_s=scale * _log(rng, 2e11, 8e12),
                values_per_s=scale * _log(rng, 2e9, 1e11),
                link_gb_s=link_gb_s,
                # The bandwidth of the switch is at least that of one device link.
                switch_gb_s=link_gb_s * _log(rng, 1, count)
                if rng.random() < 0.15 and math.isfinite(link_gb_s)
                else None,
                link_latency_s=_log(rng, 1e-6, 3e-4),
                launch_s=_log(rng, 5e-5, 1e-2),
                pipelined=is_pipelined,
                reads_each_source_once=is_pipelined and bool(rng.random() < 0.5),
                flush_s=_log(rng, 1e-6, 1e-4) if is_pipelined else 0.0,
                forms=accelerators[-1].forms if is_odd else forms,
            )
        )
    return tuple(accelerators)


def _training(rng: np.random.Generator) -> TrainingWorkload:
    features = (
        int(rng.choice([32, 100, 128, 256, 602, 768])),
        int(rng.choice([64, 128, 256, 512])),
        int(rng.choice([16, 47, 172])),
    )
    concat = bool(rng.random() < 0.5)
    fanouts = [(25, 10), (10, 5), (15, 10), (5, 3)][int(rng.integers(4))]
    bytes_per_value = int(rng.choice([2, 4, 4]))
    # The graph may be so large that no vertex is sampled twice, or soon be sampled completely.
    vertices = math.inf if rng.random() < 0.4 else _log(rng, 2e4, 3e6)

    def distinct(drawn: float) -> float:
        return drawn if math.isinf(vertices) else vertices * -math.expm1(-drawn / vertices)

    def at(targets: float) -> Workload:
        last = targets * fanouts[0]
        middle = distinct(targets + last)
        first = middle * fanouts[1]
        return Workload(
            vertices=(distinct(middle + first), middle, targets),
            edges=(first, last),
            features=features,
            concat=concat,
            bytes_per_value=bytes_per_value,
        )

    batch_size = int(rng.choice([256, 1024, 2048, 4096, 8192, 16384]))
    return TrainingWorkload(
        at=at,
        targets_per_epoch=batch_size * 200,
        batch_size=batch_size,
        sample_s=_log(rng, 5e-4, 2e-2) if rng.random() < 0.1 else None,
        best_form="in_place" if rng.random() < 0.5 else "rows",
    )


def _max_units(rng: np.random.Generator, count: int, total: int) -> tuple[int, ...]:
    """Return unit limits: none in half of the cases, otherwise not all trainers can hold all units."""
    if rng.random() < 0.5:
        return (total,) * count
    limits = [total if rng.random() < 0.5 else int(total * rng.uniform(0.05, 1.0)) for _ in range(count)]
    while sum(limits) < 1.2 * total:
        limits = [min(total, int(2 * units) + 1) for units in limits]
        if min(limits) == total:
            break
    return tuple(limits)
