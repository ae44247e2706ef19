"""What a run does in another way where several processes train one model together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hyrt.formatting import short_repr
from hyrt.inference.distributed_scorer import DistributedScorer
from hyrt.pipeline.synchronize import Reduction, StateHandoff, no_handoff, no_reduction
from hyrt.pipeline.work_items import ALL, RankSlice
from hyrt.telemetry.events import Event
from hyrt.telemetry.trace_hook import RankTraceGatherer


def unchanged(event: Event) -> Event:
    """An event of the only process."""
    return event


def nowhere() -> None:
    """No folder: this process takes nobody's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRunConfig:
    """One process's part of a run; the defaults are those of a process that does all of it.

    The graph of a process that has a part of the rows gives all of them, as
    `hyrt.graph.row_source.PrefetchedRowSource`.
    """

    part: RankSlice = ALL
    """The part of every step that this process does."""
    reduction: Reduction = no_reduction
    """Adds the sums of the trainers of all processes."""
    on_gradient: Callable[[int, torch.Tensor], None] | None = None
    """Hears gradients while the backward pass goes on, where one trainer computes all of this process's."""
    pass_on: StateHandoff = no_handoff
    """Hands on, between two time steps, the sums that go to another process with their model."""
    scores: DistributedScorer | None = None
    """Scores vertices together with the other processes; None where each scores all of them."""
    in_chunks: bool = False
    """Whether whole graphs are trained in chunks, on any device that has columns of them."""
    traces: RankTraceGatherer | None = None
    """Brings the traces of all processes into one file; None where each has its own."""
    inherited: Callable[[], Path | None] = nowhere
    """Gives the run folder where this process has to write the records in place of one that is lost."""
    seen: Callable[[Event], Event] = unchanged
    """Makes of this process's events those that are shown and recorded; the hooks have heard them before."""

    __repr__ = short_repr


ALONE = DistributedRunConfig()
"""The only process of a run."""
