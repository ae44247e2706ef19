"""The traffic of a step that is expected from the sizes of mini-batches, by strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from hyrt_perfmodel.communication.step_traffic import ROWS, PurposeTraffic, StepTraffic
from hyrt_perfmodel.workloads.workload import TrainingWorkload, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How a step's work lies on ranks."""

    ranks: int
    """The number of ranks, N."""
    locality: float
    """The part of the input rows of roots at home that is at home, too: 1 / N where homes are random."""
    time_steps: int | None = None
    """The time steps that `hopgnn` has after merging, 1 to N; None for N."""
    of_sources: bool = False
    """Whether the first layer multiplies, or combines, the row of every source before it sums them."""

    def __post_init__(self) -> None:
        if self.time_steps is not None and not 1 <= self.time_steps <= self.ranks:
            raise ValueError(f"{self.time_steps} time steps of {self.ranks} ranks: give 1 to {self.ranks}")
        if self.ranks < 1:
            raise ValueError(f"{self.ranks} ranks: give at least 1")
        if not 0 <= self.locality <= 1:
            raise ValueError(f"locality is {self.locality}: give a fraction from 0 to 1")


def expected_traffic(strategy: str, training: TrainingWorkload, spread: Spread) -> StepTraffic:
    """The traffic of a step that every rank has an equal part of.

    Vertices that several mini-batches share are at home as often as others; the mini-batches of roots at home
    are taken to be as large as those of roots from everywhere.

    Parameters
    ----------
    strategy
        A name of `EXPECTED`.
    training
        The work; its batch is that of a step over all ranks.
    spread
        How it lies on ranks.
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
    """Bytes of a model's weights, or of their gradients."""
    return work.num_weights * work.bytes_per_value


def hidden_bytes(work: Workload) -> float:
    """Bytes of what the first layer's first product makes of a row: with attention, the rows of all heads."""
    heads = work.f_in(1) / (work.features[0] * (2 if work.concat else 1))
    width = work.between(1) or work.features[1] * heads
    return width * work.bytes_per_value


def partial_bytes(work: Workload, *, of_sources: bool = False) -> float:
    """Bytes of what the first layer multiplies for a vertex, or of a source's row where it reads these."""
    width = work.features[0] if of_sources else work.f_in(1)
    return width * work.bytes_per_value


Expected = tuple[dict[str, PurposeTraffic], int]


def _even(each_sends: float, ranks: int, messages: int) -> PurposeTraffic:
    """As many bytes from each rank, the same to all others."""
    between = (1 - np.eye(ranks)) / max(ranks - 1, 1)
    return PurposeTraffic(each_sends * between, messages)


def _gathered(local: float, work: Workload, ranks: int) -> dict[str, PurposeTraffic]:
    remote = (1 - local) * work.vertices[0] * work.row_bytes
    return {ROWS: _even(remote, ranks, ranks - 1)}


def _model_centric(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    return _gathered(1 / spread.ranks, work, spread.ranks), 1


def _home(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    return _gathered(spread.locality, work, spread.ranks), 1


def _hopgnn(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    times = spread.time_steps or ranks
    # Roots of merged time steps are trained away from home, at any other rank.
    at_home = times / ranks
    elsewhere = (1 - spread.locality) / max(ranks - 1, 1)
    local = at_home * spread.locality + (1 - at_home) * elsewhere
    found = _gathered(local, work, ranks)
    if times > 1:
        moved = (times - 1) * 2 * model_bytes(work)
        found["models"] = PurposeTraffic(moved * np.roll(np.eye(ranks), 1, axis=1), times - 1)
    return found, times


def _p3(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    # To every other rank the partial results of its mini-batch, and to every other the gradient of the own.
    products = work.vertices[0 if spread.of_sources else 1]
    each_sends = 2 * (ranks - 1) * products * hidden_bytes(work)
    return {"hidden": _even(each_sends, ranks, 2 * (ranks - 1))}, 1


def _naive_migration(work: Workload, training: TrainingWorkload, spread: Spread) -> Expected:
    ranks = spread.ranks
    sources = 1 + work.edges[0] / max(work.vertices[1], 1.0)
    # After so many stops of its round, the part of the destinations that have met a source.
    met = sum(1 - (1 - stops / ranks) ** sources for stops in range(1, ranks + 1))
    partials = met * work.vertices[1] * partial_bytes(work)
    if spread.of_sources:
        met = sum(stops / ranks for stops in range(1, ranks + 1))
        partials = met * work.vertices[0] * partial_bytes(work, of_sources=True)
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
"""What gives the expected traffic of each strategy, in the order of tables."""
