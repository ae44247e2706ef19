"""Collective operations of all ranks for one purpose: each has connections of its own and one thread."""

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
"""Makes the error of an operation that failed, from what was done and what torch raised: it finds out which
rank was lost, and why."""


class Begun:
    """An operation that goes on while its thread does something else.

    Parameters
    ----------
    operation
        What torch has begun.
    wait
        Waits for it, until the event is set.
    """

    def __init__(self, operation: Any, wait: Callable[[Any, threading.Event], None]) -> None:
        self._operation = operation
        self._wait = wait
        self._woken = threading.Event()
        self.ended_at: float | None = None
        """When it ended, by `time.perf_counter`; None while it goes on."""
        # Not `operation.wait()`, from which nothing frees a thread before the time is over.
        operation.get_future().add_done_callback(self._note_end)

    def _note_end(self, future: Any) -> None:
        self.ended_at = time.perf_counter()
        self._woken.set()

    @property
    def unwaited(self) -> Any | None:
        """The operation, if it goes on and nobody waits for it."""
        return self._operation if self.ended_at is None else None

    def wake(self) -> None:
        """Let `wait` end because nobody waits any more."""
        self._woken.set()

    def wait(self) -> None:
        """Until it has ended; what it raises is what its group raises. Once."""
        operation, self._operation = self._operation, None
        self._wait(operation, self._woken)


class RankGroup:
    """All ranks, or some, joined by connections that one thread of each uses, in the same order everywhere.

    Tensors are on the CPU and contiguous. What an operation raises, if a rank is lost, is what `lost` makes.

    Parameters
    ----------
    name
        The purpose, for messages.
    store
        The store in which the ranks find each other's addresses.
    rank, size
        The number of this rank, and how many there are.
    timeout_s
        Longest time for an operation.
    counts
        Takes the bytes of all operations.
    lost
        Makes the errors.
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
        """How many operations this rank has begun."""
        self.is_left_behind = False
        """Whether an operation has begun for which nobody waits any more, but torch at the process's end."""
        self._counts = counts
        self._lost = lost
        self._waiting: WeakSet[Begun] = WeakSet()
        self._reason: Exception | None = None
        self._group: Any = dist.ProcessGroupGloo(
            PrefixStore(name, store), rank, size, timedelta(seconds=timeout_s)
        )

    def add(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by its sum over all ranks; all of them get the same bits.

        Equal tensors on as many ranks give equal bits in every run.
        """
        self.begin_add(tensor, purpose).wait()

    def begin_add(self, tensor: torch.Tensor, purpose: str) -> Begun:
        """Begin an `add`; the tensor is left alone until it has ended."""
        begun = self._begin(lambda: self._group.allreduce([tensor]), purpose)
        moved = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._counts.add(purpose, moved, moved)
        return begun

    def from_first(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by that of rank 0."""
        self.begin_broadcast(tensor, 0, purpose).wait()

    def exchange(
        self,
        given: torch.Tensor,
        given_counts: Sequence[int],
        taken: torch.Tensor,
        taken_counts: Sequence[int],
        purpose: str,
    ) -> None:
        """Send rows to every rank, and take rows from every rank.

        Parameters
        ----------
        given
            [n, ...] the rows for rank 0, then those for rank 1, and so on.
        given_counts
            [size] how many for each.
        taken
            [m, ...] overwritten with the rows from rank 0, then those from rank 1, and so on.
        taken_counts
            [size] how many from each.
        purpose
            What it is for, in the counts of bytes.
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
        """Begin an `exchange`; `given` and `taken` are left alone until it has ended."""
        begun = self._begin(
            lambda: self._group.alltoall_base(taken, given, list(taken_counts), list(given_counts)), purpose
        )
        self._counts.add(purpose, self._to_others(given, given_counts), self._to_others(taken, taken_counts))
        return begun

    def begin_broadcast(self, tensor: torch.Tensor, root: int, purpose: str) -> Begun:
        """Begin to replace a tensor by that of one rank."""
        begun = self._begin(lambda: self._group.broadcast(tensor, root), purpose)
        is_root = self.rank == root
        others = tensor.nbytes * (self.size - 1)
        self._counts.add(purpose, others if is_root else 0, 0 if is_root else tensor.nbytes)
        return begun

    def begin_sum(self, tensor: torch.Tensor, root: int, purpose: str) -> Begun:
        """Begin to replace the tensor of one rank by the sum over all; it is undefined at the others.

        Equal tensors on as many ranks give equal bits in every run.
        """
        begun = self._begin(lambda: self._group.reduce(tensor, root), purpose)
        # Gloo passes pieces around a ring until each rank has the sum of one, and then gathers these.
        is_root = self.rank == root
        ring = (self.size - 1) * tensor.nbytes // self.size
        gathered = tensor.nbytes - ring
        self._counts.add(
            purpose,
            ring if is_root else ring + gathered,
            ring + (self.size - 1) * gathered if is_root else ring,
        )
        return begun

    def exchange_counts(self, counts: Sequence[int], purpose: str) -> list[int]:
        """Tell every rank a number; gives what each has told this one."""
        given, taken = torch.tensor(counts, dtype=torch.int64), torch.empty(self.size, dtype=torch.int64)
        ones = [1] * self.size
        self.exchange(given, ones, taken, ones, purpose)
        return [int(count) for count in taken.tolist()]

    @property
    def is_waiting(self) -> bool:
        """Whether an operation has begun that is not over: other ranks may not have come to it."""
        return any(begun.ended_at is None for begun in list(self._waiting))

    def give_up(self, reason: Exception) -> None:
        """Raise `reason` in the thread that is in an operation, and in all that begin one from now on.

        Any thread may call it. An operation that has begun goes on without anybody waiting for it.
        """
        if self._reason is None:
            self._reason = reason
        for begun in list(self._waiting):
            if (unwaited := begun.unwaited) is not None:
                self._leave_behind(unwaited)
            begun.wake()

    def close(self) -> None:
        """End the group's threads, once they have told of what they have done; no operation follows.

        Not where a run fails: they may wait for a rank. Python ends what threads are left at its own end,
        inside torch's code, which aborts the process for that.
        """
        if (self._reason is None or isinstance(self._reason, ChannelClosed)) and not self.is_left_behind:
            self._group = None

    def _to_others(self, rows: torch.Tensor, counts: Sequence[int]) -> int:
        """Bytes of the rows that go to other ranks, or come from them."""
        others = sum(counts) - counts[self.rank]
        return others * (rows.nbytes // max(1, len(rows)))

    def _begin(self, begin: Callable[[], Any], doing: str) -> Begun:
        if self._reason is not None:
            raise self._reason
        self.begun += 1
        try:
            begun = Begun(begin(), partial(self._wait, doing))
        except RuntimeError as error:
            raise self._lost(f"{doing} ({self.name})", error) from error
        self._waiting.add(begun)
        return begun

    def _wait(self, doing: str, operation: Any, woken: threading.Event) -> None:
        try:
            if self._reason is None:
                woken.wait()
            if operation.get_future().done():
                operation.wait()
                return
        except RuntimeError as error:
            raise self._lost(f"{doing} ({self.name})", error) from error
        self._leave_behind(operation)
        assert self._reason is not None
        raise self._reason

    def _leave_behind(self, operation: Any) -> None:
        # To free the group is to wait for its threads, and those wait for other ranks.
        for kept in (self._group, operation):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
        self.is_left_behind = True
