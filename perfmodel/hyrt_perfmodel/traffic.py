"""Expected traffic between ranks in one step with each strategy, and the cost of collectives.

Collectives follow the alpha-beta model (Thakur, Rabenseifner and Gropp, "Optimization of collective
communication operations in MPICH", 2005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from hyrt_perfmodel.network import Network
from hyrt_perfmodel.workload import TrainingWorkload, Workload


def busiest_link_bytes(sent: NDArray[np.float64]) -> float:
    """Return the bytes in the busiest direction of any link, given the bytes between ranks [N, N].

    The diagonal is ignored.
    """
    off_diagonal = sent * (1 - np.eye(len(sent)))
    return float(max(off_diagonal.sum(axis=0).max(), off_diagonal.sum(axis=1).max()))


def all_to_all_v_s(sent: NDArray[np.float64], network: Network) -> float:
    """Return the seconds of an all-to-all, given the bytes from each rank to each other rank [N, N].

    Each rank sends N - 1 messages; the busiest link determines the time.
    """
    ranks = len(sent)
    return network.uneven_s(busiest_link_bytes(sent), ranks - 1) if ranks > 1 else 0.0


def all_reduce_bytes(num_bytes: float, ranks: int) -> float:
    """Return the bytes that each rank sends in a ring all-reduce: 2 (N - 1) / N times the array."""
    return 2 * (ranks - 1) / ranks * num_bytes


def all_reduce_s(num_bytes: float, ranks: int, network: Network) -> float:
    """Return the seconds of a ring all-reduce: 2 (N - 1) messages of 1/N of the array."""
    return network.seconds(all_reduce_bytes(num_bytes, ranks), 2 * (ranks - 1)) if ranks > 1 else 0.0


ROWS = "rows"
EDGES = "edges"
"""Purpose of requests for vertices' neighbors, and of the responses, if ranks have different edges."""
GRADIENTS = "gradients"
MODELS = "models"
PURPOSES = (ROWS, "hidden", "partials", MODELS, GRADIENTS)
"""Purposes of traffic in the order of the table: input rows, first-layer results and their gradients, partial
aggregates, migrating models, and gradient sums."""
WEIGHT_PURPOSES = (MODELS, GRADIENTS)
"""Purposes whose bytes do not depend on the number of targets in a step."""


@dataclass(frozen=True, slots=True, eq=False)
class PurposeTraffic:
    """Traffic of one purpose in a step."""

    sent: NDArray[np.float64]
    """Number of bytes from each rank to each other rank: [N, N]."""
    messages: int
    """Number of sequential messages of a rank, or 0 if the bytes are part of another purpose's messages."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTraffic:
    """Traffic of a step between N ranks."""

    ranks: int
    purposes: Mapping[str, PurposeTraffic]
    """Traffic by purpose, without gradients; purposes without traffic are absent."""
    gradient_bytes: float
    """Number of bytes of one model's gradient sums, which are all-reduced."""
    time_steps: int = 1
    """Number of sequential time steps into which a rank divides its part of a step (HopGNN section 5.1)."""
    largest_share: float = 1.0
    """Maximum targets of a rank relative to the mean over ranks. The stages of this rank are the slowest."""

    def bytes_by_purpose(self) -> dict[str, float]:
        """Return the bytes that all ranks together send, by purpose."""
        by_purpose = dict.fromkeys(PURPOSES, 0.0)
        by_purpose |= {name: float(traffic.sent.sum()) for name, traffic in self.purposes.items()}
        by_purpose[GRADIENTS] = self.ranks * all_reduce_bytes(self.gradient_bytes, self.ranks)
        return by_purpose

    def seconds_by_purpose(self, network: Network) -> dict[str, float]:
        """Return the seconds of each purpose alone, or 0 for purposes without traffic."""
        by_purpose = dict.fromkeys(PURPOSES, 0.0)
        for name, traffic in self.purposes.items():
            if traffic.sent.any():
                by_purpose[name] = network.uneven_s(busiest_link_bytes(traffic.sent), traffic.messages)
        by_purpose[GRADIENTS] = all_reduce_s(self.gradient_bytes, self.ranks, network)
        return by_purpose

    def link_s(self, network: Network) -> float:
        """Return the time that the busiest link needs for all traffic."""
        sent = sum((traffic.sent for traffic in self.purposes.values()), np.zeros((self.ranks, self.ranks)))
        reduced = all_reduce_bytes(self.gradient_bytes, self.ranks)
        return network.uneven_s(busiest_link_bytes(sent), 0) + network.seconds(reduced, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDistribution:
    """Distribution of a step's work among ranks."""

    ranks: int
    locality: float
    """Fraction of a local target's input rows that are local too, which is 1 / N for random partitions."""
    time_steps: int | None = None
    """Number of time steps of `hopgnn` after merging, from 1 to N; None means N."""
    multiplies_sources: bool = False
    """Whether the first layer multiplies or combines every source row before summing."""

    def __post_init__(self) -> None:
        if self.time_steps is not None and not 1 <= self.time_steps <= self.ranks:
            raise ValueError(f"time_steps must be from 1 to the {self.ranks} ranks, got {self.time_steps}")
        if self.ranks < 1:
            raise ValueError(f"ranks must be at least 1, got {self.ranks}")
        if not 0 <= self.locality <= 1:
            raise ValueError(f"locality must be a fraction from 0 to 1, got {self.locality}")


def expected_traffic(
    strategy: str, training: TrainingWorkload, distribution: WorkDistribution
) -> StepTraffic:
    """Return the traffic of a step that is divided equally among ranks. `strategy` is a key of `EXPECTED`.

    The batch size of `training` is that of a step over all ranks. The model assumes that vertices in several
    mini-batches are as likely to be local as others, and that mini-batches of local targets are as large as
    those of random targets.
    """
    work = training.at(training.batch_size / distribution.ranks)
    purposes, time_steps = EXPECTED[strategy](work, training, distribution)
    return StepTraffic(
        ranks=distribution.ranks,
        purposes=purposes,
        gradient_bytes=model_bytes(work),
        time_steps=time_steps,
    )


def model_bytes(work: Workload) -> float:
    """Return the bytes of a model's weights, or of their gradients."""
    return work.num_weights * work.bytes_per_value


def hidden_bytes(work: Workload) -> float:
    """Return the bytes per row of the first layer's first product, with attention over all heads."""
    heads = work.f_in(1) / (work.features[0] * (2 if work.concat else 1))
    width = work.hidden_width(1) or work.features[1] * heads
    return width * work.bytes_per_value


def partial_bytes(work: Workload, *, is_source: bool = False) -> float:
    """Return the bytes of the input of the first layer's product, per vertex or per source row."""
    width = work.features[0] if is_source else work.f_in(1)
    return width * work.bytes_per_value


Expected = tuple[dict[str, PurposeTraffic], int]


def _even(bytes_per_rank: float, ranks: int, messages: int) -> PurposeTraffic:
    """Return traffic in which each rank sends the same number of bytes to every other rank."""
    between = (1 - np.eye(ranks)) / max(ranks - 1, 1)
    return PurposeTraffic(bytes_per_rank * between, messages)


def _remote_rows(local: float, work: Workload, ranks: int) -> dict[str, PurposeTraffic]:
    remote = (1 - local) * work.vertices[0] * work.row_bytes
    return {ROWS: _even(remote, ranks, ranks - 1)}


def _model_centric(work: Workload, training: TrainingWorkload, spread: WorkDistribution) -> Expected:
    return _remote_rows(1 / spread.ranks, work, spread.ranks), 1


def _home(work: Workload, training: TrainingWorkload, spread: WorkDistribution) -> Expected:
    return _remote_rows(spread.locality, work, spread.ranks), 1


def _hopgnn(work: Workload, training: TrainingWorkload, spread: WorkDistribution) -> Expected:
    ranks = spread.ranks
    time_steps = spread.time_steps or ranks
    # The targets of merged time steps are trained on another, random rank.
    local_share = time_steps / ranks
    elsewhere = (1 - spread.locality) / max(ranks - 1, 1)
    local = local_share * spread.locality + (1 - local_share) * elsewhere
    purposes = _remote_rows(local, work, ranks)
    if time_steps > 1:
        moved = (time_steps - 1) * 2 * model_bytes(work)
        purposes["models"] = PurposeTraffic(moved * np.roll(np.eye(ranks), 1, axis=1), time_steps - 1)
    return purposes, time_steps


def _p3(work: Workload, training: TrainingWorkload, spread: WorkDistribution) -> Expected:
    ranks = spread.ranks
    # Each rank sends partial results of every other rank's mini-batch, and gradients of the local mini-batch,
    # to every other rank.
    products = work.vertices[0 if spread.multiplies_sources else 1]
    bytes_per_rank = 2 * (ranks - 1) * products * hidden_bytes(work)
    return {"hidden": _even(bytes_per_rank, ranks, 2 * (ranks - 1))}, 1


def _naive_migration(work: Workload, training: TrainingWorkload, spread: WorkDistribution) -> Expected:
    ranks = spread.ranks
    sources = 1 + work.edges[0] / max(work.vertices[1], 1.0)
    # Fraction of destinations with at least one source visited after `stops` ranks.
    visited = sum(1 - (1 - stops / ranks) ** sources for stops in range(1, ranks + 1))
    partials = visited * work.vertices[1] * partial_bytes(work)
    if spread.multiplies_sources:
        visited = sum(stops / ranks for stops in range(1, ranks + 1))
        partials = visited * work.vertices[0] * partial_bytes(work, is_source=True)
    ring = np.roll(np.eye(ranks), 1, axis=1) * (1 - np.eye(ranks))
    return {
        "partials": PurposeTraffic(partials * ring, ranks),
        "models": PurposeTraffic(ranks * 2 * model_bytes(work) * ring, 0),
    }, 1


EXPECTED: Mapping[str, Callable[[Workload, TrainingWorkload, WorkDistribution], Expected]] = MappingProxyType(
    {
        "model-centric": _model_centric,
        "p3": _p3,
        "naive-migration": _naive_migration,
        "hopgnn": _hopgnn,
        "home": _home,
        "local": _home,
    }
)
"""Functions that return the expected traffic of each strategy, in the order of the table."""
