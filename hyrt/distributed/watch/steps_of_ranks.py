"""The figures of some steps of all ranks as those of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hyrt.observe.events import StepGroup

_WAITS_FOR_ALL = "synchronize"


def steps_record(group: StepGroup) -> dict[str, Any]:
    """What a rank tells the others of its steps: plain values."""
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
    """A rank's steps with the figures of all: the step is through when the slowest rank is.

    The loss and the edges of a step are those of all ranks already.

    Parameters
    ----------
    group
        The steps.
    of_each
        What each rank tells of its own (`steps_record`), in their order.
    """
    # Who is through first waits there for the others: the shortest wait is what the exchange itself takes.
    stage_s = {
        stage: (min if stage == _WAITS_FOR_ALL else max)(each["stage_s"][stage] for each in of_each)
        for stage in group.stage_s
    }
    bottleneck = max((stage for stage in stage_s if stage != _WAITS_FOR_ALL), key=stage_s.__getitem__)
    slowest = max(range(len(of_each)), key=lambda rank: of_each[rank]["stage_s"][bottleneck])
    return replace(
        group,
        stage_s=stage_s,
        bottleneck=bottleneck,
        busy_s=_by_rank(of_each, "busy_s"),
        split=_by_rank(of_each, "split"),
        blocked_s=of_each[slowest]["blocked_s"],
        queued=_channels(of_each, "queued"),
        queue_depth=_channels(of_each, "queue_depth"),
        memory_bytes=sum(each["memory_bytes"] for each in of_each),
        chunks=chunks_by_rank([each["chunks"] for each in of_each]),
        num_ranks=len(of_each),
        slowest_rank=slowest,
    )


def chunks_by_rank(of_each: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What the trainers of all ranks tell of chunks, by `rank 1 cpu:0`; so are the devices of each.

    Parameters
    ----------
    of_each
        By trainer, the figures of `hyrt.fullgraph.chunks.chunked_step.ChunkedStep` of each rank.
    """
    return {
        f"rank {rank} {trainer}": {
            **figures,
            "by_device": {
                f"rank {rank} {device}": work for device, work in figures.get("by_device", {}).items()
            },
        }
        for rank, each in enumerate(of_each)
        for trainer, figures in each.items()
    }


def _by_rank(of_each: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    """By `rank 1 cpu:0` what each rank has by the names of its trainers."""
    return {
        f"rank {rank} {name}": value
        for rank, each in enumerate(of_each)
        for name, value in each[what].items()
    }


def _channels(of_each: Sequence[Mapping[str, Any]], what: str) -> dict[str, Any]:
    """The channels of all ranks: those of trainers by their new names, and the sum of others."""
    found: dict[str, Any] = {}
    for rank, each in enumerate(of_each):
        for name, value in each[what].items():
            channel, dot, trainer = name.partition(".")
            key = f"{channel}.rank {rank} {trainer}" if dot else channel
            found[key] = found.get(key, 0) + value
    return found
