"""Expected traffic of a step per strategy, from expected mini-batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hyrt_perfmodel.communication.step_traffic import ROWS, PurposeTraffic, StepTraffic
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Distribution of a step's work over ranks."""

    ranks: int
    """Number of ranks, N."""
    locality: float
    """Fraction of the local targets' input rows that are also local: 1 / N for random partitions."""
    time_steps: int | None = None
    """Time steps of `hopgnn` after merging, 1 to N; None for N."""
    of_sources: bool = False
    """Whether the first layer multiplies or combines every source row before summing."""

    def __post_init__(self) -> None:
        if self.time_steps is not None and not 1 <= self.time_steps <= self.ranks:
            raise ValueError(f"{self.time_steps} time steps of {self.ranks} ranks: give 1 to {self.ranks}")
        if self.ranks < 1:
            raise ValueError(f"{self.ranks} ranks: give at least 1")
        if not 0 <= self.locality <= 1:
            raise ValueError(f"locality is {self.locality}: give a fraction from 0 to 1")


def expected_traffic(strategy: str, training: TrainingWorkload, spread: Spread) -> StepTraffic:
    """Return the traffic of a step divided equally among the ranks.

    Vertices shared by several mini-batches are assumed as likely to be local as others; mini-batches of local
    targets are assumed as large as mini-batches of random targets.

    Parameters
    ----------
    strategy
        A name in `EXPECTED`.
    training
        The work; its batch size is that of a step over all ranks.
    spread
        Distribution of the work over ranks.
    """
    work = training.at(training.batch_size / spread.ranks)
    purposes, time_steps = EXPECTED[strategy](work, training, spread)
    return StepTraffic(
        ranks=spread.ranks,
        purposes=purposes,
        gradient_bytes=model_bytes(work),
        time_steps=time_steps,
    )


def model_bytes(work: Workload) -> float:
    """Return the bytes of a model's weights, or of their gradients."""
    return work.num_weights * work.bytes_per_value


def hidden_bytes(work: Workload) -> float:
    """Return the bytes per row of the first layer's first product; with attention, of all heads."""
    heads = work.f_in(1) / (work.features[0] * (2 if work.concat else 1))
    width = work.between(1) or work.features[1] * heads
    return width * work.bytes_per_value


def partial_bytes(work: Workload, *, of_sources: bool = False) -> float:
    """Return the bytes per vertex of the first layer's input to its product, or per source row."""
    width = work.features[0] if of_sources else work.f_in(1)
    return width * work.bytes_per_value


Expected = tuple[dict[str, PurposeTraffic], int]


def _even(bytes_per_rank: float, ranks: int, messages: int) -> PurposeTraffic:
    """Return traffic in which each rank sends the same number of bytes to every other rank."""
    between = (1 - np.eye(ranks)) / max(ranks - 1, 1)
    return PurposeTraffic(bytes_per_rank * between, messages)


def _remote_rows(local: float, work: Workload, ranks: int) -> dict[str, PurposeTraffic]:
    remote = (1 - local) * work.vertices[0] * work.row_bytes
    return {ROWS: _even(remote, ranks, ranks - 1)}


def _model_centric(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    return _remote_rows(1 / spread.ranks, work, spread.ranks), 1


def _home(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    return _remote_rows(spread.locality, work, spread.ranks), 1


def _hopgnn(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    time_steps = spread.time_steps or ranks
    # Targets of merged time steps are trained on another, random rank.
    local_share = time_steps / ranks
    elsewhere = (1 - spread.locality) / max(ranks - 1, 1)
    local = local_share * spread.locality + (1 - local_share) * elsewhere
    purposes = _remote_rows(local, work, ranks)
    if time_steps > 1:
        moved = (time_steps - 1) * 2 * model_bytes(work)
        purposes["models"] = PurposeTraffic(moved * np.roll(np.eye(ranks), 1, axis=1), time_steps - 1)
    return purposes, time_steps


def _p3(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    # Each rank sends partial results of every other rank's mini-batch, and gradients of its own, to every
    # other rank.
    products = work.vertices[0 if spread.of_sources else 1]
    bytes_per_rank = 2 * (ranks - 1) * products * hidden_bytes(work)
    return {"hidden": _even(bytes_per_rank, ranks, 2 * (ranks - 1))}, 1


def _naive_migration(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    sources = 1 + work.edges[0] / max(work.vertices[1], 1.0)
    # Fraction of destinations with at least one source visited after `stops` ranks.
    visited = sum(1 - (1 - stops / ranks) ** sources for stops in range(1, ranks + 1))
    partials = visited * work.vertices[1] * partial_bytes(work)
    if spread.of_sources:
        visited = sum(stops / ranks for stops in range(1, ranks + 1))
        partials = visited * work.vertices[0] * partial_bytes(work, of_sources=True)
    ring = np.roll(np.eye(ranks), 1, axis=1) * (1 - np.eye(ranks))
    return {
        "partials": PurposeTraffic(partials * ring, ranks),
        "models": PurposeTraffic(ranks * 2 * model_bytes(work) * ring, 0),
    }, 1


EXPECTED: Mapping[str, Callable[[Workload, TrainingWorkload, Spread], Expected]] = MappingProxyType(
    {
        "model-centric": _model_centric,
        "p3": _p3,
        "naive-migration": _naive_migration,
        "hopgnn": _hopgnn,
        "home": _home,
        "local": _home,
    }
)
"""Functions that return the expected traffic per strategy, in table order."""
