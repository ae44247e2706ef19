"""Measurement of the network between ranks by the operations of a run."""

from __future__ import annotations

import datetime
import platform
import statistics
import time
import zlib
from collections.abc import Callable

import numpy as np
import torch
from hyrt_perfmodel.communication.network import FittedNetwork, TimedCollective, fit_network
from hyrt_perfmodel.communication.traffic import all_reduce_bytes, busiest_link_bytes
from numpy.typing import NDArray

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.process_group import RankGroup
from hyrt.formatting import pluralize

_PURPOSE = "calibration"
_MIN_BYTES, _GROWTH = 64, 4
# Larger operations add no information, and need as much memory per rank.
_MAX_BYTES = 2**26
_LONG_S = 0.25
# Short operations have more repetitions, because disturbances affect them more.
_MIN_REPEATS, _MAX_REPEATS, _REPEATS_S = 3, 25, 0.1
# Approximate sizes of the blocks of a graph partitioner, relative to the mean.
_SIZE_RANGE = (0.5, 1.5)
_NUM_UNEVEN = 3


def measure_network(ranks: DistributedContext, name: str, long_s: float = _LONG_S) -> FittedNetwork:
    """Measure exchanges and all-reduces between all ranks, at least two.

    Collective, with the same result on every rank. Sizes grow until an operation takes `long_s` seconds, or a
    rank sends 64 MiB. Raises RankFailureError if a rank is lost, and ValueError if no bandwidth can be
    fitted.
    """
    # This comes first, so that the refusal of another rank is received before connections are made.
    host = zlib.crc32(platform.node().encode())
    hosts = len(set(ranks.control.exchange_counts([host] * ranks.size, "control")))
    timing = _CollectiveTimer(ranks.group("calibration"))
    all_reduces: list[TimedCollective] = []
    exchanges: list[TimedCollective] = []
    size = _MIN_BYTES
    while True:
        all_reduces.append(timing.all_reduce(size))
        exchanges.append(timing.exchange("exchanges", _equal(ranks.size, size)))
        longest_s = max(all_reduces[-1].seconds, exchanges[-1].seconds)
        if longest_s > long_s or (ranks.size - 1) * size * _GROWTH > _MAX_BYTES:
            break
        size *= _GROWTH
    exchanges += [
        timing.exchange("uneven exchanges", _unequal(ranks.size, size, seed)) for seed in range(_NUM_UNEVEN)
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    where = pluralize(hosts, "machine") if hosts > 1 else "one machine"
    return fit_network(
        all_reduces,
        exchanges,
        name=name,
        machines=0 if hosts == ranks.size else hosts,
        source=f"measured {today.isoformat()} between {pluralize(ranks.size, 'rank')} on {where} with gloo",
    )


class _CollectiveTimer:
    """Timer of the operations of a group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def exchange(self, operation: str, num_bytes: NDArray[np.int64]) -> TimedCollective:
        """Time an exchange of [N, N] bytes, from each rank to each other."""
        rank = self._group.rank
        send_sizes, receive_sizes = num_bytes[rank].tolist(), num_bytes[:, rank].tolist()
        sent = torch.zeros((sum(send_sizes), 1), dtype=torch.uint8)
        received = torch.zeros((sum(receive_sizes), 1), dtype=torch.uint8)
        seconds, core_s = self._measure(
            lambda: self._group.all_to_all(sent, send_sizes, received, receive_sizes, _PURPOSE)
        )
        busiest = busiest_link_bytes(num_bytes.astype(float))
        # An average rank has fewer bytes than the busiest one.
        core_s *= busiest * len(num_bytes) / float(num_bytes.sum())
        return TimedCollective(operation, len(num_bytes) - 1, busiest, seconds, core_s)

    def all_reduce(self, size: int) -> TimedCollective:
        """Time an all-reduce in which a rank sends `size` bytes to each other rank."""
        ranks = self._group.size
        values = torch.zeros(size * ranks // 2 // 4)
        times = self._measure(lambda: self._group.all_reduce(values, _PURPOSE))
        sent_bytes = all_reduce_bytes(values.nbytes, ranks)
        return TimedCollective("all-reduces", 2 * (ranks - 1), sent_bytes, *times)

    def _measure(self, operation: Callable[[], None]) -> tuple[float, float]:
        """Return the slowest rank's median time, and the mean of all median CPU times, on every rank."""
        (first,) = self._times(operation, 1)
        # The first operation sets up connections and memory, and does not count.
        (second,) = self._times(operation, 1)
        shorter = max(min(first[0], second[0]), 1e-9)
        repeats = min(max(int(_REPEATS_S / shorter), _MIN_REPEATS), _MAX_REPEATS)
        seconds, core_seconds = zip(second, *self._times(operation, repeats), strict=True)
        return statistics.median(seconds), statistics.median(core_seconds)

    def _times(self, operation: Callable[[], None], repeats: int) -> list[tuple[float, float]]:
        times = torch.zeros((2, self._group.size, repeats), dtype=torch.float64)
        barrier = torch.zeros(1)
        for repeat in range(repeats):
            self._group.all_reduce(barrier, _PURPOSE)
            # CPU time of the process, because another thread sends and receives.
            start, spent = time.perf_counter(), time.process_time()
            operation()
            times[0, self._group.rank, repeat] = time.perf_counter() - start
            times[1, self._group.rank, repeat] = time.process_time() - spent
        self._group.all_reduce(times, _PURPOSE)
        return list(zip(times[0].amax(dim=0).tolist(), times[1].mean(dim=0).tolist(), strict=True))


def _equal(ranks: int, size: int) -> NDArray[np.int64]:
    return np.full((ranks, ranks), size) * (1 - np.eye(ranks, dtype=np.int64))


def _unequal(ranks: int, size: int, seed: int) -> NDArray[np.int64]:
    factors = np.random.default_rng(seed).uniform(*_SIZE_RANGE, (ranks, ranks))
    return np.round(_equal(ranks, size) * factors).astype(np.int64)
