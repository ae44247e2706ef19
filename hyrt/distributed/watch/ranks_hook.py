"""The hook of a distributed run: it tells the others of failures, and compares the weights."""

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
    """Watches one rank's part of a run.

    Parameters
    ----------
    ranks
        All ranks.
    parameters
        The master weights.
    strategy
        The name of the strategy, for the summary.
    """

    def __init__(self, ranks: JoinedRanks, parameters: Sequence[torch.Tensor], strategy: str) -> None:
        self._ranks = ranks
        self._parameters = list(parameters)
        self._strategy = strategy
        self._figures = RankFigures(ranks.counts)
        # The newest group of this rank, and what each has told of theirs.
        self._steps: tuple[StepGroup | None, list[Any]] = (None, [])

    def begin(self, devices: Sequence[Device], steps: range) -> None:
        """Note the devices of this rank."""
        self._figures.devices = [device.info.name for device in devices]

    def fail(self, failure: BaseException) -> None:
        """Let the others know at once; this rank's own end may take seconds."""
        self._ranks.tell_failure(failure)

    def stall(self) -> BaseException | None:
        """Why another rank holds this one up, if that is so: whoever waits is not to blame itself."""
        return self._ranks.why_held_up()

    def hear(self, event: Event) -> None:
        """Note the times of steps, and compare the weights after each epoch.

        Raises
        ------
        HyrtError
            At all ranks, naming those whose weights are not those of rank 0.
        """
        if isinstance(event, StepGroup):
            self._figures.hear(event)
            # Each rank may write checkpoints at steps of its own, which end groups there alone.
            if event.is_regular:
                self._steps = event, told_by_all(self._ranks.control, steps_record(event))
        if not isinstance(event, EpochEnded):
            return
        checksum = 0
        for parameter in self._parameters:
            checksum = zlib.crc32(parameter.detach().contiguous().view(-1).numpy().tobytes(), checksum)
        group = self._ranks.control
        found = group.exchange_counts([checksum] * group.size, "control")
        others = [str(rank) for rank, each in enumerate(found) if each != found[0]]
        if others:
            raise HyrtError(
                f"after epoch {event.epoch}, the weights of rank {listed(others)} are not those of rank 0: "
                "their optimizers computed something else. Start all ranks on machines with the same "
                "processors, or with the same ATEN_CPU_CAPABILITY"
            )

    def seen(self, event: Event) -> Event:
        """The event as it is shown and recorded: of steps, the figures of all ranks."""
        mine, of_each = self._steps
        return joined_steps(event, of_each) if isinstance(event, StepGroup) and event is mine else event

    def end(self, summary: dict[str, Any]) -> Notice:
        """Add what all ranks have sent, by purpose, and what each took."""
        group = self._ranks.control
        sent = self._ranks.counts.sent()
        bytes_sent = torch.zeros(group.size, len(_PURPOSES), dtype=torch.int64)
        for at, purpose in enumerate(_PURPOSES):
            bytes_sent[group.rank, at] = sent.get(purpose, 0)
        group.add(bytes_sent, "control")
        by_rank = [dict(zip(_PURPOSES, each, strict=True)) for each in bytes_sent.tolist()]
        totals = {purpose: sum(each[purpose] for each in by_rank) for purpose in _PURPOSES}
        of_each = told_by_all(group, self._figures.record())
        _add_chunks(of_each, summary)
        bounded = what_bounds(of_each)
        summary["distributed"] = {
            "ranks": group.size,
            "strategy": self._strategy,
            "bytes_sent": totals,
            "bytes_sent_by_rank": by_rank,
            "bounded_by": bounded,
            "by_rank": of_each,
        }
        text = ", ".join(f"{size(count)} of {purpose}" for purpose, count in totals.items() if count)
        slowest = f"; their steps are bounded by {bounded}" if bounded else ""
        return Notice(kind="info", text=f"{group.size} ranks ({self._strategy}) sent {text}{slowest}")

    def end_failed(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Leave what this rank took; at the first rank that is left, add what all left that still could."""
        self._ranks.tell_failure(error)
        record = json.dumps(self._figures.record()).encode()
        left = self._ranks.last_words.leave("figures", record)
        if not left:
            return
        records = {rank: json.loads(each) for rank, each in left.items()}
        of_each = [records.get(rank) for rank in range(self._ranks.size)]
        _add_chunks(of_each, summary)
        by_rank = [{} if each is None else each["bytes_sent"] for each in of_each]
        summary["distributed"] = {
            "ranks": self._ranks.size,
            "strategy": self._strategy,
            "bytes_sent": {name: sum(each.get(name, 0) for each in by_rank) for name in _PURPOSES},
            "bytes_sent_by_rank": [{name: each.get(name, 0) for name in _PURPOSES} for each in by_rank],
            "bounded_by": what_bounds(of_each),
            "by_rank": of_each,
        }


def _add_chunks(of_each: Sequence[dict[str, Any] | None], summary: dict[str, Any]) -> None:
    """Take what ranks tell of chunks out of their records; the summary has those of all."""
    chunks = chunks_by_rank([{} if each is None else each.pop("chunks") for each in of_each])
    if chunks:
        summary["chunks"] = chunks
