"""Gradients of a model's parameters, added over chunks in an order that does not depend on threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from hyrt.nn.operators.sparse import SparseRows


class ChunkSum:
    """The gradients of some parameters, added in the order of the chunks, whichever is finished first.

    Threads draw chunks in order, so that no more than one result a thread waits for its turn.

    Parameters
    ----------
    parameters
        The parameters.
    """

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.totals: list[torch.Tensor | None] = [None] * len(parameters)
        self._lock = threading.Lock()
        self._waiting: dict[int, Sequence[torch.Tensor | None]] = {}
        self._next = 0

    def differentiate(
        self,
        chunk: int,
        outputs: Sequence[torch.Tensor],
        along: Sequence[torch.Tensor] | None,
        inputs: Sequence[torch.Tensor | SparseRows | None],
        meet: Callable[[NDArray[Any], NDArray[Any]], None] | None = None,
    ) -> None:
        """Take gradients of a chunk: those of parameters are added, those of inputs overwrite the inputs.

        Parameters
        ----------
        chunk
            Its number, from 0; each number comes once.
        outputs, along
            Tensors, and the gradients of them; None for a scalar loss.
        inputs
            What the outputs were computed from. Only tensors that take a gradient count.
        meet
            Called with the first input, if it takes a gradient, and that gradient, before it is overwritten.
        """
        rows = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
        # Rows may be sent as they are, and then those of features take no gradient.
        taken = [k for k, output in enumerate(outputs) if output.requires_grad]
        wanted = [*rows, *self.parameters]
        grads: Sequence[torch.Tensor | None] = [None] * len(wanted)
        if taken:
            grads = torch.autograd.grad(
                [outputs[k] for k in taken],
                wanted,
                None if along is None else [along[k] for k in taken],
                allow_unused=True,
            )
        for values, grad in zip(rows, grads, strict=False):
            given, found = values.detach(), torch.zeros_like(values) if grad is None else grad
            if meet is not None and values is inputs[0]:
                meet(given.numpy(), found.contiguous().numpy())
            given.copy_(found)
        with self._lock:
            self._waiting[chunk] = grads[len(rows) :]
            while (ready := self._waiting.pop(self._next, None)) is not None:
                self._next += 1
                for index, term in enumerate(ready):
                    self._add(index, term)

    def add(self, gradients: Sequence[torch.Tensor]) -> None:
        """Add gradients of the parameters."""
        for index, term in enumerate(gradients):
            self._add(index, term)

    def _add(self, index: int, term: torch.Tensor | None) -> None:
        total = self.totals[index]
        if total is None:
            self.totals[index] = term
        elif term is not None:
            total.add_(term)


class GradientSums:
    """The gradients of a model, from the sums of its stages."""

    def __init__(self) -> None:
        self._sums: list[ChunkSum] = []

    @property
    def each(self) -> Sequence[ChunkSum]:
        """Those that there are, in the order in which they were asked for."""
        return self._sums

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> ChunkSum:
        """A new sum over the chunks of a stage that reads these parameters."""
        self._sums.append(ChunkSum(parameters))
        return self._sums[-1]

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
        """The gradient of each parameter; zero where no stage reads it."""
        totals: dict[int, torch.Tensor] = {}
        for each in self._sums:
            for parameter, term in zip(each.parameters, each.totals, strict=True):
                if term is not None:
                    there = totals.get(id(parameter))
                    totals[id(parameter)] = term if there is None else there + term
        return [totals.get(id(parameter), torch.zeros_like(parameter)) for parameter in parameters]
