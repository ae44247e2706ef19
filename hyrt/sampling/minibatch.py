"""Mini-batches: what sampling hands to loading and training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hyrt.quantities import one_line
from hyrt.sampling.block import Block, Ids

if TYPE_CHECKING:
    from hyrt.sampling.full.whole_graph import WholeGraph


@dataclass(slots=True, eq=False)
class MiniBatch:
    """The work of one trainer in one step."""

    step: int
    """Step of the run, counted from 0."""
    targets: Ids
    """[n] vertices whose loss is computed."""
    blocks: list[Block]
    """L blocks, the input's first."""
    labels: NDArray[Any]
    """The targets' labels: [n] int64 classes, [n, K] int8 flags (-1 not known), or [n, K] float32 numbers
    (nan not known). Of links, [m, 1 + K, 2] int64: of each of m links, the rows of its ends among the scores,
    and those of K pairs that are no links."""
    target_weights: NDArray[np.float32] | None
    """[n] float32 factors on the targets' losses, or None for all one."""
    normalizer: float
    """This mini-batch's share of what the step's gradient sum is divided by: its number of targets, or for
    subgraph samplers the number of units."""
    inputs: Any = None
    """What the load stage put here: the input features in the form the trainer takes."""
    target_rows: Ids | None = None
    """[n] the row of the scores that each target has. None where the scores have one row a target, in order;
    else the last block has more destinations than there are targets, and only these rows enter the loss."""
    whole: WholeGraph | None = None
    """What the blocks share, where each of them is the whole graph; else None. Mini-batches with the same
    object here have the same blocks (but for the step), targets, labels and inputs, so a device may keep what
    it made of the first."""
    _on_release: list[Callable[[], None]] = field(default_factory=list, repr=False)

    __repr__ = one_line

    @property
    def has_classes(self) -> bool:
        """Whether the labels are classes."""
        return self.labels.dtype == np.int64 and self.labels.ndim == 1

    @property
    def num_losses(self) -> int:
        """How many losses are added up: one for each target, or for each link."""
        return len(self.labels)

    @property
    def num_edges(self) -> int:
        """Sampled edges of all layers."""
        return sum(block.num_edges for block in self.blocks)

    def when_released(self, action: Callable[[], None]) -> None:
        """Call `action` when the step that used this mini-batch is over."""
        self._on_release.append(action)

    def release(self) -> None:
        """Give pooled buffers back; the mini-batch's arrays must not be read afterwards."""
        actions, self._on_release = self._on_release, []
        for action in actions:
            action()
