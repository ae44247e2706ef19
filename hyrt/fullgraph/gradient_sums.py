"""Gradients of parameters, summed over chunks in an order that does not depend on thread timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from hyrt.nn.operators.sparse import SparseRows


class ChunkSum:
    """Gradients of some parameters, summed in the order of the chunks.

    Threads start chunks in order, so at most one result per thread waits to be added.

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
        """Differentiate a chunk: add parameter gradients to the sums, and overwrite inputs with their
        gradients.

        Parameters
        ----------
        chunk
            Chunk number from 0; each number is passed once.
        outputs, along
            Output tensors and their gradients; None for a scalar loss.
        inputs
            The inputs of the outputs. Only tensors that require gradients are used.
        meet
            Called with the first input and its gradient before the input is overwritten, if it requires a
            gradient.
        """
        rows = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
        # Messages may be the rows themselves, and features do not require gradients.
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
            data, gradient = values.detach(), torch.zeros_like(values) if grad is None else grad
            if meet is not None and values is inputs[0]:
                meet(data.numpy(), gradient.contiguous().numpy())
            data.copy_(gradient)
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
    """Gradients of a model, from the sums of its stages."""

    def __init__(self) -> None:
        self._sums: list[ChunkSum] = []

    @property
    def each(self) -> Sequence[ChunkSum]:
        """Return the sums in the order in which they were added."""
        return self._sums

    def of(self, parameters: Sequence[torch.nn.Parameter]) -> ChunkSum:
        """Add and return the sum of a stage that reads these parameters."""
        self._sums.append(ChunkSum(parameters))
        return self._sums[-1]

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
        """Return the gradient of each parameter; zero if no stage reads it."""
        totals: dict[int, torch.Tensor] = {}
        for stage in self._sums:
            for parameter, term in zip(stage.parameters, stage.totals, strict=True):
                if term is not None:
                    total = totals.get(id(parameter))
                    totals[id(parameter)] = term if total is None else total + term
        return [totals.get(id(parameter), torch.zeros_like(parameter)) for parameter in parameters]
