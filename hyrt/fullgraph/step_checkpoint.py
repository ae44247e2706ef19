"""Mid-step checkpoints of full-graph training, and the resumable progress of a step on the host."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import CheckpointError, StepInterrupted, join_names, system_error_text
from hyrt.fullgraph.gather_ops import GatherResult
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.files import ARCHIVE_ERRORS, atomic_file

Array = NDArray[Any]
LossTotals = tuple[float, dict[str, float]]
"""Loss sum and counts of some targets."""


@dataclass(frozen=True, slots=True)
class StepPosition:
    """Position in a step that one or several devices compute in passes over columns."""

    plan: Mapping[str, Any]
    """Inputs that determine passes and columns, as plain JSON values."""
    number: int
    """Index of the current pass, from 0."""
    columns: Sequence[int]
    """Number of columns that each device has completed, in the order of its columns."""
    num_passes: int
    """Number of passes in the step."""
    losses: Mapping[int, LossTotals] = field(default_factory=dict)
    """Loss and counts of each target interval."""
    sums: Sequence[Sequence[Array]] = ()
    """Gradient sums of each device, or of each half of a layer on the host."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further state, as plain JSON values."""


class StepCheckpoint(Protocol):
    """Mid-step checkpoint, from which a run reads its position and its matrices."""

    @property
    def position(self) -> StepPosition:
        """Position in the step."""
        ...

    @property
    def matrices(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shape and dtype of each matrix, by name."""
        ...

    def read_matrix(self, name: str, out: Array) -> None:
        """Read a matrix into a C-contiguous array of its shape and dtype."""
        ...


class StepCheckpointer(Protocol):
    """Object that saves the completed part of a long step, from which an interrupted run resumes."""

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due. Read often and from any thread."""
        ...

    @property
    def should_stop(self) -> bool:
        """Whether the step must stop after the checkpoint."""
        ...

    def save(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        """Save a checkpoint of matrices that do not change. Raises CheckpointWriteError if this fails."""
        ...

    def take_resumed_step(self, step: int) -> StepCheckpoint | None:
        """Return the checkpoint from which to resume `step`; None if there is none, or the step has started.

        Each checkpoint is returned only once.
        """
        ...

    def start_step(self, plan: Mapping[str, Any], checkpoint: StepCheckpoint | None) -> None:
        """Report that a step starts from a checkpoint, or from its beginning if None."""
        ...

    def report_progress(self) -> None:
        """Report that a device has made progress. Thread-safe."""
        ...


_FORMAT = 1
_ABOUT = "about"
_PIECE = 1 << 24
# Bytes to write between two syncs. A single sync at the end might look like a stall.
_SYNCED = 1 << 28


def _no_op() -> None:
    """Do nothing (the default progress callback)."""


def write_step_checkpoint(
    path: Path,
    position: StepPosition,
    matrices: Mapping[str, Array],
    about: Mapping[str, Any],
    on_operation: Callable[[str], None] = lambda doing: None,
    on_progress: Callable[[], None] = _no_op,
) -> None:
    """Write a mid-step checkpoint atomically. If it raises OSError, the previous file is unchanged.

    `about` has further metadata as plain JSON values. `on_operation` is as in `atomic_file`, and
    `on_progress` is called after each written piece.
    """
    sums = {f"sum {member} {k}": each for member, of in enumerate(position.sums) for k, each in enumerate(of)}
    text = json.dumps(
        {
            "format": _FORMAT,
            "about": dict(about),
            "plan": dict(position.plan),
            "number": position.number,
            "columns": list(position.columns),
            "passes": position.num_passes,
            "losses": [[q, loss, counts] for q, (loss, counts) in position.losses.items()],
            "sums": [len(of) for of in position.sums],
            "matrices": list(matrices),
            "rest": dict(position.extra),
        }
    )
    with atomic_file(path, on_operation) as file:
        on_operation("write")
        arrays: dict[str, Any] = {_ABOUT: np.frombuffer(text.encode(), np.uint8), **sums}
        arrays |= {f"matrix {name}": each for name, each in matrices.items()}
        synced = 0
        with zipfile.ZipFile(file, "w") as archive:
            for name, each in arrays.items():
                array = np.asarray(each, order="C")
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
                    for piece in _pieces(array):
                        stream.write(piece)
                        if file.tell() - synced >= _SYNCED:
                            file.flush()
                            os.fsync(file.fileno())
                            synced = file.tell()
                        on_progress()


@dataclass(frozen=True, slots=True)
class StepCheckpointFile:
    """Mid-step checkpoint in a verified file: see `hyrt.fullgraph.step_checkpoint.StepCheckpoint`."""

    path: Path
    position: StepPosition
    about: Mapping[str, Any]
    matrices: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    on_progress: Callable[[], None] = _no_op
    """Callback after each piece that has been read."""

    @classmethod
    def read(cls, path: Path, on_progress: Callable[[], None] = _no_op) -> StepCheckpointFile:
        """Read everything except the matrices, and verify the checksum of the whole file.

        Raises CheckpointError if the file is damaged or has an unsupported version.
        """
        try:
            with zipfile.ZipFile(path) as file:
                for each in file.infolist():
                    with file.open(each) as stream:
                        # Read to the end to verify the checksum.
                        while stream.read(_PIECE):
                            on_progress()
                metadata = json.loads(bytes(_array(file, _ABOUT)))
                if metadata["format"] != _FORMAT:
                    raise CheckpointError(
                        f"{path} has format {metadata['format']}, but this version reads format {_FORMAT}"
                    )
                sums = [
                    [_array(file, f"sum {member} {k}") for k in range(count)]
                    for member, count in enumerate(metadata["sums"])
                ]
                kinds = {}
                for name in file.namelist():
                    if name.startswith("matrix "):
                        with file.open(name) as stream:
                            kinds[name.removeprefix("matrix ").removesuffix(".npy")] = _header(stream)
                if lost := set(metadata["matrices"]) - set(kinds):
                    raise CheckpointError(f"{path} is damaged: {join_names(sorted(lost))} is missing")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {system_error_text(error)}") from error
        except (*ARCHIVE_ERRORS, LookupError, TypeError) as error:
            raise CheckpointError(f"{path} is damaged: {error or type(error).__name__}") from error
        position = StepPosition(
            plan=metadata["plan"],
            number=metadata["number"],
            columns=metadata["columns"],
            num_passes=metadata["passes"],
            losses={q: (loss, counts) for q, loss, counts in metadata["losses"]},
            sums=sums,
            extra=metadata["rest"],
        )
        return cls(path, position, metadata["about"], kinds, on_progress)

    def read_matrix(self, name: str, out: Array) -> None:
        with zipfile.ZipFile(self.path) as file, file.open(f"matrix {name}.npy") as stream:
            shape, dtype = _header(stream)
            if shape != out.shape or dtype != out.dtype:
                raise CheckpointError(
                    f"{self.path}: {name} is {dtype} {shape}, but this step expects {out.dtype} {out.shape}"
                )
            for piece in _pieces(out):
                num_read = stream.read(len(piece))
                if len(num_read) != len(piece):
                    raise CheckpointError(f"{self.path} is damaged: {name} ends early")
                piece[:] = num_read
                self.on_progress()


def _pieces(array: Array) -> Iterator[memoryview]:
    """Yield the bytes of a C-contiguous array in pieces."""
    all_bytes = array.reshape(-1).view(np.uint8).data
    for at in range(0, len(all_bytes), _PIECE):
        yield all_bytes[at : at + _PIECE]


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Read the shape and dtype of the array at the start of a stream."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _array(file: zipfile.ZipFile, name: str) -> Array:
    with file.open(f"{name}.npy") as stream:
        array: Array = npy.read_array(stream)
        return array


class ChunkSum:
    """Sums of the gradients of some parameters, added in the order of the chunks.

    Threads start chunks in order, so at most one gradient per thread waits to be added.
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

        Each chunk index from 0 on must be passed exactly once. `output_gradients` are None for a scalar loss.
        Only `inputs` that require gradients are used. If the first input requires a gradient,
        `save_for_backward` is called with it and its gradient before it is overwritten.
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
        """Add a gradient for each parameter to its sum."""
        for index, term in enumerate(gradients):
            self._add(index, term)

    def _add(self, index: int, term: torch.Tensor | None) -> None:
        total = self.totals[index]
        if total is None:
            self.totals[index] = term
        elif term is not None:
            total.add_(term)


class GradientSums:
    """Gradient sums of a model, as sums of its stages."""

    def __init__(self) -> None:
        self._sums: list[ChunkSum] = []

    @property
    def stage_sums(self) -> Sequence[ChunkSum]:
        """Gradient sums in the order in which stages were added."""
        return self._sums

    def add_stage(self, parameters: Sequence[torch.nn.Parameter]) -> ChunkSum:
        """Add a stage that reads these parameters, and return its sums."""
        self._sums.append(ChunkSum(parameters))
        return self._sums[-1]

    def gradients(self, parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
        """Return the gradient of each parameter, zero if no stage reads it."""
        totals: dict[int, torch.Tensor] = {}
        for stage in self._sums:
            for parameter, term in zip(stage.parameters, stage.totals, strict=True):
                if term is not None:
                    total = totals.get(id(parameter))
                    totals[id(parameter)] = term if total is None else total + term
        return [totals.get(id(parameter), torch.zeros_like(parameter)) for parameter in parameters]


@dataclass(slots=True)
class StepState:
    """State that is needed for the rest of a step."""

    layers: list[GatherResult] = field(default_factory=list)
    """Gathered layers whose backward pass has not run yet."""
    messages: tuple[Array, ...] = ()
    self_rows: Array | None = None
    """Rows that the stage after the next gather reads; `messages` are the messages of this gather."""
    grads: tuple[Array, ...] = ()
    """Gradients of the outputs of the next stage in the backward pass."""
    loss_totals: LossTotals | None = None
    """Loss sum and counts; None before the loss has been computed."""


class HostStepProgress:
    """Progress of a step in half layers: each gather and each dense stage, in both directions.

    `plan` has the inputs that determine the step, as plain JSON values. `sums` are its gradient sums. Without
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
        """Return whether the next half layer is done; call `restore` at the last half layer that is done."""
        if self._checkpoint is None:
            return False
        self._number += 1
        if self._number == self._checkpoint.position.number:
            checkpoint, self._checkpoint = self._checkpoint, None
            restore(checkpoint)
        return True

    def finish_half(self) -> None:
        """Mark the current half layer as done, and save a checkpoint if one is due.

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
            """Return the name of an array. An array with several uses is saved only once."""
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
    """Arrays of a step that were read from a checkpoint."""

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
