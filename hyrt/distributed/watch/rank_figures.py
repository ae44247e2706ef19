"""Statistics of one rank's part of a run, and the exchange of records between ranks."""

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

# Number of step groups for the medians; a run may have any number of groups.
_MAX_GROUPS = 4096


class RankFigures:
    """Collects the step times of one rank.

    Parameters
    ----------
    counts
        Byte counters of the rank.
    """

    def __init__(self, counts: ByteCounts) -> None:
        self._counts = counts
        self._times: deque[dict[str, float]] = deque(maxlen=_MAX_GROUPS)
        self._memory_bytes = 0
        self._chunks: Mapping[str, Mapping[str, Any]] = {}
        self.devices: list[str] = []
        """Names of the rank's trainers."""

    def hear(self, group: StepGroup) -> None:
        """Add the times of a group of steps."""
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


def told_by_all(group: RankGroup, record: Any) -> list[Any]:
    """Gather a record from each rank, in rank order; all ranks must call it at the same time.

    Parameters
    ----------
    group
        The ranks.
    record
        Record of this rank: plain values.
    """
    text = np.frombuffer(json.dumps(record).encode(), np.uint8)
    lengths = group.exchange_counts([len(text)] * group.size, "control")
    received = torch.empty(sum(lengths), dtype=torch.uint8)
    sent = torch.from_numpy(np.tile(text, group.size))
    group.exchange(sent, [len(text)] * group.size, received, lengths, "control")
    return [json.loads(part.numpy().tobytes()) for part in torch.split(received, lengths)]


def what_bounds(records: Sequence[Any]) -> str:
    """Return the rank and the stage that take longest in a step, as text; empty without steps.

    Parameters
    ----------
    records
        Record of each rank; None for a lost rank.
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
