"""Collective operations of all ranks for one purpose: each has connections of its own and one thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.byte_counts import ByteCounts

Lost = Callable[[str, Exception], Exception]
"""Makes the error of an operation that failed, from what was done and what torch raised: it finds out which
rank was lost, and why."""


class RankGroup:
    """All ranks, joined by connections that one thread of each uses, in the same order everywhere.

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
        self._woken = threading.Event()
        self._reason: Exception | None = None
        self._group: Any = dist.ProcessGroupGloo(
            PrefixStore(name, store), rank, size, timedelta(seconds=timeout_s)
        )

    def add(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by its sum over all ranks; all of them get the same bits.

        Equal tensors on as many ranks give equal bits in every run.
        """
        self._run(lambda: self._group.allreduce([tensor]), purpose)
        moved = 2 * (self.size - 1) * tensor.nbytes // self.size
        self._counts.add(purpose, moved, moved)

    def from_first(self, tensor: torch.Tensor, purpose: str) -> None:
        """Replace a tensor by that of rank 0."""
        self._run(lambda: self._group.broadcast([tensor]), purpose)
        others = tensor.nbytes * (self.size - 1)
        self._counts.add(purpose, 0 if self.rank else others, tensor.nbytes if self.rank else 0)

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
        self._run(
            lambda: self._group.alltoall_base(taken, given, list(taken_counts), list(given_counts)), purpose
        )
        self._counts.add(purpose, self._to_others(given, given_counts), self._to_others(taken, taken_counts))

    def exchange_counts(self, counts: Sequence[int], purpose: str) -> list[int]:
        """Tell every rank a number; gives what each has told this one."""
        given, taken = torch.tensor(counts, dtype=torch.int64), torch.empty(self.size, dtype=torch.int64)
        ones = [1] * self.size
        self.exchange(given, ones, taken, ones, purpose)
        return [int(count) for count in taken.tolist()]

    def give_up(self, reason: Exception) -> None:
        """Raise `reason` in the thread that is in an operation, and in all that begin one from now on.

        Any thread may call it. An operation that has begun goes on without anybody waiting for it.
        """
        if self._reason is None:
            self._reason = reason
        self._woken.set()

    def _to_others(self, rows: torch.Tensor, counts: Sequence[int]) -> int:
        """Bytes of the rows that go to other ranks, or come from them."""
        others = sum(counts) - counts[self.rank]
        return others * (rows.nbytes // max(1, len(rows)))

    def _run(self, begin: Callable[[], Any], doing: str) -> None:
        if self._reason is not None:
            raise self._reason
        self.begun += 1
        self._woken.clear()
        try:
            operation = begin()
            future = operation.get_future()
            # Not `operation.wait()`, from which nothing frees a thread before the time is over.
            future.add_done_callback(lambda _: self._woken.set())
            if self._reason is None:
                self._woken.wait()
            if future.done():
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
