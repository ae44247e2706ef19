"""The traces of all ranks at rank 0, on its clock."""

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
    """Brings together what the ranks have traced (`hyrt.observe.trace.traces_of_ranks`).

    Parameters
    ----------
    group
        The ranks, for the thread that drives the run.
    last_words
        Takes the trace of a rank of a run that fails.
    clock
        Nanoseconds: that of the traces.
    """

    def __init__(
        self, group: RankGroup, last_words: LastWords, clock: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self._group = group
        self._last_words = last_words
        self._clock = clock

    @property
    def rank(self) -> int:
        return self._group.rank

    def clock_offset(self) -> tuple[int, int]:
        """What rank 0's clock shows more than this one's, and by how much that may be off: nanoseconds.

        No message arrives before it was sent. So each one from rank 0 bounds the offset from below, and each
        one to it from above; the offset is in the middle of the narrowest bounds.
        """
        group, bounds = self._group, []
        for _ in range(_ROUNDS):
            sent = self._clock()
            first_sent = group.exchange_counts([sent] * group.size, "control")[0]
            received = self._clock()
            first_received = group.exchange_counts([received] * group.size, "control")[0]
            bounds.append((first_sent - received, first_received - sent))
        least, most = max(low for low, _ in bounds), min(high for _, high in bounds)
        return (least + most) // 2, (most - least + 1) // 2

    def tell(self, record: Any) -> Sequence[Any]:
        """Plain values of each rank, in their order."""
        return told_by_all(self._group, record)

    def at_first(self, data: bytes) -> Sequence[bytes]:
        """The data of each rank, in their order; none but at rank 0."""
        group = self._group
        others = [0] * (group.size - 1)
        lengths = group.exchange_counts([len(data), *others], "control")
        taken = torch.empty(sum(lengths), dtype=torch.uint8)
        given = torch.from_numpy(np.frombuffer(data, np.uint8).copy())
        group.exchange(given, [len(data), *others], taken, lengths, "control")
        return [] if group.rank else [part.numpy().tobytes() for part in torch.split(taken, lengths)]

    def leave(self, data: bytes) -> Mapping[int, bytes]:
        """What the ranks of a run that fails could leave, by their numbers; none but at the first left."""
        return self._last_words.leave("trace", data)
