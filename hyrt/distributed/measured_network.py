"""What the network between ranks does, measured in a moment."""

from __future__ import annotations

import time

import torch
from hyrt_perfmodel.communication.network import Network

from hyrt.distributed.rank_group import RankGroup

_ROUNDS = 5
_BYTES = 1 << 19
"""To each other rank."""


def measured_network(group: RankGroup) -> Network:
    """The latency of a message, and bytes a second into and out of a rank; all ranks call it at once.

    Every rank sends every other one a little, and then 512 KiB, some times. What this rank saw is what it
    gives: others may have seen something else.
    """
    peers = max(1, group.size - 1)
    small, large = (_seconds(group, size) for size in (1, _BYTES))
    return Network(
        name="measured",
        latency_s=small / peers,
        # Of ranks that share cores, the small one may have waited for its turn.
        gb_s=peers * _BYTES / max(large - small, large / 2) / 1e9,
        source=f"measured between {group.size} ranks at the start of the run",
    )


def _seconds(group: RankGroup, size: int) -> float:
    """The shortest time of an exchange of so many bytes with every other rank."""
    counts = [0 if rank == group.rank else size for rank in range(group.size)]
    given, taken = (torch.zeros(sum(counts), dtype=torch.uint8) for _ in range(2))
    found = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        group.exchange(given, counts, taken, counts, "control")
        found.append(time.perf_counter() - started)
    return min(found)
