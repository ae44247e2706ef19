"""Collective operations on a process group with its own connections, used by one thread."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.byte_counts import ByteCounts
from hyrt.flow.channel import ChannelClosed

Lost = Callable[[str, Exception], Exception]
"""Creates the error of a failed operation from its name and torch's error: finds out which rank was lost, and
why.
"""


class Begun:
    """Handle of an asynchronous collective operation.

    Parameters
    ----------
    operation
        Torch's handle of the operation.
    wait
        Waits for the operation until the event is set.
    """

    def __init__(self, operation: Any, wait: Callable[[Any, threading.Event], None]) -> None:
        self._operation = operation
        self._wait = wait
        self._woken = threading.Event()
        self.ended_at: float | None = None
        """End time (`time.perf_counter`); None while the operation is running."""
        # A thread in `operation.wait()` cannot be woken before the timeout.
        operation.get_future().add_done_callback(self._note_end)

    def _note_end(self, future: Any) -> None:
        self.ended_at = time.perf_counter()
        self._woken.set()

    @property
    def unwaited(self) -> Any | None:
        """The operation, if it is still running and no thread has begun to wait for it."""
        return self._operation if self.ended_at is None else None

    def wake(self) -> None:
        """Wake the thread in `wait` because the operation was aborted."""
        self._woken.set()

    def wait(self) -> None:
        """Wait until the operation has ended; raise the group's errors. To be called once."""
        operation, self._operation = self._operation, None
        self._wait(operation, self._woken)


class RankGroup:
    """Process group of all or some ranks.

    One thread per rank uses the group, with the same order of operations at every rank. Tensors are
    contiguous and on the CPU. If a rank is lost, an operation raises the error that `lost` returns.

    Parameters
    ----------
    name
        Purpose of the group, for messages.
    store
        The store in which the ranks find each other's addresses.
    rank, size
        Number of this rank in the group, and number of its ranks.
    timeout_s
        Longest time for an operation, in seconds.
    counts
        Counts the bytes of all operations.
    lost
        Creates the errors.
    """

    def __init__(
        self,
        name: str,
        store: Any,
        rank: int,
        size: int,
        *,
        timeout_s: float,
        counts: ByteCounts,
        lost: Lost,
    ) -> None:
        self.name = name
        self.rank = rank
        self.size = size
        self.begun = 0
        """Number of operations that this rank has started."""
        self.is_left_behind = False
        """Whether an aborted operation is still running, for which torch would wait at exit."""
        self._counts = counts
        self._make_error = lost
        self._waiting: WeakSet[Begun] = WeakSet()
        self._reason: Exception | None = None
        self._group: Any = dist.ProcessGroupGloo(
            PrefixStore(name, store), rank, size, timedelta(seconds=timeout_s)
        )

    def add(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by its sum over all ranks (all-reduce); all ranks get the same bits.

        Equal tensors on the same number of ranks give equal bits in every run.
        """
        self.begin_add(tensor, purpose).wait()

    def begin_add(self, tensor: torch.Tensor, purpose: str) -> Begun:
        """Start an `add`; the tensor must not be used until the operation has ended."""
        pending = self._start(lambda: self._group.allreduce([tensor]), purpose)
        num_bytes = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._counts.add(purpose, num_bytes, num_bytes)
        return pending

    def from_first(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by the tensor of rank 0 (broadcast)."""
        self.begin_broadcast(tensor, 0, purpose).wait()

    def exchange(
        self,
        given: torch.Tensor,
        given_counts: Sequence[int],
        taken: torch.Tensor,
        taken_counts: Sequence[int],
        purpose: str,
    ) -> None:
        """Send rows to every rank, and receive rows from every rank (all-to-all).

        Parameters
        ----------
        given
            [n, ...] rows for rank 0, followed by the rows for rank 1, and so on.
        given_counts
            [size] number of rows for each rank.
        taken
            [m, ...] overwritten with the rows from rank 0, followed by the rows from rank 1, and so on.
        taken_counts
            [size] number of rows from each rank.
        purpose
            Purpose, for the byte counters.
        """
        self.begin_exchange(given, given_counts, taken, taken_counts, purpose).wait()

    def begin_exchange(
        self,
        given: torch.Tensor,
        given_counts: Sequence[int],
        taken: torch.Tensor,
        taken_counts: Sequence[int],
        purpose: str,
    ) -> Begun:
        """Start an `exchange`; `given` and `taken` must not be used until the operation has ended."""
        pending = self._start(
            lambda: self._group.alltoall_base(taken, given, list(taken_counts), list(given_counts)), purpose
        )
        self._counts.add(
            purpose, self._remote_bytes(given, given_counts), self._remote_bytes(taken, taken_counts)
        )
        return pending

    def begin_broadcast(self, tensor: torch.Tensor, root: int, purpose: str) -> Begun:
        """Start to replace a tensor by the tensor of rank `root` (broadcast)."""
        pending = self._start(lambda: self._group.broadcast(tensor, root), purpose)
        is_root = self.rank == root
        others = tensor.nbytes * (self.size - 1)
        self._counts.add(purpose, others if is_root else 0, 0 if is_root else tensor.nbytes)
        return pending

    def begin_sum(self, tensor: torch.Tensor, root: int, purpose: str) -> Begun:
        """Start to replace the tensor of rank `root` by the sum over all ranks (reduce).

        The tensors of the other ranks are undefined afterwards.

        Equal tensors on the same number of ranks give equal bits in every run.
        """
        pending = self._start(lambda: self._group.reduce(tensor, root), purpose)
        # Gloo reduces pieces around a ring until each rank has the sum of one piece, and then gathers the
        # pieces.
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
        """Send one number to each rank; return the numbers received from all ranks."""
        sent, received = torch.tensor(counts, dtype=torch.int64), torch.empty(self.size, dtype=torch.int64)
        one_each = [1] * self.size
        self.exchange(sent, one_each, received, one_each, purpose)
        return [int(count) for count in received.tolist()]

    @property
    def is_waiting(self) -> bool:
        """Whether an operation is running; other ranks may not have started it yet."""
        return any(pending.ended_at is None for pending in list(self._waiting))

    def give_up(self, reason: Exception) -> None:
        """Raise `reason` in the thread that waits for an operation, and in all later operations.

        Thread-safe. Operations that have been started keep running in the background.
        """
        if self._reason is None:
            self._reason = reason
        for pending in list(self._waiting):
            if (operation := pending.unwaited) is not None:
                self._leak(operation)
            pending.wake()

    def close(self) -> None:
        """Stop the group's threads after their operations have ended; no operation may follow.

        Does nothing if the run has failed, because the threads may wait for another rank. At exit, Python
        would
        end these threads inside torch's code, which aborts the process.
        """
        if (self._reason is None or isinstance(self._reason, ChannelClosed)) and not self.is_left_behind:
            self._group = None

    def _remote_bytes(self, rows: torch.Tensor, counts: Sequence[int]) -> int:
        """Return the number of bytes that are sent to or received from other ranks."""
        others = sum(counts) - counts[self.rank]
        return others * (rows.nbytes // max(1, len(rows)))

    def _start(self, start: Callable[[], Any], doing: str) -> Begun:
        if self._reason is not None:
            raise self._reason
        self.begun += 1
        try:
            pending = Begun(start(), partial(self._wait, doing))
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
        # Leak a reference: freeing the group would wait for its threads, which wait for other ranks.
        for handle in (self._group, operation):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        self.is_left_behind = True
