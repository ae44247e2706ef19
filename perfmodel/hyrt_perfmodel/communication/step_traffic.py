"""Traffic between ranks in one step: bytes and seconds per purpose."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.communication.collectives import all_reduce_bytes, all_reduce_s, busiest_bytes
from hyrt_perfmodel.communication.network import Network

ROWS = "rows"
EDGES = "edges"
"""Vertices whose neighbors are requested, and the neighbors, if edges are partitioned among ranks."""
GRADIENTS = "gradients"
MODELS = "models"
PURPOSES = (ROWS, "hidden", "partials", MODELS, GRADIENTS)
"""Purposes of traffic, in table order: input rows, first-layer results and their gradients, partial
aggregates, migrating models, and gradient sums."""
OF_WEIGHTS = (MODELS, GRADIENTS)
"""Purposes whose bytes do not depend on the number of targets in a step."""


@dataclass(frozen=True, slots=True, eq=False)
class PurposeTraffic:
    """Traffic of one purpose in a step."""

    sent: NDArray[np.float64]
    """[N, N] bytes from each rank to each other."""
    messages: int
    """Number of sequential messages of a rank; 0 if the bytes are part of another purpose's messages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTraffic:
    """Traffic of a step of N ranks."""

    ranks: int
    """Number of ranks, N."""
    purposes: Mapping[str, PurposeTraffic]
    """Traffic by purpose, without gradients; purposes without traffic are absent."""
    gradient_bytes: float
    """Bytes of one model's gradient sums, which are all-reduced."""
    time_steps: int = 1
    """Number of sequential time steps into which a rank divides its work of a step (HopGNN section 5.1)."""
    largest_share: float = 1.0
    """Maximum targets of a rank, relative to their mean; its stages are the slowest."""

    def bytes_by_purpose(self) -> dict[str, float]:
        """Return the bytes that all ranks together send, per purpose."""
        by_purpose = dict.fromkeys(PURPOSES, 0.0)
        by_purpose |= {name: float(traffic.sent.sum()) for name, traffic in self.purposes.items()}
        by_purpose[GRADIENTS] = self.ranks * all_reduce_bytes(self.gradient_bytes, self.ranks)
        return by_purpose

    def seconds_by_purpose(self, network: Network) -> dict[str, float]:
        """Return the seconds of each purpose alone; 0 for purposes without traffic."""
        by_purpose = dict.fromkeys(PURPOSES, 0.0)
        for name, traffic in self.purposes.items():
            if traffic.sent.any():
                by_purpose[name] = network.uneven_s(busiest_bytes(traffic.sent), traffic.messages)
        by_purpose[GRADIENTS] = all_reduce_s(self.gradient_bytes, self.ranks, network)
        return by_purpose

    def link_s(self, network: Network) -> float:
        """Return the time that the busiest link is busy with all traffic."""
        sent = sum((traffic.sent for traffic in self.purposes.values()), np.zeros((self.ranks, self.ranks)))
        reduced = all_reduce_bytes(self.gradient_bytes, self.ranks)
        return network.uneven_s(busiest_bytes(sent), 0) + network.seconds(reduced, 0)
