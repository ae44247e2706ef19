"""What a run does in another way where several processes train one model together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hyrt.inference.shared_scores import SharedScores
from hyrt.observe.events import Event
from hyrt.observe.trace.traces_of_ranks import TracesOfRanks
from hyrt.pipeline.shares import ALL, StepPart
from hyrt.pipeline.synchronize import PassOn, Reduction, alone, keep
from hyrt.quantities import one_line


def unchanged(event: Event) -> Event:
    """An event of the only process."""
    return event


def nowhere() -> None:
    """No folder: this process takes nobody's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """One process's part of a run; the defaults are those of a process that does all of it.

    The graph of a process that has a part of the rows gives all of them, as
    `hyrt.graph.row_source.FetchedRows`.
    """

    part: StepPart = ALL
    """The part of every step that this process does."""
    reduction: Reduction = alone
    """Adds the sums of the trainers of all processes."""
    hear_gradient: Callable[[int, torch.Tensor], None] | None = None
    """Hears gradients while the backward pass goes on, where one trainer computes all of this process's."""
    pass_on: PassOn = keep
    """Hands on, between two time steps, the sums that go to another process with their model."""
    scores: SharedScores | None = None
    """Scores vertices together with the other processes; None where each scores all of them."""
    in_chunks: bool = False
    """Whether whole graphs are trained in chunks, on any device that has columns of them."""
    traces: TracesOfRanks | None = None
    """Brings the traces of all processes into one file; None where each has its own."""
    inherited: Callable[[], Path | None] = nowhere
    """Gives the run folder where this process has to write the records in place of one that is lost."""
    seen: Callable[[Event], Event] = unchanged
    """Makes of this process's events those that are shown and recorded; the hooks have heard them before."""

    __repr__ = one_line


ALONE = SharedRun()
"""The only process of a run."""
