"""What one rank took for its part of a run, and how the ranks tell each other."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from hyrt.distributed.byte_counts import ByteCounts
from hyrt.distributed.rank_group import RankGroup
from hyrt.observe.events import StepGroup


class RankFigures:
    """Collects the times of one rank's steps.

    Parameters
    ----------
    counts
        What the rank sends and receives.
    """

    def __init__(self, counts: ByteCounts) -> None:
        self._counts = counts
        self._groups: list[StepGroup] = []
        self.devices: list[str] = []
        """The names of the rank's trainers."""

    def hear(self, group: StepGroup) -> None:
        """Take the times of some steps."""
        self._groups.append(group)

    def record(self) -> dict[str, Any]:
        """Plain values by name: medians of times, bytes by purpose, and where the rank ran."""
        groups = self._groups
        stages = groups[0].stage_s if groups else ()
        return {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "devices": self.devices,
            "step_s": median(group.step_s for group in groups) if groups else None,
            "stage_s": {stage: median(group.stage_s[stage] for group in groups) for stage in stages},
            "memory_bytes": max((group.memory_bytes for group in groups), default=None),
            "bytes_sent": self._counts.sent(),
            "bytes_received": self._counts.received(),
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
    """The rank and the stage that take longest in a step, in words; empty without steps."""
    found = [
        (seconds, rank, stage)
        for rank, record in enumerate(records)
        for stage, seconds in record["stage_s"].items()
        # In which all wait for the slowest.
        if stage != "synchronize"
    ]
    if not found:
        return ""
    _, rank, stage = max(found)
    return f"{stage} of rank {rank}"
