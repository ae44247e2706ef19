"""Measurement of the network between ranks with the operations of a run."""

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
# Larger operations give no further information and need this much memory per rank.
_MAX_BYTES = 2**26
_LONG_S = 0.25
# Short operations are repeated more often, because disturbances affect them more.
_MIN_REPEATS, _MAX_REPEATS, _REPEATS_S = 3, 25, 0.1
# Approximate size range of blocks from a graph partitioner, relative to the mean.
_SIZE_RANGE = (0.5, 1.5)
_NUM_UNEVEN = 3


def measure_network(ranks: DistributedContext, name: str, long_s: float = _LONG_S) -> FittedNetwork:
    """Measure exchanges and all-reduces between all ranks; a collective call that returns the same result on
    every rank.

    Sizes grow until an operation takes long, or a rank sends 64 MiB in it.

    Parameters
    ----------
    ranks
        All ranks; at least two.
    name
        Name of the network.
    long_s
        Time of an operation, in seconds, after which sizes stop growing.

    Raises
    ------
    RankFailureError
        If a rank is lost during the measurement.
    ValueError
        If the times do not determine a bandwidth.
    """
    # Exchange this first, so that a refusal of another rank is received before connections are made.
    host = zlib.crc32(platform.node().encode())
    hosts = len(set(ranks.control.exchange_counts([host] * ranks.size, "control")))
    timing = _Timing(ranks.group("calibration"))
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


class _Timing:
    """Timer for operations of a group."""

    def __init__(self, group: RankGroup) -> None:
        self._group = group

    def exchange(self, operation: str, num_bytes: NDArray[np.int64]) -> TimedCollective:
        """Time an exchange of [N, N] bytes from each rank to each other."""
        rank = self._group.rank
        send_sizes, receive_sizes = num_bytes[rank].tolist(), num_bytes[:, rank].tolist()
        sent = torch.zeros((sum(send_sizes), 1), dtype=torch.uint8)
        received = torch.zeros((sum(receive_sizes), 1), dtype=torch.uint8)
        seconds, core_s = self._measure(
            lambda: self._group.all_to_all(sent, send_sizes, received, receive_sizes, _PURPOSE)
        )
        busiest = busiest_link_bytes(num_bytes.astype(float))
        # On average, ranks have fewer bytes than the busiest one.
        core_s *= busiest * len(num_bytes) / float(num_bytes.sum())
        return TimedCollective(operation, len(num_bytes) - 1, busiest, seconds, core_s)

    def all_reduce(self, size: int) -> TimedCollective:
        """Time an all-reduce in which a rank sends as much as `size` bytes to each other rank."""
        ranks = self._group.size
        values = torch.zeros(size * ranks // 2 // 4)
        times = self._measure(lambda: self._group.all_reduce(values, _PURPOSE))
        sent_bytes = all_reduce_bytes(values.nbytes, ranks)
        return TimedCollective("all-reduces", 2 * (ranks - 1), sent_bytes, *times)

    def _measure(self, operation: Callable[[], None]) -> tuple[float, float]:
        """Return the median time of the slowest rank and the median CPU time averaged over ranks; equal on
        all ranks.
        """
        (first,) = self._times(operation, 1)
        # Skip the first operation, which sets up connections and memory.
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
            # CPU time of the whole process, because another thread sends and receives.
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
