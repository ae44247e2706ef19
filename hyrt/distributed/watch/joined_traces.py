"""Merging of all ranks' traces at rank 0, on rank 0's clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from hyrt.distributed.last_words import LastWords
from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.watch.rank_figures import told_by_all

_ROUNDS = 32


class JoinedTraces:
    """Gathers the traces of all ranks (`hyrt.observe.trace.traces_of_ranks`).

    Parameters
    ----------
    group
        The ranks, for the thread that drives the run.
    last_words
        Sends the trace of a rank if the run fails.
    clock
        Clock of the traces, in nanoseconds.
    """

    def __init__(
        self, group: RankGroup, last_words: LastWords, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._group = group
        self._failure_reports = last_words
        self._clock = clock

    @property
    def rank(self) -> int:
        return self._group.rank

    def clock_offset(self) -> tuple[int, int]:
        """Return the offset of rank 0's clock from this rank's, and its uncertainty, in nanoseconds.

        A message cannot arrive before it was sent: each message from rank 0 bounds the offset from below, and
        each
        message to rank 0 from above. The result is the middle of the tightest bounds.
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

    def tell(self, record: Any) -> Sequence[Any]:
        """Gather plain values from all ranks, in rank order."""
        return told_by_all(self._group, record)

    def at_first(self, data: bytes) -> Sequence[bytes]:
        """Gather the data of all ranks at rank 0, in rank order; empty at the other ranks."""
        group = self._group
        others = [0] * (group.size - 1)
        lengths = group.exchange_counts([len(data), *others], "control")
        received = torch.empty(sum(lengths), dtype=torch.uint8)
        sent = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        group.exchange(sent, [len(data), *others], received, lengths, "control")
        return [] if group.rank else [part.numpy().tobytes() for part in torch.split(received, lengths)]

    def leave(self, data: bytes) -> Mapping[int, bytes]:
        """Send data when a run fails; return the data of all reachable ranks at the lowest of them."""
        return self._failure_reports.leave("trace", data)
