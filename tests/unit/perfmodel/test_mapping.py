"""The chosen assignment against every other one."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.platform import Accelerator, CoreContention, Host, Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.prediction.initial_assignment import (
    equal_times,
    initial_assignment,
    max_units,
    trainer_memory_bytes,
)
from hyrt_perfmodel.prediction.stage_times import iteration_s, stage_times
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

WORK = Workload(vertices=(9000, 1500, 64), edges=(15_000, 1600), features=(100, 64, 16), concat=True)


def training(batch: int, at: Workload = WORK) -> TrainingWorkload:
    return TrainingWorkload(
        at=proportional_workload(at, 64), targets_per_epoch=10_000, batch_size=batch, sample_s=0.0
    )


def machine(**host: float) -> Platform:
    return Platform(
        name="m",
        host=Host(**{"memory_gb_s": 40, "macs_per_s": 2e11, **host}),  # type: ignore[arg-type]
        accelerators=(
            Accelerator(kind="a", memory_gb_s=300, macs_per_s=9e11, link_gb_s=8, launch_s=2e-4),
            Accelerator(kind="b", memory_gb_s=100, macs_per_s=1e11, link_gb_s=2),
        ),
    )


@pytest.mark.parametrize("host", [{}, {"memory_gb_s": 2.0}, {"launch_s": 0.01}, {"macs_per_s": 1e9}])
def test_no_split_is_faster(host: dict[str, float]) -> None:
    platform, work = machine(**host), training(24)
    threads = Threads(sample=1, load=1, train=1)

    def predicted(split: tuple[int, ...]) -> float:
        return iteration_s(
            stage_times(platform, work, Assignment(split=split, threads=threads)), platform.host
        )

    every = [(a, b, 24 - a - b) for a, b in itertools.product(range(25), repeat=2) if a + b <= 24]
    chosen = initial_assignment(platform, work)
    assert sum(chosen.split) == 24
    assert predicted(chosen.split) <= min(map(predicted, every)) * 1.02


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1, 100),
    st.floats(1e10, 1e12),
    st.booleans(),
    st.tuples(*[st.floats(10, 800), st.floats(1e10, 1e13), st.floats(1, 30), st.booleans()] * 2),
    st.floats(0.6, 1),
    st.integers(3, 5),
)
def test_no_assignment_is_much_faster(memory, macs, trains, devices, bend, cores) -> None:
    a, b = (
        Accelerator(
            kind=kind,
            memory_gb_s=bandwidth,
            macs_per_s=rate,
            link_gb_s=link,
            pipelined=once,
            reads_each_source_once=once,
        )
        for kind, (bandwidth, rate, link, once) in (("a", devices[:4]), ("b", devices[4:]))
    )
    host = Host(
        memory_gb_s=memory,
        macs_per_s=macs,
        trains=trains,
        cores=cores,
        thread_load_gb_s=memory / 2,
        thread_edges_per_s=1e7,
    )
    platform = Platform(name="m", host=host, accelerators=(a, b) if not trains else (a,))

    def overlapping(targets: float) -> Workload:
        """More targets share more of their neighbourhoods."""
        shared = targets**bend
        return Workload(
            vertices=(250 * shared, 25 * shared, targets),
            edges=(250 * targets, 25 * targets),
            features=(100, 64, 16),
            concat=True,
        )

    work = TrainingWorkload(at=overlapping, targets_per_epoch=100, batch_size=12)

    def predicted(assignment: Assignment) -> float:
        return iteration_s(stage_times(platform, work, assignment), host)

    every = (
        Assignment(split=(units, 12 - units), threads=Threads(sample=s, load=lo, train=max(1, train)))
        for units in range(13)
        for s in range(1, cores)
        for lo in range(1, cores)
        if (train := cores - s - lo) >= (1 if trains else 0)
    )
    chosen = initial_assignment(platform, work)
    assert sum(chosen.split) == 12
    assert predicted(chosen) <= min(map(predicted, every)) * 1.1


def test_no_threads_are_better() -> None:
    platform = machine(cores=8, thread_load_gb_s=4.0, thread_edges_per_s=2e6)
    work = TrainingWorkload(at=proportional_workload(WORK, 64), targets_per_epoch=10_000, batch_size=64)

    def predicted(sample: int, load: int) -> float:
        threads = Threads(sample=sample, load=load, train=8 - sample - load)
        split = initial_assignment(platform, work, threads=threads).split
        times = stage_times(platform, work, Assignment(split=split, threads=threads))
        return iteration_s(times, platform.host)

    chosen = initial_assignment(platform, work)
    assert chosen.threads.sample + chosen.threads.load + chosen.threads.train <= 8
    every = [predicted(s, lo) for s in range(1, 7) for lo in range(1, 8 - s)]
    mine = predicted(chosen.threads.sample, chosen.threads.load)
    assert mine <= min(every) * 1.02


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(1e-3, 1), st.integers(0, 200)), min_size=1, max_size=5),
    st.data(),
)
def test_equal_times_is_the_least_longest_time(trainers, data) -> None:
    most = [limit for _, _, limit in trainers]
    if not sum(most):
        return
    total = data.draw(st.integers(1, sum(most)))
    costs = [lambda n, a=a, b=b: 0.0 if n == 0 else a + b * n for a, b, _ in trainers]
    split = equal_times(costs, most, total)
    assert sum(split) == total
    assert all(0 <= units <= limit for units, limit in zip(split, most, strict=True))
    longest = max(cost(units) for cost, units in zip(costs, split, strict=True))
    # With less time than that, less than the whole step can be done.
    within = 0
    for cost, limit in zip(costs, most, strict=True):
        within += max((n for n in range(limit + 1) if cost(n) < longest * (1 - 1e-6)), default=0)
    assert within < total


def test_equal_accelerators_get_equal_parts() -> None:
    platform = Platform(
        name="m",
        host=Host(memory_gb_s=400, macs_per_s=1e12, trains=False),
        accelerators=(Accelerator(kind="a", memory_gb_s=300, macs_per_s=9e11, link_gb_s=8, count=7),),
    )
    split = initial_assignment(platform, training(1000)).split
    assert max(split) - min(split) <= 1


def test_memory_bounds_the_split() -> None:
    wide = Workload(
        vertices=(900_000, 150_000, 64), edges=(1_500_000, 160_000), features=(1000, 64, 16), concat=True
    )
    small = Accelerator(kind="a", memory_gb_s=300, macs_per_s=9e13, link_gb_s=800, memory_gib=2.0)
    platform = Platform(name="m", host=Host(memory_gb_s=4000, macs_per_s=1e9), accelerators=(small,))
    work = training(64, wide)
    most = max_units(platform.trainers()[1], work)
    assert trainer_memory_bytes(work.at(most)) <= 2 * 2**30 < trainer_memory_bytes(work.at(most + 1))
    assert initial_assignment(platform, work).split == (64 - most, most)
    alone = Platform(name="m", host=Host(memory_gb_s=1, macs_per_s=1, trains=False), accelerators=(small,))
    with pytest.raises(ValueError, match=r"a step of 64 targets does not fit"):
        initial_assignment(alone, work)


def test_a_large_machine_is_mapped_at_once() -> None:
    platform = Platform(
        name="m",
        host=Host(memory_gb_s=300, macs_per_s=2e12, cores=128, thread_load_gb_s=5, thread_edges_per_s=2e7),
        accelerators=(Accelerator(kind="a", memory_gb_s=300, macs_per_s=9e11, link_gb_s=8, count=16),),
    )
    work = TrainingWorkload(
        at=proportional_workload(WORK, 64), targets_per_epoch=10_000, batch_size=17 * 1024
    )
    started = time.perf_counter()
    initial_assignment(platform, work)
    assert time.perf_counter() - started < 2  # Some 0.2 s on a machine with nothing else to do.


def test_equal_accelerators_stay_equal_where_the_host_is_the_bottleneck() -> None:
    platform = Platform(
        name="m",
        host=Host(memory_gb_s=287, macs_per_s=2.16e12, cores=1),
        accelerators=(
            Accelerator(
                kind="a",
                memory_gb_s=61.6,
                macs_per_s=5.5e11,
                link_gb_s=12,
                pipelined=True,
                reads_each_source_once=True,
                count=4,
            ),
        ),
    )
    work = Workload(
        vertices=(160_000, 22_000, 1024), edges=(210_000, 24_000), features=(100, 256, 47), concat=True
    )
    chosen = initial_assignment(
        platform,
        TrainingWorkload(
            at=proportional_workload(work, 1024),
            targets_per_epoch=200_000,
            batch_size=5 * 1024,
            sample_s=0.003,
        ),
    )
    assert max(chosen.split[1:]) - min(chosen.split[1:]) <= 1


def test_a_trainer_that_slows_the_others_more_than_it_helps_gets_nothing() -> None:
    """Also where it is the one that would do most of the work: what it costs comes with its company."""
    host = Host(
        memory_gb_s=1e3,
        macs_per_s=1e9,
        cores=2,
        sharing_of={
            "cpu": CoreContention(step_s=0.0, efficiency=1.0),
            "cpu+other": CoreContention(step_s=50.0, efficiency=1.0),
            "other": CoreContention(step_s=40.0, efficiency=1.0),
        },
    )
    other = Accelerator(kind="other", memory_gb_s=1e3, macs_per_s=2e9, link_gb_s=math.inf, host_cores=1)
    platform = Platform(name="shared", host=host, accelerators=(other,))
    work = Workload(
        vertices=(10_000.0, 1000.0), edges=(1000.0,), features=(1000, 1000), concat=False, bytes_per_value=4
    )
    training = TrainingWorkload(
        at=lambda targets: work.scaled(targets / 1000), targets_per_epoch=1000, batch_size=1000, sample_s=0.0
    )
    assert initial_assignment(platform, training).split == (1000, 0)
