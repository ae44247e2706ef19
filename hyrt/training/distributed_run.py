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
    return event


def nowhere() -> None:
    """Return None: this process does not replace a lost rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedRunConfig:
    """Part that one process has in a run; the defaults are for a process that trains alone.

    If a process stores only a part of the feature rows, its graph still provides all rows, as
    `hyrt.graph.row_source.PrefetchedRowSource`.
    """

    part: RankSlice = ALL
    """Part of every step that this process computes."""
    reduction: Reduction = no_reduction
    """Sum over the trainers of all processes."""
    on_gradient: Callable[[int, torch.Tensor], None] | None = None
    """Callback for gradients during the backward pass, if one trainer computes all of this process's part."""
    pass_on: StateHandoff = no_handoff
    """Transfer of sums to another process together with their model, between two time steps."""
    scores: DistributedScorer | None = None
    """Scorer of vertices jointly with the other processes; None if each process scores all vertices."""
    in_chunks: bool = False
    """Whether full graphs are trained in chunks, on any device that supports chunk columns."""
    traces: RankTraceGatherer | None = None
    """Gatherer of the traces of all processes for one file; None if each process writes its own file."""
    inherited: Callable[[], Path | None] = nowhere
    """Function that returns the run folder if this process must write the records for a lost process."""
    seen: Callable[[Event], Event] = unchanged
    """Conversion of this process's events to those that are shown and recorded; hooks get the originals."""

    __repr__ = short_repr


ALONE = DistributedRunConfig()
"""Configuration of a run with a single process."""
