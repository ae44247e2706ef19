"""Targets of each step: one shuffle per epoch, divided into batches; the last, shorter batch is kept."""

from __future__ import annotations

import numpy as np

from hyrt.machine.generator import SHUFFLE, stream_key
from hyrt.sampling.block import Ids
from hyrt.sampling.checks.arguments import check_step


class TargetOrder:
    """Batches of shuffled targets; each epoch's order is a function of the seed and the epoch alone."""

    def __init__(self, targets: Ids, batch_size: int, seed: int) -> None:
        self._targets = targets
        self._batch_size = batch_size
        self._seed = seed
        self._epoch = -1
        self._order: Ids = targets

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self._targets) // self._batch_size)

    def batch(self, step: int) -> Ids:
        """Return the targets of one step of the run."""
        epoch, position = divmod(check_step(step), self.steps_per_epoch)
        if epoch != self._epoch:
            key = int(stream_key(self._seed, SHUFFLE, epoch, 0))
            self._order = np.random.Generator(np.random.Philox(key=key)).permutation(self._targets)
            self._epoch = epoch
        start = position * self._batch_size
        return self._order[start : start + self._batch_size]
