"""Machines and work for the tests of the simulation."""

from __future__ import annotations

from hypothesis import strategies as st
from hyrt_perfmodel.platform import Accelerator, Host, Platform
from hyrt_perfmodel.policy import Assignment, Threads
from hyrt_perfmodel.workload import TrainingWorkload, Workload, proportional_workload

WORK = Workload(
    vertices=(100_000, 10_000, 1000), edges=(250_000, 25_000), features=(100, 256, 47), concat=True
)


def training(targets: int = 4000) -> TrainingWorkload:
    return TrainingWorkload(
        at=proportional_workload(WORK, 1000), targets_per_epoch=100_000, batch_size=targets
    )


def machine(count: int = 3, *, host: dict | None = None, accelerator: dict | None = None) -> Platform:
    """A host that trains, and accelerators; without cores nothing is shared."""
    return Platform(
        name="test",
        host=Host(
            **{
                "memory_gb_s": 100,
                "macs_per_s": 1e12,
                "thread_edges_per_s": 1e7,
                "step_s": 1e-3,
                **(host or {}),
            }
        ),
        accelerators=(
            Accelerator(
                **{
                    "kind": "gpu",
                    "memory_gb_s": 400,
                    "macs_per_s": 5e12,
                    "link_gb_s": 12,
                    "count": count,
                    **(accelerator or {}),
                }
            ),
        ),
    )


def start(*split: int, sample: int = 8, load: int = 4, train: int = 4) -> Assignment:
    return Assignment(split=split, threads=Threads(sample=sample, load=load, train=train))


@st.composite
def machines(draw: st.DrawFn) -> tuple[Platform, TrainingWorkload, Assignment]:
    """Any machine without shared resources, work on it and an assignment."""
    count = draw(st.integers(0, 16))
    trains = draw(st.booleans()) or count == 0

    def rate(low: float, high: float) -> float:
        return draw(st.floats(low, high))

    host = Host(
        memory_gb_s=rate(1, 400),
        macs_per_s=rate(1e9, 1e13),
        trains=trains,
        thread_edges_per_s=draw(st.none() | st.floats(1e5, 1e8)),
        step_s=rate(0, 1e-2),
    )
    accelerators = tuple(
        Accelerator(
            kind=f"kind{number}",
            memory_gb_s=rate(10, 1000),
            macs_per_s=rate(1e11, 1e14),
            link_gb_s=rate(1, 60),
            launch_s=rate(0, 1e-2),
            pipelined=draw(st.booleans()),
            count=part,
        )
        for number, part in enumerate((count // 2, count - count // 2))
    )
    trainers = count + trains
    split = draw(st.lists(st.integers(0, 2000), min_size=trainers, max_size=trainers).filter(any))
    threads = Threads(sample=draw(st.integers(1, 64)), load=draw(st.integers(1, 64)), train=1)
    platform = Platform(name="random", host=host, accelerators=accelerators)
    return platform, training(sum(split)), Assignment(split=tuple(split), threads=threads)
