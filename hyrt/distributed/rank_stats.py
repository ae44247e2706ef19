"""Statistics of one rank's part of a run, their exchange, and step statistics merged over all ranks."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch

from hyrt.distributed.process_group import RankGroup, TrafficCounters
from hyrt.telemetry.events import StepMetrics

# Number of step groups for the medians; a run may have any number of groups.
_MAX_GROUPS = 4096


class RankStats:
    """Step times of one rank, with its byte counters."""

    def __init__(self, counts: TrafficCounters) -> None:
        self._counts = counts
        self._times: deque[dict[str, float]] = deque(maxlen=_MAX_GROUPS)
        self._memory_bytes = 0
        self._chunks: Mapping[str, Mapping[str, Any]] = {}
        self.devices: list[str] = []

    def add(self, group: StepMetrics) -> None:
        self._times.append({"": group.step_s, **group.stage_s})
        self._memory_bytes = max(self._memory_bytes, group.memory_bytes)
        self._chunks = group.chunks

    def record(self) -> dict[str, Any]:
        """Return plain values by name: median times, bytes by purpose, and the host of the rank."""
        times = self._times
        medians = {name: median(group[name] for group in times) for name in (times[0] if times else ())}
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "devices": self.devices,
            "step_s": medians.pop("", None),
            "stage_s": medians,
            "memory_bytes": self._memory_bytes or None,
            "bytes_sent": self._counts.sent(),
            "bytes_received": self._counts.received(),
            "chunks": dict(self._chunks),
        }


def all_gather_object(group: RankGroup, record: Any) -> list[Any]:
    """Gather a record of plain values from each rank, in rank order; all ranks must call this together."""
    text = np.frombuffer(json.dumps(record).encode(), np.uint8)
    lengths = group.exchange_counts([len(text)] * group.size, "control")
    received = torch.empty(sum(lengths), dtype=torch.uint8)
    sent = torch.from_numpy(np.tile(text, group.size))
    group.all_to_all(sent, [len(text)] * group.size, received, lengths, "control")
    return [json.loads(part.numpy().tobytes()) for part in torch.split(received, lengths)]


def find_bottleneck(records: Sequence[Any]) -> str:
    """Return the rank and the stage that take longest in a step, as text; empty without steps.

    The record of a lost rank is None.
    """
    times = [
        (seconds, rank, stage)
        for rank, record in enumerate(records)
        for stage, seconds in ({} if record is None else record["stage_s"]).items()
        # All ranks wait for the slowest rank in this stage.
        if stage != "synchronize"
    ]
    if not times:
        return ""
    _, rank, stage = max(times)
    return f"{stage} of rank {rank}"


_SYNCHRONIZE = "synchronize"


def steps_record(group: StepMetrics) -> dict[str, Any]:
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


def merge_steps(group: StepMetrics, records: Sequence[Mapping[str, Any]]) -> StepMetrics:
    """Merge the step groups of all ranks: the slowest rank determines the time of a step.

    `records` has the `steps_record` of each rank, in rank order. Loss and edges already include all ranks.
    """
    # Ranks that finish early wait in this stage: the shortest time is the cost of the exchange itself.
    stage_s = {
        stage: (min if stage == _SYNCHRONIZE else max)(record["stage_s"][stage] for record in records)
        for stage in group.stage_s
    }
    bottleneck = max((stage for stage in stage_s if stage != _SYNCHRONIZE), key=stage_s.__getitem__)
    slowest = max(range(len(records)), key=lambda rank: records[rank]["stage_s"][bottleneck])
    return replace(
        group,
        stage_s=stage_s,
        bottleneck=bottleneck,
        busy_s=_merge_by_trainer(records, "busy_s"),
        split=_merge_by_trainer(records, "split"),
        blocked_s=records[slowest]["blocked_s"],
        queued=_merge_channels(records, "queued"),
        queue_depth=_merge_channels(records, "queue_depth"),
        memory_bytes=sum(record["memory_bytes"] for record in records),
        chunks=merge_chunks([record["chunks"] for record in records]),
        num_ranks=len(records),
        slowest_rank=slowest,
    )


def merge_chunks(records: Sequence[Mapping[str, Mapping[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Merge the `ChunkedStep` figures of all ranks' trainers, with keys such as `rank 1 cpu:0`."""
    return {
        f"rank {rank} {trainer}": {
            **figures,
            "by_device": {
                f"rank {rank} {device}": work for device, work in figures.get("by_device", {}).items()
            },
        }
        for rank, trainers in enumerate(records)
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
