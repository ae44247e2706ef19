"""What a run does in another way where several processes train one model together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hyrt.inference.shared_scores import SharedScores
from hyrt.pipeline.synchronize import Reduction, alone
from hyrt.quantities import one_line
from hyrt.sampling.block import Ids


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRun:
    """One process's part of a run; the defaults are those of a process that does all of it.

    The graph of a process that has a part of the rows gives all of them, as
    `hyrt.graph.row_source.FetchedRows`.
    """

    num_processes: int = 1
    """How many processes there are."""
    reduction: Reduction = alone
    """Adds the sums of their trainers."""
    own_units: Callable[[Ids], Ids] = lambda units: units
    """Gives those of a step's units, in their order, that this process trains."""
    scores: SharedScores | None = None
    """Scores vertices together with the other processes; None where each scores all of them."""

    __repr__ = one_line


ALONE = SharedRun()
"""The only process of a run."""
