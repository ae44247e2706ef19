"""Staging for devices whose mini-batches stay in host memory between `transfer` and `propagate`."""

from __future__ import annotations

import copy

from hyrt.checks import check_type
from hyrt.sampling.minibatch import MiniBatch


class HostStaged:
    """Registry of the mini-batches that `transfer` has returned and `propagate` has not consumed."""

    def __init__(self) -> None:
        self._waiting: dict[int, MiniBatch] = {}

    def put(self, batch: MiniBatch) -> MiniBatch:
        """Stage a mini-batch, and return a shallow copy that shares its arrays."""
        staged = copy.copy(
            check_type("batch", batch, MiniBatch, "pass a hyrt.sampling.minibatch.MiniBatch").checked
        )
        self._waiting[id(staged)] = staged
        return staged

    def take(self, staged: MiniBatch) -> MiniBatch:
        """Remove a staged mini-batch and return it.

        Raises TypeError if the mini-batch was not staged here or has already been taken.
        """
        if self._waiting.pop(id(staged), None) is None:
            raise TypeError(
                f"propagate got {type(staged).__name__}, expected a mini-batch from transfer that was not "
                "propagated before"
            )
        return staged

    def clear(self) -> None:
        """Remove all staged mini-batches."""
        self._waiting.clear()
