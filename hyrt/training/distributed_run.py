"""Options of a run in which several processes train one model."""

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
    """Return the event unchanged, as in a run of one process."""
    return event


def nowhere() -> None:
    """Return None: this process does not replace a lost rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRunConfig:
    """One process's part of a run; the defaults are for a process that trains alone.

    If a process stores only a part of the feature rows, its graph still provides all rows, as
    `hyrt.graph.row_source.PrefetchedRowSource`.
    """

    part: RankSlice = ALL
    """This process's part of every step."""
    reduction: Reduction = no_reduction
    """Adds the sums of the trainers of all processes."""
    on_gradient: Callable[[int, torch.Tensor], None] | None = None
    """Called with gradients during the backward pass, if one trainer computes all of this process's part."""
    pass_on: StateHandoff = no_handoff
    """Transfers sums to another process together with their model, between two time steps."""
    scores: DistributedScorer | None = None
    """Scores vertices jointly with the other processes; None if each process scores all vertices."""
    in_chunks: bool = False
    """Whether full graphs are trained in chunks, on any device that supports chunk columns."""
    traces: RankTraceGatherer | None = None
    """Merges the traces of all processes into one file; None if each process writes a separate trace."""
    inherited: Callable[[], Path | None] = nowhere
    """Returns the run folder if this process must write the records in place of a lost process."""
    seen: Callable[[Event], Event] = unchanged
    """Converts this process's events to the events that are shown and recorded; hooks get the originals."""

    __repr__ = short_repr


ALONE = DistributedRunConfig()
"""Configuration of a run with a single process."""
