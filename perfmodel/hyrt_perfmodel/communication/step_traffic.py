"""What travels between ranks in one step, in bytes, and what that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.communication.collectives import all_reduce_bytes, all_reduce_s, busiest_bytes
from hyrt_perfmodel.communication.network import Network

ROWS = "rows"
EDGES = "edges"
"""Vertices whose neighbours are asked for, and the neighbours, where edges are split among ranks."""
GRADIENTS = "gradients"
MODELS = "models"
PURPOSES = (ROWS, "hidden", "partials", MODELS, GRADIENTS)
"""What bytes are for, in the order of tables: input rows, results of the first layer and their gradients,
partial aggregates, models that migrate, and the sums of gradients."""
OF_WEIGHTS = (MODELS, GRADIENTS)
"""The purposes of which a step sends as much however few targets it has."""


@dataclass(frozen=True, slots=True, eq=False)
class PurposeTraffic:
    """What travels for one purpose in a step."""

    sent: NDArray[np.float64]
    """[N, N] bytes from each rank to each other."""
    messages: int
    """How many messages of a rank follow each other; 0 where they go along with those of another purpose."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTraffic:
    """What travels in a step of N ranks."""

    ranks: int
    """The number of ranks, N."""
    purposes: Mapping[str, PurposeTraffic]
    """By purpose, but for gradients; only what travels at all."""
    gradient_bytes: float
    """Bytes of the gradient sums of one model, which are all-reduced."""
    time_steps: int = 1
    """The parts into which a rank cuts its work of a step, one after the other (HopGNN section 5.1)."""
    largest_share: float = 1.0
    """The most targets of a rank, over their mean: its stages are the slowest."""

    def bytes_by_purpose(self) -> dict[str, float]:
        """What all ranks together send, for every purpose."""
        found = dict.fromkeys(PURPOSES, 0.0)
        found |= {name: float(traffic.sent.sum()) for name, traffic in self.purposes.items()}
        found[GRADIENTS] = self.ranks * all_reduce_bytes(self.gradient_bytes, self.ranks)
        return found

    def seconds_by_purpose(self, network: Network) -> dict[str, float]:
        """What each purpose takes if nothing else travels; 0 where nothing does."""
        found = dict.fromkeys(PURPOSES, 0.0)
        for name, traffic in self.purposes.items():
            if traffic.sent.any():
                found[name] = network.uneven_s(busiest_bytes(traffic.sent), traffic.messages)
        found[GRADIENTS] = all_reduce_s(self.gradient_bytes, self.ranks, network)
        return found

    def link_s(self, network: Network) -> float:
        """How long the busiest link is busy with all of it."""
        sent = sum((traffic.sent for traffic in self.purposes.values()), np.zeros((self.ranks, self.ranks)))
        reduced = all_reduce_bytes(self.gradient_bytes, self.ranks)
        return network.uneven_s(busiest_bytes(sent), 0) + network.seconds(reduced, 0)
