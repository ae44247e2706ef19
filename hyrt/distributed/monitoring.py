"""Hooks of a distributed run: failures, statistics, measured speeds, adaptive time steps and traces."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from hyrt.device import Device
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.heartbeat import FailureReportExchange
from hyrt.distributed.process_group import (
    RankGroup,
    RankStats,
    all_gather_object,
    find_bottleneck,
    merge_chunks,
    merge_steps,
    steps_record,
)
from hyrt.distributed.strategies.hopgnn import decision_lag, num_time_steps
from hyrt.distributed.strategies.load_balancing import MeasuredEpoch, speed_weighted_shares
from hyrt.errors import HyrtError, join_names
from hyrt.formatting import format_bytes
from hyrt.telemetry.events import EpochEnded, Event, Notice, StepMetrics
from hyrt.telemetry.hooks import Hook, Site

_ROUNDS = 32


class TraceMerger:
    """Gatherer of the traces of all ranks (`hyrt.telemetry.trace_hook`).

    `group` belongs to the main thread of the run. `failure_reports` sends the trace of a rank if the run
    fails. `clock` is the clock of the traces, in nanoseconds.
    """

    def __init__(
        self,
        group: RankGroup,
        failure_reports: FailureReportExchange,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._group = group
        self._failure_reports = failure_reports
        self._clock = clock

    @property
    def rank(self) -> int:
        return self._group.rank

    def clock_offset(self) -> tuple[int, int]:
        """Return the offset of rank 0's clock from this rank's clock, and its uncertainty, in nanoseconds.

        A message cannot arrive before it was sent. Each message from rank 0 therefore bounds the offset from
        below, and each message to rank 0 from above. The result is the middle of the tightest bounds.
        """
        group, bounds = self._group, []
        for _ in range(_ROUNDS):
            sent = self._clock()
            rank0_sent = group.exchange_counts([sent] * group.size, "control")[0]
            received = self._clock()
            rank0_received = group.exchange_counts([received] * group.size, "control")[0]
            bounds.append((rank0_sent - received, rank0_received - sent))
        lower, upper = max(low for low, _ in bounds), min(high for _, high in bounds)
        return (lower + upper) // 2, (upper - lower + 1) // 2

    def all_gather(self, record: Any) -> Sequence[Any]:
        """Gather plain values (dicts, lists, numbers) from all ranks, in rank order."""
        return all_gather_object(self._group, record)

    def gather(self, data: bytes) -> Sequence[bytes]:
        """Gather the data of all ranks at rank 0, in rank order; empty at the other ranks."""
        group = self._group
        others = [0] * (group.size - 1)
        lengths = group.exchange_counts([len(data), *others], "control")
        received = torch.empty(sum(lengths), dtype=torch.uint8)
        sent = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        group.all_to_all(sent, [len(data), *others], received, lengths, "control")
        return [] if group.rank else [part.numpy().tobytes() for part in torch.split(received, lengths)]

    def deliver(self, data: bytes) -> Mapping[int, bytes]:
        """Send data when a run fails; return the data of all reachable ranks at the lowest of them."""
        return self._failure_reports.exchange("trace", data)


T = TypeVar("T")

# One thread runs these stages for all trainers of a rank; the other stages have a thread per trainer.
_SHARED_STAGES = ("sample", "load")
# Maximum fraction of an epoch's steps that may use the shares of the previous epoch.
_MAX_MIXED_STEPS = 1 / 4
_MEASURED_STAGES = (*_SHARED_STAGES, "transfer", "propagate")


class RankSpeeds(Hook):
    """Hook that measures this rank's stages without the time spent waiting for other ranks.

    The ranks exchange their speeds after each epoch, and therefore compute the same shares. `group` belongs
    to the training thread. When an epoch ends, up to `steps_ahead` steps may already have been split; they
    keep their shares. `overlapped` says whether stages run concurrently.
    """

    def __init__(self, group: RankGroup, steps_per_epoch: int, steps_ahead: int, *, overlapped: bool) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = steps_ahead
        self._overlapped = overlapped
        self._lag = decision_lag(steps_per_epoch, steps_ahead, _MAX_MIXED_STEPS)
        self._first_epoch = 0
        # Replace the tuple, never modify it: the sampling thread reads it concurrently.
        self._epochs: tuple[MeasuredEpoch, ...] = ()
        # Seconds and units by stage and trainer. Only one thread writes each entry.
        self._stage_totals: dict[tuple[str, int], list[float]] = {}

    def shares_of(self, step: int) -> tuple[float, ...]:
        """Return each rank's share of a step, [N]."""
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag) - self._first_epoch
        return speed_weighted_shares(self._epochs[: max(0, known)], self._group.size, self._lag)

    def resume_after(self, epochs: int) -> None:
        """Restart the measurements when a run resumes after `epochs` epochs; earlier ones are lost."""
        self._first_epoch = epochs

    def wrap_call(self, stage: str, site: Site, work: Callable[[], T]) -> T:
        if stage not in _MEASURED_STAGES or site.units < 1:
            return work()
        started = time.perf_counter()
        result = work()
        totals = self._stage_totals.setdefault((stage, site.trainer), [0.0, 0.0])
        totals[0] += time.perf_counter() - started
        totals[1] += site.units
        return result

    def on_event(self, event: Event) -> None:
        """Exchange the speeds of all ranks after an epoch; all ranks call this at the same time."""
        if not isinstance(event, EpochEnded):
            return
        records = all_gather_object(self._group, [event.seconds, self._speed()])
        measured = MeasuredEpoch(records[0][0], tuple(speed for _, speed in records))
        self._epochs = (*self._epochs, measured)

    def on_end(self, summary: dict[str, Any]) -> Notice:
        """Add the ranks' shares of the last step to the summary."""
        shares = [round(share, 3) for share in self.shares_of(summary["steps"])]
        summary["rank_shares"] = shares
        setting = ",".join(f"{share:g}" for share in shares)
        return Notice(
            kind="info",
            text="work was divided by measured rank speed; to reuse this split, set "
            f"distributed.shares={setting}",
        )

    def _speed(self) -> float | None:
        """Return the units per second since the last epoch; None without measurements."""
        totals, self._stage_totals = self._stage_totals, {}
        stages: dict[str, float] = {}
        units: dict[str, float] = {}
        for (stage, _), (seconds, trainer_units) in list(totals.items()):
            combine = sum if stage in _SHARED_STAGES else max
            stages[stage] = combine((stages.get(stage, 0.0), seconds))
            units[stage] = units.get(stage, 0.0) + trainer_units
        if not stages:
            return None
        slowest_s = max(stages.values()) if self._overlapped else sum(stages.values())
        return max(units.values()) / slowest_s


# Such a fraction changes the time of an epoch by less than the usual variation between epochs.
_MAX_MIXED_SHARE = 1 / 20


class AdaptiveTimeSteps(Hook):
    """Hook that merges time steps from the second epoch on while epochs get faster (HopGNN section 5.3).

    All ranks use the epoch times of rank 0, so that they choose the same number. `group` belongs to the
    training thread. When an epoch ends, up to `steps_ahead` steps may already have been split; they keep
    their time steps. `fixed` is a constant number of time steps; None adapts it.
    """

    def __init__(
        self, group: RankGroup, steps_per_epoch: int, steps_ahead: int, fixed: int | None = None
    ) -> None:
        self._group = group
        self._steps_per_epoch = steps_per_epoch
        self._ahead = steps_ahead
        self._lag = decision_lag(steps_per_epoch, steps_ahead, _MAX_MIXED_SHARE)
        self._fixed = fixed
        # Replace the tuple, never modify it: the sampling thread reads it concurrently.
        self._epochs_s: tuple[float, ...] = ()

    def num_times(self, step: int) -> int:
        if self._fixed is not None:
            return min(self._fixed, self._group.size)
        ended = max(0, step - self._ahead) // self._steps_per_epoch
        known = min(ended, step // self._steps_per_epoch + 1 - self._lag)
        return num_time_steps(self._epochs_s[: max(0, known)], self._group.size, self._lag)

    def restore(self, epochs_s: Sequence[float]) -> None:
        """Restore the epoch times (of rank 0, in seconds) of an earlier run."""
        self._epochs_s = tuple(epochs_s)

    def on_event(self, event: Event) -> None:
        if isinstance(event, EpochEnded) and self._fixed is None:
            seconds = torch.tensor([event.seconds], dtype=torch.float64)
            self._group.broadcast_from_first(seconds, "control")
            self._epochs_s = (*self._epochs_s, float(seconds))

    def on_end(self, summary: dict[str, Any]) -> None:
        """Add the number of time steps in the last step to the summary."""
        summary["time_steps"] = self.num_times(summary["steps"])


_PURPOSES = (
    *("edges", "rows", "cache", "indices", "columns", "hidden", "partials", "models"),
    *("row gradients", "partial sums", "gradients", "evaluation", "control"),
)


class RanksHook(Hook):
    """Hook that records a rank's step times, and reports failures of ranks and differing weights.

    `strategy` is the name of the strategy, for the summary.
    """

    def __init__(self, ranks: DistributedContext, parameters: Sequence[torch.Tensor], strategy: str) -> None:
        self._ranks = ranks
        self._parameters = list(parameters)
        self._strategy = strategy
        self._stats = RankStats(ranks.counts)
        # Last group of steps at this rank, and the records of all ranks for it.
        self._steps: tuple[StepMetrics | None, list[Any]] = (None, [])

    def on_start(self, devices: Sequence[Device], steps: range) -> None:
        self._stats.devices = [device.info.name for device in devices]

    def on_pipeline_failure(self, failure: BaseException) -> None:
        """Broadcast the failure at once, since shutting down this rank can take seconds."""
        self._ranks.broadcast_failure(failure)

    def on_stall(self) -> BaseException | None:
        """Return the failure of the rank that stalls this rank, or None."""
        return self._ranks.stall_reason()

    def on_event(self, event: Event) -> None:
        """Record step times, and compare the weights after each epoch.

        Raises HyrtError at all ranks if weights differ from those of rank 0; the message names the ranks.
        """
        if isinstance(event, StepMetrics):
            self._stats.add(event)
            # An irregular group ends at a checkpoint of only one rank, so the ranks cannot exchange records.
            if event.is_regular:
                self._steps = event, all_gather_object(self._ranks.control, steps_record(event))
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
                f"after epoch {event.epoch}, the weights of rank {join_names(others)} differ from those "
                "of rank 0: use machines with the same processors for all ranks, or set the same "
                "ATEN_CPU_CAPABILITY on all of them"
            )

    def merge_event(self, event: Event) -> Event:
        """Return the event for display and records; step groups are merged over all ranks."""
        local_group, records = self._steps
        return (
            merge_steps(event, records) if isinstance(event, StepMetrics) and event is local_group else event
        )

    def on_end(self, summary: dict[str, Any]) -> Notice:
        """Add the traffic of all ranks and the statistics of each rank to the summary."""
        group = self._ranks.control
        sent = self._ranks.counts.sent()
        bytes_sent = torch.zeros(group.size, len(_PURPOSES), dtype=torch.int64)
        for index, purpose in enumerate(_PURPOSES):
            bytes_sent[group.rank, index] = sent.get(purpose, 0)
        group.all_reduce(bytes_sent, "control")
        by_rank = [dict(zip(_PURPOSES, counts, strict=True)) for counts in bytes_sent.tolist()]
        totals = {purpose: sum(counts[purpose] for counts in by_rank) for purpose in _PURPOSES}
        records = all_gather_object(group, self._stats.record())
        _add_chunks(records, summary)
        bottleneck = find_bottleneck(records)
        summary["distributed"] = {
            "ranks": group.size,
            "strategy": self._strategy,
            "bytes_sent": totals,
            "bytes_sent_by_rank": by_rank,
            "bounded_by": bottleneck,
            "by_rank": records,
        }
        text = ", ".join(f"{format_bytes(count)} of {purpose}" for purpose, count in totals.items() if count)
        slowest = f"; their steps are bounded by {bottleneck}" if bottleneck else ""
        return Notice(kind="info", text=f"{group.size} ranks ({self._strategy}) sent {text}{slowest}")

    def on_failure(self, error: BaseException, summary: dict[str, Any]) -> None:
        """Send this rank's statistics; the lowest reachable rank adds all statistics to the summary."""
        self._ranks.broadcast_failure(error)
        record = json.dumps(self._stats.record()).encode()
        reports = self._ranks.failure_reports.exchange("figures", record)
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
            "bounded_by": find_bottleneck(all_records),
            "by_rank": all_records,
        }


def _add_chunks(records: Sequence[dict[str, Any] | None], summary: dict[str, Any]) -> None:
    """Move the chunk statistics from the ranks' records to the summary."""
    chunks = merge_chunks([{} if record is None else record.pop("chunks") for record in records])
    if chunks:
        summary["chunks"] = chunks
