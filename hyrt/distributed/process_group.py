"""Process groups for collective operations, traffic counters, and statistics that ranks exchange."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.runtime.stage_threads import ChannelClosedError
from hyrt.telemetry.events import StepMetrics


class TrafficCounters:
    """Thread-safe counters of the bytes that one rank sends and receives."""

    def __init__(self) -> None:
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, purpose: str, sent: int, received: int) -> None:
        with self._lock:
            self._sent[purpose] += sent
            self._received[purpose] += received

    def sent(self) -> dict[str, int]:
        """Return the bytes sent so far, by purpose."""
        with self._lock:
            return dict(self._sent)

    def received(self) -> dict[str, int]:
        """Return the bytes received so far, by purpose."""
        with self._lock:
            return dict(self._received)


ErrorFactory = Callable[[str, Exception], Exception]
"""Function that converts torch's error for a named operation into an error with the lost rank and reason."""


class PendingCollective:
    """Handle of an asynchronous collective operation.

    `operation` is torch's handle. `wait` waits for it, or until the event is set.
    """

    def __init__(self, operation: Any, wait: Callable[[Any, threading.Event], None]) -> None:
        self._operation = operation
        self._wait = wait
        self._woken = threading.Event()
        self.ended_at: float | None = None
        """End time (`time.perf_counter`); None while the operation is running."""
        # Use a callback: a thread in `operation.wait()` cannot be woken before the timeout.
        operation.get_future().add_done_callback(self._note_end)

    def _note_end(self, future: Any) -> None:
        self.ended_at = time.perf_counter()
        self._woken.set()

    @property
    def running_operation(self) -> Any | None:
        """The operation, if it is running and no thread is waiting for it yet."""
        return self._operation if self.ended_at is None else None

    def wake(self) -> None:
        """Wake the thread that is blocked in `wait`, because the operation was aborted."""
        self._woken.set()

    def wait(self) -> None:
        """Wait until the operation has ended, and raise the group's errors. May be called only once."""
        operation, self._operation = self._operation, None
        self._wait(operation, self._woken)


class RankGroup:
    """Process group of all or some ranks.

    One thread per rank uses the group, and every rank must issue its operations in the same order. Tensors
    are contiguous and on the CPU. If a rank is lost, an operation raises the error that `make_error` returns.
    The ranks find each other's addresses in `store`. `rank` is the number of this rank in the group. An
    operation may take at most `timeout_s` seconds. `counts` adds up the bytes of all operations.
    """

    def __init__(
        self,
        name: str,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        counts: TrafficCounters,
        make_error: ErrorFactory,
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.num_started = 0
        """Number of operations that this rank has started."""
        self.has_live_operations = False
        """Whether an aborted operation is still running, so that torch would wait for it at exit."""
        self._counts = counts
        self._make_error = make_error
        self._waiting: WeakSet[PendingCollective] = WeakSet()
        self._reason: Exception | None = None
        self._group: Any = dist.ProcessGroupGloo(
            PrefixStore(name, store), rank, size, timedelta(seconds=timeout_s)
        )

    def all_reduce(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by its sum over all ranks (all-reduce); all ranks get the same bits.

        Equal tensors on the same number of ranks give equal bits in every run.
        """
        self.start_all_reduce(tensor, purpose).wait()

    def start_all_reduce(self, tensor: torch.Tensor, purpose: str) -> PendingCollective:
        """Start an `all_reduce`; the tensor must not be used until the operation has ended."""
        pending = self._start(lambda: self._group.allreduce([tensor]), purpose)
        num_bytes = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._counts.add(purpose, num_bytes, num_bytes)
        return pending

    def broadcast_from_first(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by the tensor of rank 0 (broadcast)."""
        self.start_broadcast(tensor, 0, purpose).wait()

    def all_to_all(
        self,
        sent: torch.Tensor,
        send_counts: Sequence[int],
        received: torch.Tensor,
        receive_counts: Sequence[int],
        purpose: str,
    ) -> None:
        """Send rows to every rank, and receive rows from every rank (all-to-all).

        `sent` [n, ...] has the rows for rank 0, then the rows for rank 1, and so on, with `send_counts` rows
        per rank. `received` [m, ...] is overwritten with the rows from all ranks in the same way. `purpose`
        is for the byte counters, as in all operations.
        """
        self.start_all_to_all(sent, send_counts, received, receive_counts, purpose).wait()

    def start_all_to_all(
        self,
        sent: torch.Tensor,
        send_counts: Sequence[int],
        received: torch.Tensor,
        receive_counts: Sequence[int],
        purpose: str,
    ) -> PendingCollective:
        """Start an `all_to_all`; `sent` and `received` must not be used until the operation has ended."""
        pending = self._start(
            lambda: self._group.alltoall_base(received, sent, list(receive_counts), list(send_counts)),
            purpose,
        )
        self._counts.add(
            purpose, self._remote_bytes(sent, send_counts), self._remote_bytes(received, receive_counts)
        )
        return pending

    def start_broadcast(self, tensor: torch.Tensor, root: int, purpose: str) -> PendingCollective:
        """Start to replace a tensor by the tensor of rank `root` (broadcast)."""
        pending = self._start(lambda: self._group.broadcast(tensor, root), purpose)
        is_root = self.rank == root
        others = tensor.nbytes * (self.size - 1)
        self._counts.add(purpose, others if is_root else 0, 0 if is_root else tensor.nbytes)
        return pending

    def start_reduce(self, tensor: torch.Tensor, root: int, purpose: str) -> PendingCollective:
        """Start to replace the tensor at rank `root` by the sum over all ranks (reduce).

        At the other ranks, the tensors are undefined afterwards. Equal tensors on the same number of ranks
        give equal bits in every run.
        """
        pending = self._start(lambda: self._group.reduce(tensor, root), purpose)
        # gloo first reduces pieces around a ring until each rank has the sum of one piece, and then gathers
        # the pieces.
        is_root = self.rank == root
        ring = (self.size - 1) * tensor.nbytes // self.size
        gathered = tensor.nbytes - ring
        self._counts.add(
            purpose,
            ring if is_root else ring + gathered,
            ring + (self.size - 1) * gathered if is_root else ring,
        )
        return pending

    def exchange_counts(self, counts: Sequence[int], purpose: str) -> list[int]:
        """Send one integer to each rank; return the integers received from all ranks."""
        sent, received = torch.tensor(counts, dtype=torch.int64), torch.empty(self.size, dtype=torch.int64)
        one_each = [1] * self.size
        self.all_to_all(sent, one_each, received, one_each, purpose)
        return [int(count) for count in received.tolist()]

    @property
    def is_waiting(self) -> bool:
        """Whether an operation is running, perhaps because other ranks have not started it yet."""
        return any(pending.ended_at is None for pending in list(self._waiting))

    def abort(self, reason: Exception) -> None:
        """Raise `reason` in the thread that waits for an operation, and in every later operation.

        This method is thread-safe. Operations that have started keep running in the background.
        """
        if self._reason is None:
            self._reason = reason
        for pending in list(self._waiting):
            if (operation := pending.running_operation) is not None:
                self._leak(operation)
            pending.wake()

    def close(self) -> None:
        """Stop the group's threads after their operations have ended; no operation may follow.

        Does nothing if the run has failed, because the threads may wait for another rank. At exit, Python
        would end these threads inside torch's code, which aborts the process.
        """
        if (
            self._reason is None or isinstance(self._reason, ChannelClosedError)
        ) and not self.has_live_operations:
            self._group = None

    def _remote_bytes(self, rows: torch.Tensor, counts: Sequence[int]) -> int:
        """Return the number of bytes that are sent to or received from other ranks."""
        others = sum(counts) - counts[self.rank]
        return others * (rows.nbytes // max(1, len(rows)))

    def _start(self, start: Callable[[], Any], doing: str) -> PendingCollective:
        if self._reason is not None:
            raise self._reason
        self.num_started += 1
        try:
            pending = PendingCollective(start(), partial(self._wait, doing))
        except RuntimeError as error:
            raise self._make_error(f"{doing} ({self.name})", error) from error
        self._waiting.add(pending)
        return pending

    def _wait(self, doing: str, operation: Any, woken: threading.Event) -> None:
        try:
            if self._reason is None:
                woken.wait()
            if operation.get_future().done():
                operation.wait()
                return
        except RuntimeError as error:
            raise self._make_error(f"{doing} ({self.name})", error) from error
        self._leak(operation)
        assert self._reason is not None
        raise self._reason

    def _leak(self, operation: Any) -> None:
        # Leak a reference: freeing the group would wait for its threads, which may wait forever.
        for handle in (self._group, operation):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        self.has_live_operations = True


# Maximum number of `StepMetrics` events from which medians are computed; a run may have many more.
_MAX_GROUPS = 4096


class RankStats:
    """Step times and byte counters of one rank."""

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
        """Return plain values by name: median times, bytes by purpose, and the rank's host."""
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
    """Return the slowest stage and its rank, such as `load of rank 1`; empty if there were no steps.

    The record of a lost rank is None.
    """
    times = [
        (seconds, rank, stage)
        for rank, record in enumerate(records)
        for stage, seconds in ({} if record is None else record["stage_s"]).items()
        # In this stage, all ranks wait for the slowest rank.
        if stage != "synchronize"
    ]
    if not times:
        return ""
    _, rank, stage = max(times)
    return f"{stage} of rank {rank}"


_SYNCHRONIZE = "synchronize"


def steps_record(group: StepMetrics) -> dict[str, Any]:
    """Return plain values for a group of steps, which a rank sends to the other ranks."""
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
    """Merge the records of a group of steps over all ranks; the slowest rank determines the time of a step.

    `records` has the `steps_record` of each rank, in rank order. Loss and edges already include all ranks.
    """
    # Ranks that finish early wait in the synchronize stage, so its shortest time is the cost of the exchange.
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
    """Merge the `ChunkedStep` values of all ranks' trainers under keys such as `rank 1 cpu:0`."""
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
    """Merge a dictionary by trainer over all ranks under keys such as `rank 1 cpu:0`."""
    return {
        f"rank {rank} {name}": value
        for rank, record in enumerate(records)
        for name, value in record[key].items()
    }


def _merge_channels(records: Sequence[Mapping[str, Any]], field: str) -> dict[str, Any]:
    """Merge channel statistics: prefix trainers' channels with the rank, and sum the other channels."""
    merged: dict[str, Any] = {}
    for rank, record in enumerate(records):
        for name, value in record[field].items():
            channel, dot, trainer = name.partition(".")
            key = f"{channel}.rank {rank} {trainer}" if dot else channel
            merged[key] = merged.get(key, 0) + value
    return merged
