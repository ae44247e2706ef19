"""What travelling between ranks takes, measured with the operations of a run."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch
from hyrt_perfmodel.communication.collectives import all_reduce_bytes, busiest_bytes
from hyrt_perfmodel.communication.measured_network import FittedNetwork, TimedTravel, fit_network
from numpy.typing import NDArray

from hyrt.distributed.joined_ranks import JoinedRanks
from hyrt.distributed.rank_group import RankGroup
from hyrt.quantities import counted

_PURPOSE = "calibration"
_LEAST_BYTES, _GROWTH = 64, 4
# Larger ones say nothing more, and their memory is that of a rank.
_MOST_BYTES = 2**26
_LONG_S = 0.25
# Short operations are repeated more often: what else a machine does is a larger part of them.
_LEAST_REPEATS, _MOST_REPEATS, _REPEATS_S = 3, 25, 0.1
# Blocks of parts that a partitioner has made differ by about so much.
_UNEVEN = (0.5, 1.5)
_NUM_UNEVEN = 3


def measure_network(ranks: JoinedRanks, name: str, long_s: float = _LONG_S) -> FittedNetwork:
    """Measure exchanges and all-reduces between all ranks; every rank calls it at once, and finds the same.

    Sizes grow until an operation takes long, or 64 MiB leave a rank in it.

    Parameters
    ----------
    ranks
        All ranks: at least two.
    name
        What the network is called.
    long_s
        The seconds of an operation than which none is to be much longer.

    Raises
    ------
    RankLost
        If a rank is lost meanwhile.
    ValueError
        If the times do not give a bandwidth.
    """
    # First, so that a rank that has refused to measure is heard of before connections are made.
    host = zlib.crc32(platform.node().encode())
    hosts = len(set(ranks.control.exchange_counts([host] * ranks.size, "control")))
    timing = _Timing(ranks.group("calibration"))
    all_reduces: list[TimedTravel] = []
    exchanges: list[TimedTravel] = []
    size = _LEAST_BYTES
    while True:
        all_reduces.append(timing.all_reduce(size))
        exchanges.append(timing.exchange("exchanges", _equal(ranks.size, size)))
        longest_s = max(all_reduces[-1].seconds, exchanges[-1].seconds)
        if longest_s > long_s or (ranks.size - 1) * size * _GROWTH > _MOST_BYTES:
            break
        size *= _GROWTH
    exchanges += [
        timing.exchange("uneven exchanges", _unequal(ranks.size, size, seed)) for seed in range(_NUM_UNEVEN)
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    where = counted(hosts, "machine") if hosts > 1 else "one machine"
    return fit_network(
        all_reduces,
        exchanges,
        name=name,
        machines=0 if hosts == ranks.size else hosts,
        source=f"measured {today.isoformat()} between {counted(ranks.size, 'rank')} on {where} with gloo",
    )


class _Timing:
    """Times operations of a group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def exchange(self, operation: str, num_bytes: NDArray[np.int64]) -> TimedTravel:
        """Time an exchange of [N, N] bytes from each rank to each other."""
        rank = self._group.rank
        given, taken = num_bytes[rank].tolist(), num_bytes[:, rank].tolist()
        sent = torch.zeros((sum(given), 1), dtype=torch.uint8)
        received = torch.zeros((sum(taken), 1), dtype=torch.uint8)
        seconds, core_s = self._took(lambda: self._group.exchange(sent, given, received, taken, _PURPOSE))
        busiest = busiest_bytes(num_bytes.astype(float))
        # In the mean, ranks have fewer bytes than the busiest one.
        core_s *= busiest * len(num_bytes) / float(num_bytes.sum())
        return TimedTravel(operation, len(num_bytes) - 1, busiest, seconds, core_s)

    def all_reduce(self, size: int) -> TimedTravel:
        """Time adding numbers up, for which a rank sends as much as `size` bytes to each other would be."""
        ranks = self._group.size
        values = torch.zeros(size * ranks // 2 // 4)
        took = self._took(lambda: self._group.add(values, _PURPOSE))
        travels = all_reduce_bytes(values.nbytes, ranks)
        return TimedTravel("all-reduces", 2 * (ranks - 1), travels, *took)

    def _took(self, operation: Callable[[], None]) -> tuple[float, float]:
        """The median time of the slowest rank, and the median of what ranks spent of their cores' time in
        the mean; known at all of them.
        """
        (first,) = self._times(operation, 1)
        # Not the first again: connections and memory are new to it.
        (second,) = self._times(operation, 1)
        shorter = max(min(first[0], second[0]), 1e-9)
        repeats = min(max(int(_REPEATS_S / shorter), _LEAST_REPEATS), _MOST_REPEATS)
        seconds, of_cores = zip(second, *self._times(operation, repeats), strict=True)
        return statistics.median(seconds), statistics.median(of_cores)

    def _times(self, operation: Callable[[], None], repeats: int) -> list[tuple[float, float]]:
        own = torch.zeros((2, self._group.size, repeats), dtype=torch.float64)
        together = torch.zeros(1)
        for repeat in range(repeats):
            self._group.add(together, _PURPOSE)
            # All threads of the process: another one than this sends and receives.
            start, spent = time.perf_counter(), time.process_time()
            operation()
            own[0, self._group.rank, repeat] = time.perf_counter() - start
            own[1, self._group.rank, repeat] = time.process_time() - spent
        self._group.add(own, _PURPOSE)
        return list(zip(own[0].amax(dim=0).tolist(), own[1].mean(dim=0).tolist(), strict=True))


def _equal(ranks: int, size: int) -> NDArray[np.int64]:
    return np.full((ranks, ranks), size) * (1 - np.eye(ranks, dtype=np.int64))


def _unequal(ranks: int, size: int, seed: int) -> NDArray[np.int64]:
    parts = np.random.default_rng(seed).uniform(*_UNEVEN, (ranks, ranks))
    return np.round(_equal(ranks, size) * parts).astype(np.int64)
