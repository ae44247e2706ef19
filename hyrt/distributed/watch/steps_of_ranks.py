"""Merging of step statistics over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hyrt.observe.events import StepGroup

_SYNCHRONIZE = "synchronize"


def steps_record(group: StepGroup) -> dict[str, Any]:
    """Return the record of a step group that a rank sends to the other ranks, as plain values."""
    return {
        "stage_s": dict(group.stage_s),
        "busy_s": dict(group.busy_s),
        "blocked_s": dict(group.blocked_s),
        "queued": dict(group.queued),
        "queue_depth": dict(group.queue_depth),
        "split": dict(group.split),
        "memory_bytes": group.memory_bytes,
        "chunks": dict(group.chunks),
    }


def joined_steps(group: StepGroup, of_each: Sequence[Mapping[str, Any]]) -> StepGroup:
    """Merge the step groups of all ranks: the slowest rank determines the time of a step.

    Loss and edges of a step group already include all ranks.

    Parameters
    ----------
    group
        The steps.
    of_each
        Record of each rank (`steps_record`), in rank order.
    """
    # Ranks that finish early wait in this stage: the shortest time is the cost of the exchange itself.
    stage_s = {
        stage: (min if stage == _SYNCHRONIZE else max)(record["stage_s"][stage] for record in of_each)
        for stage in group.stage_s
    }
    bottleneck = max((stage for stage in stage_s if stage != _SYNCHRONIZE), key=stage_s.__getitem__)
    slowest = max(range(len(of_each)), key=lambda rank: of_each[rank]["stage_s"][bottleneck])
    return replace(
        group,
        stage_s=stage_s,
        bottleneck=bottleneck,
        busy_s=_merge_by_trainer(of_each, "busy_s"),
        split=_merge_by_trainer(of_each, "split"),
        blocked_s=of_each[slowest]["blocked_s"],
        queued=_merge_channels(of_each, "queued"),
        queue_depth=_merge_channels(of_each, "queue_depth"),
        memory_bytes=sum(record["memory_bytes"] for record in of_each),
        chunks=chunks_by_rank([record["chunks"] for record in of_each]),
        num_ranks=len(of_each),
        slowest_rank=slowest,
    )


def chunks_by_rank(of_each: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Merge the chunk statistics of all ranks' trainers and devices, with keys such as `rank 1 cpu:0`.

    Parameters
    ----------
    of_each
        For each rank, statistics of `hyrt.fullgraph.chunks.chunked_step.ChunkedStep` by trainer.
    """
    return {
        f"rank {rank} {trainer}": {
            **figures,
            "by_device": {
                f"rank {rank} {device}": work for device, work in figures.get("by_device", {}).items()
            },
        }
        for rank, trainers in enumerate(of_each)
        for trainer, figures in trainers.items()
    }


def _merge_by_trainer(records: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """Merge a dictionary by trainer over all ranks, with keys such as `rank 1 cpu:0`."""
    return {
        f"rank {rank} {name}": value
        for rank, record in enumerate(records)
        for name, value in record[key].items()
    }


def _merge_channels(records: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any]:
    """Merge channel statistics: prefix trainers' channels with the rank, and sum other channels."""
    merged: dict[str, Any] = {}
    for rank, record in enumerate(records):
        for name, value in record[field].items():
            channel, dot, trainer = name.partition(".")
            key = f"{channel}.rank {rank} {trainer}" if dot else channel
            merged[key] = merged.get(key, 0) + value
    return merged
