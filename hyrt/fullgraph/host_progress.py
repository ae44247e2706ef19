"""Gradient sums of a full-graph step on the host, and its resumable progress from layer to layer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import StepInterrupted
from hyrt.fullgraph.gather_ops import GatherResult
from hyrt.fullgraph.step_checkpoint import LossTotals, StepCheckpoint, StepCheckpointer, StepPosition
from hyrt.nn.operators.sparse import SparseRows


class ChunkSum:
    """Gradients of some parameters, summed in the order of the chunks.

    Threads start chunks in order, so at most one result per thread waits to be added.
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
        output_gradients: Sequence[torch.Tensor] | None,
        inputs: Sequence[torch.Tensor | SparseRows | None],
        save_for_backward: Callable[[NDArray[Any], NDArray[Any]], None] | None = None,
    ) -> None:
        """Add a chunk's parameter gradients to the sums, and overwrite its inputs with their gradients.

        Each number `chunk`, from 0, is passed once. `output_gradients` are None for a scalar loss. Only
        `inputs` that require gradients are used. If the first input requires a gradient, `save_for_backward`
        is called with it and its gradient before it is overwritten.
        """
        rows = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.requires_grad]
        # Outputs may be the input features themselves, which do not require gradients.
        taken = [k for k, output in enumerate(outputs) if output.requires_grad]
        variables = [*rows, *self.parameters]
        grads: Sequence[torch.Tensor | None] = [None] * len(variables)
        if taken:
            grads = torch.autograd.grad(
                [outputs[k] for k in taken],
                variables,
                None if output_gradients is None else [output_gradients[k] for k in taken],
                allow_unused=True,
            )
        for values, grad in zip(rows, grads, strict=False):
            data, gradient = values.detach(), torch.zeros_like(values) if grad is None else grad
            if save_for_backward is not None and values is inputs[0]:
                save_for_backward(data.numpy(), gradient.contiguous().numpy())
            data.copy_(gradient)
        with self._lock:
            self._waiting[chunk] = grads[len(rows) :]
            while (ready := self._waiting.pop(self._next, None)) is not None:
                self._next += 1
                for index, term in enumerate(ready):
                    self._add(index, term)

    def add(self, gradients: Sequence[torch.Tensor]) -> None:
        """Add the gradients of all parameters."""
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
    def stage_sums(self) -> Sequence[ChunkSum]:
        """Return the sums in the order in which they were added."""
        return self._sums

    def add_stage(self, parameters: Sequence[torch.nn.Parameter]) -> ChunkSum:
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


Array = NDArray[Any]


@dataclass(slots=True)
class StepState:
    """State that the rest of a step needs."""

    layers: list[GatherResult] = field(default_factory=list)
    """Gathered layers whose backward pass has not run yet."""
    messages: tuple[Array, ...] = ()
    self_rows: Array | None = None
    """`messages` and `self_rows`: messages of the next gather, and rows that the stage after it reads."""
    grads: tuple[Array, ...] = ()
    """Backward: gradients of the next stage's outputs."""
    loss_totals: LossTotals | None = None
    """The loss sum and the counts; None before the loss is computed."""


class HostStepProgress:
    """Counts the half layers of a step: gather and dense stage, in both directions.

    `plan` are the inputs that determine the step, as plain JSON values. `sums` are its gradient sums. Without
    a `checkpointer`, no checkpoints are written. The step resumes from `checkpoint` if there is one.
    """

    def __init__(
        self,
        plan: Mapping[str, Any] | None = None,
        sums: GradientSums | None = None,
        checkpointer: StepCheckpointer | None = None,
        checkpoint: StepCheckpoint | None = None,
        num_halves: int = 0,
    ) -> None:
        self._plan = plan or {}
        self._sums = sums or GradientSums()
        self._keeper = checkpointer
        self._checkpoint = checkpoint
        self._number = 0
        self._num_halves = num_halves
        self.state = StepState()

    def is_done(self, restore: Callable[[StepCheckpoint], None]) -> bool:
        """Return whether the next half layer is already done; call `restore` at the last one that is done."""
        if self._checkpoint is None:
            return False
        self._number += 1
        if self._number == self._checkpoint.position.number:
            checkpoint, self._checkpoint = self._checkpoint, None
            restore(checkpoint)
        return True

    def finish_half(self) -> None:
        """Mark a half layer as done, and save a checkpoint if one is due.

        Raises StepInterrupted, after saving the completed part, if the step must stop.
        """
        self._number += 1
        if self._keeper is None:
            return
        self._keeper.report_progress()
        if self._keeper.is_due:
            self._keep(self._keeper)

    def _keep(self, keeper: StepCheckpointer) -> None:
        matrices: dict[str, Array] = {}
        names: dict[int, str] = {}

        def name(array: Array | None) -> str | None:
            """Return the name of an array; an array with several uses is saved once."""
            if array is None:
                return None
            if id(array) not in names:
                names[id(array)] = str(len(names))
                matrices[names[id(array)]] = array
            return names[id(array)]

        def several(arrays: Sequence[Array]) -> list[str | None]:
            return [name(each) for each in arrays]

        state = self.state
        rest = {
            "layers": [
                [
                    name(each.values),
                    each.needs_gradient,
                    several(each.messages),
                    several(each.saved),
                    name(each.self_rows),
                ]
                for each in state.layers
            ],
            "messages": several(state.messages),
            "own": name(state.self_rows),
            "grads": several(state.grads),
            "there": [[term is not None for term in each.totals] for each in self._sums.stage_sums],
        }
        terms = [
            [term.detach().numpy() for term in each.totals if term is not None]
            for each in self._sums.stage_sums
        ]
        losses = {} if state.loss_totals is None else {0: state.loss_totals}
        position = StepPosition(
            plan=self._plan,
            number=self._number,
            columns=(),
            num_passes=self._num_halves,
            losses=losses,
            sums=terms,
            extra=rest,
        )
        keeper.save(position, matrices)
        if keeper.should_stop:
            raise StepInterrupted


@dataclass(frozen=True, slots=True)
class CheckpointedArrays:
    """Arrays of a step, read from a checkpoint."""

    layers: Sequence[tuple[Array, bool, tuple[Array, ...], tuple[Array, ...], Array | None]]
    """Per layer: gathered rows, whether they need a gradient, messages, other saved tensors, input rows."""
    messages: tuple[Array, ...]
    self_rows: Array | None
    grads: tuple[Array, ...]
    loss_totals: LossTotals | None

    @classmethod
    def read(
        cls, checkpoint: StepCheckpoint, allocate: Callable[[tuple[int, ...], DTypeLike], Array]
    ) -> CheckpointedArrays:
        """Read all matrices into arrays from `allocate`."""
        arrays: dict[str, Array] = {}
        for name, (shape, dtype) in checkpoint.matrices.items():
            arrays[name] = allocate(shape, dtype)
            checkpoint.read_matrix(name, arrays[name])
        rest = checkpoint.position.extra

        def one(name: str | None) -> Array | None:
            return None if name is None else arrays[name]

        def several(names: Sequence[str]) -> tuple[Array, ...]:
            return tuple(arrays[name] for name in names)

        return cls(
            layers=[
                (arrays[values], takes_gradient, several(messages), several(others), one(self_rows))
                for values, takes_gradient, messages, others, self_rows in rest["layers"]
            ],
            messages=several(rest["messages"]),
            self_rows=one(rest["own"]),
            grads=several(rest["grads"]),
            loss_totals=checkpoint.position.losses.get(0),
        )


def restore_sums(checkpoint: StepCheckpoint, sums: Sequence[ChunkSum]) -> None:
    """Restore the gradient sums of a checkpoint."""
    for chunk_sum, there, terms in zip(
        sums, checkpoint.position.extra["there"], checkpoint.position.sums, strict=True
    ):
        remaining = iter(terms)
        chunk_sum.totals = [
            torch.from_numpy(next(remaining).copy()) if is_there else None for is_there in there
        ]
