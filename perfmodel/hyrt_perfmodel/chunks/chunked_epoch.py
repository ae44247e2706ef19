"""Simulated time of a full-graph epoch in chunks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from hyrt_perfmodel.chunks.busy_spans import joined, length, overlap
from hyrt_perfmodel.chunks.chunk_grid import GridSizes
from hyrt_perfmodel.chunks.chunk_machines import ChunkMachine
from hyrt_perfmodel.chunks.chunk_schedule import ChunkSchedule
from hyrt_perfmodel.chunks.epoch_tasks import EpochTasks
from hyrt_perfmodel.chunks.queued_tasks import QueuedTask, TaskTimes, run_tasks
from hyrt_perfmodel.workloads.chunk_work import GatheringLayer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedEpoch:
    """One simulated epoch."""

    seconds: float
    copy_s: float
    compute_s: float
    """`copy_s` and `compute_s`: copy time and compute time of the busiest device."""
    hidden: float
    """Fraction of the copy time of all devices during which the same device computes."""
    tasks: tuple[QueuedTask, ...]
    times: TaskTimes
    """`tasks` and `times`: the tasks, and when each ran."""


def simulate_epoch(
    grid: GridSizes,
    layers: Sequence[GatheringLayer],
    machine: ChunkMachine,
    schedule: ChunkSchedule,
    targets: GridSizes | None = None,
) -> ChunkedEpoch:
    """Simulate one epoch, forward and backward.

    Parameters
    ----------
    grid
        Chunks of the graph.
    layers
        Layers of the model.
    machine
        Machine that computes.
    schedule
        Schedule options.
    targets
        Chunks of the edges into the vertices at which the last layer is computed; by default all chunks.
    """
    epoch = EpochTasks(grid, targets or grid, machine, schedule)
    epoch.epoch(layers)
    times = run_tasks(epoch.tasks, epoch.capacities)
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for task, begin, end in zip(epoch.tasks, times.begin_s, times.end_s, strict=True):
        spans[task.queue].append((begin, end))
    copying = [joined(spans[f"copy in {d}"] + spans[f"copy out {d}"]) for d in range(len(machine.devices))]
    computing = [joined(spans[f"compute {d}"]) for d in range(len(machine.devices))]
    total = sum(map(length, copying))
    both = sum(overlap(a, b) for a, b in zip(copying, computing, strict=True))
    return ChunkedEpoch(
        seconds=times.total_s,
        copy_s=max(map(length, copying)),
        compute_s=max(map(length, computing)),
        hidden=both / total if total else 1.0,
        tasks=epoch.tasks,
        times=times,
    )
