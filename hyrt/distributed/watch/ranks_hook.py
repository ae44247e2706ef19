"""Hook of a distributed run: broadcasts failures, compares weights and collects statistics."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from hyrt.device import Device
from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.watch.rank_figures import RankFigures, told_by_all, what_bounds
from hyrt.distributed.watch.steps_of_ranks import chunks_by_rank, joined_steps, steps_record
from hyrt.errors import HyrtError, listed
from hyrt.observe.events import EpochEnded, Event, Notice, StepGroup
from hyrt.observe.hook import Hook
from hyrt.quantities import size

_PURPOSES = (
    *("edges", "rows", "cache", "indices", "columns", "hidden", "partials", "models"),
    *("row gradients", "partial sums", "gradients", "evaluation", "control"),
)


class RanksHook(Hook):
    """Monitors one rank's part of a run.

    Parameters
    ----------
    ranks
        All ranks.
    parameters
        Master weights.
    strategy
        Name of the strategy, for the summary.
    """

    def __init__(self, ranks: JoinedRanks, parameters: Sequence[torch.Tensor], strategy: str) -> None:
        self._ranks = ranks
        self._parameters = list(parameters)
        self._strategy = strategy
        self._stats = RankFigures(ranks.counts)
        # Last step group of this rank, and the records of all ranks for it.
        self._steps: tuple[StepGroup | None, list[Any]] = (None, [])

    def begin(self, devices: Sequence[Device], steps: range) -> None:
        """Record the devices of this rank."""
        self._stats.devices = [device.info.name for device in devices]

    def fail(self, failure: BaseException) -> None:
        """Broadcast the failure at once, since shutting down this rank may take seconds."""
        self._ranks.tell_failure(failure)

    def stall(self) -> BaseException | None:
        """Return the failure of another rank that stalls this rank, or None if there is none."""
        return self._ranks.why_held_up()

    def hear(self, event: Event) -> None:
        """Record step times, and compare the weights after each epoch.

        Raises
        ------
        HyrtError
            At all ranks, if weights differ from those of rank 0; names the ranks.
        """
        if isinstance(event, StepGroup):
            self._stats.hear(event)
            # Irregular groups end at a checkpoint of one rank only, so the ranks cannot exchange records.
            if event.is_regular:
                self._steps = event, told_by_all(self._ranks.control, steps_record(event))
        if not isinstance(event, EpochEnded):
            return
        checksum = 0
        for parameter in self._parameters:
            checksum = zlib.crc32(parameter.detach().contiguous().view(-1).numpy().tobytes(), checksum)
        group = self._ranks.control
        checksums = group.exchange_counts([checksum] * group.size, "control")
        others = [str(rank) for rank, other in enumerate(checksums) if other != checksums[0]]
        if others:
            raise HyrtError(
                f"after epoch {event.epoch}, the weights of rank {listed(others)} differ from those of rank "
                "0. Start all ranks on machines with the same "
                "processors, or with the same ATEN_CPU_CAPABILITY"
            )

    def seen(self, event: Event) -> Event:
        """Return the event for display and records; step groups are merged over all ranks."""
        local_group, records = self._steps
        return (
            joined_steps(event, records) if isinstance(event, StepGroup) and event is local_group else event
        )

    def end(self, summary: dict[str, Any]) -> Notice:
        """Add the bytes sent by all ranks and the statistics of each rank to the summary."""
        group = self._ranks.control
        sent = self._ranks.counts.sent()
        bytes_sent = torch.zeros(group.size, len(_PURPOSES), dtype=torch.int64)
        for index, purpose in enumerate(_PURPOSES):
            bytes_sent[group.rank, index] = sent.get(purpose, 0)
        group.add(bytes_sent, "control")
        by_rank = [dict(zip(_PURPOSES, counts, strict=True)) for counts in bytes_sent.tolist()]
        totals = {purpose: sum(counts[purpose] for counts in by_rank) for purpose in _PURPOSES}
        records = told_by_all(group, self._stats.record())
        _add_chunks(records, summary)
        bottleneck = what_bounds(records)
        summary["distributed"] = {
            "ranks": group.size,
            "strategy": self._strategy,
            "bytes_sent": totals,
            "bytes_sent_by_rank": by_rank,
            "bounded_by": bottleneck,
            "by_rank": records,
        }
        text = ", ".join(f"{size(count)} of {purpose}" for purpose, count in totals.items() if count)
        slowest = f"; their steps are bounded by {bottleneck}" if bottleneck else ""
        return Notice(kind="info", text=f"{group.size} ranks ({self._strategy}) sent {text}{slowest}")

    def end_failed(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Send this rank's statistics; the lowest reachable rank adds all statistics to the summary."""
        self._ranks.tell_failure(error)
        record = json.dumps(self._stats.record()).encode()
        reports = self._ranks.last_words.leave("figures", record)
        if not reports:
            return
        records = {rank: json.loads(entry) for rank, entry in reports.items()}
        all_records = [records.get(rank) for rank in range(self._ranks.size)]
        _add_chunks(all_records, summary)
        by_rank = [{} if entry is None else entry["bytes_sent"] for entry in all_records]
        summary["distributed"] = {
            "ranks": self._ranks.size,
            "strategy": self._strategy,
            "bytes_sent": {name: sum(entry.get(name, 0) for entry in by_rank) for name in _PURPOSES},
            "bytes_sent_by_rank": [{name: entry.get(name, 0) for name in _PURPOSES} for entry in by_rank],
            "bounded_by": what_bounds(all_records),
            "by_rank": all_records,
        }


def _add_chunks(records: Sequence[dict[str, Any] | None], summary: dict[str, Any]) -> None:
    """Move the chunk statistics from the records of the ranks to the summary."""
    chunks = chunks_by_rank([{} if record is None else record.pop("chunks") for record in records])
    if chunks:
        summary["chunks"] = chunks
