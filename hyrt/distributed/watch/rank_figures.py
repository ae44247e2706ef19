"""What one rank took for its part of a run, and how the ranks tell each other."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from hyrt.distributed.byte_counts import ByteCounts
from hyrt.distributed.rank_group import RankGroup
from hyrt.observe.events import StepGroup

# Groups of steps of which medians are taken: a run may have any number of them.
_NEWEST = 4096


class RankFigures:
    """Collects the times of one rank's steps.

    Parameters
    ----------
    counts
        What the rank sends and receives.
    """

    def __init__(self, counts: ByteCounts) -> None:
        self._counts = counts
        self._times: deque[dict[str, float]] = deque(maxlen=_NEWEST)
        self._memory_bytes = 0
        self._chunks: Mapping[str, Mapping[str, Any]] = {}
        self.devices: list[str] = []
        """The names of the rank's trainers."""

    def hear(self, group: StepGroup) -> None:
        """Take the times of some steps."""
        self._times.append({"": group.step_s, **group.stage_s})
        self._memory_bytes = max(self._memory_bytes, group.memory_bytes)
        self._chunks = group.chunks

    def record(self) -> dict[str, Any]:
        """Plain values by name: medians of times, bytes by purpose, and where the rank ran."""
        times = self._times
        middle = {name: median(each[name] for each in times) for name in (times[0] if times else ())}
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "devices": self.devices,
            "step_s": middle.pop("", None),
            "stage_s": middle,
            "memory_bytes": self._memory_bytes or None,
            "bytes_sent": self._counts.sent(),
            "bytes_received": self._counts.received(),
            "chunks": dict(self._chunks),
        }


def told_by_all(group: RankGroup, record: Any) -> list[Any]:
    """A record of each rank, in their order; all of them call it at once.

    Parameters
    ----------
    group
        The ranks.
    record
        What this one tells: plain values.
    """
    text = np.frombuffer(json.dumps(record).encode(), np.uint8)
    lengths = group.exchange_counts([len(text)] * group.size, "control")
    taken = torch.empty(sum(lengths), dtype=torch.uint8)
    given = torch.from_numpy(np.tile(text, group.size))
    group.exchange(given, [len(text)] * group.size, taken, lengths, "control")
    return [json.loads(part.numpy().tobytes()) for part in torch.split(taken, lengths)]


def what_bounds(records: Sequence[Any]) -> str:
    """The rank and the stage that take longest in a step, in words; empty without steps.

    Parameters
    ----------
    records
        The record of each rank; None for one that was lost.
    """
    found = [
        (seconds, rank, stage)
        for rank, record in enumerate(records)
        for stage, seconds in ({} if record is None else record["stage_s"]).items()
        # In which all wait for the slowest.
        if stage != "synchronize"
    ]
    if not found:
        return ""
    _, rank, stage = max(found)
    return f"{stage} of rank {rank}"
