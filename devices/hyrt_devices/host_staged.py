"""Mini-batches that stay in host memory between `transfer` and `propagate`."""

from __future__ import annotations

import copy

from hyrt.checks import check_type
from hyrt.sampling.minibatch import MiniBatch


class HostStaged:
    """Knows which mini-batches `transfer` returned and `propagate` has not seen."""

    def __init__(self) -> None:
        self._waiting: dict[int, MiniBatch] = {}

    def put(self, batch: MiniBatch) -> MiniBatch:
        """Stage a mini-batch: it has an identity of its own, and the same arrays."""
        staged = copy.copy(
            check_type("batch", batch, MiniBatch, "give a hyrt.sampling.minibatch.MiniBatch").checked
        )
        self._waiting[id(staged)] = staged
        return staged

    def take(self, staged: MiniBatch) -> MiniBatch:
        """Release a mini-batch.

        Raises
        ------
        TypeError
            If it was not staged here, or was taken before.
        """
        if self._waiting.pop(id(staged), None) is None:
            raise TypeError(
                f"{type(staged).__name__} is not a mini-batch that transfer staged, or was propagated before"
            )
        return staged

    def clear(self) -> None:
        """Release all."""
        self._waiting.clear()
