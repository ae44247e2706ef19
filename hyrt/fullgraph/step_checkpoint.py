"""Mid-step checkpoints of full-graph training: .npz files that are streamed and may exceed memory."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hyrt.errors import CheckpointError, join_names, system_error_text
from hyrt.runtime.files import ARCHIVE_ERRORS, atomic_file

Array = NDArray[Any]
LossTotals = tuple[float, dict[str, float]]
"""The loss sum and the counts of some targets."""


@dataclass(frozen=True, slots=True)
class StepPosition:
    """Position in a step that one or several devices compute in passes over columns."""

    plan: Mapping[str, Any]
    """Inputs that determine passes and columns, as plain JSON values."""
    number: int
    """The current pass, from 0."""
    columns: Sequence[int]
    """Number of completed columns of each device, in the order of its assigned columns."""
    num_passes: int
    """Number of passes of the step."""
    losses: Mapping[int, LossTotals] = field(default_factory=dict)
    """Loss and counts by target interval."""
    sums: Sequence[Sequence[Array]] = ()
    """Gradient sums of each device, or of each half of a layer."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further state, as plain JSON values."""


class StepCheckpoint(Protocol):
    """Mid-step checkpoint."""

    @property
    def position(self) -> StepPosition:
        """Return the position of the step."""
        ...

    @property
    def matrices(self) -> Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return the shape and dtype of each matrix."""
        ...

    def read_matrix(self, name: str, out: Array) -> None:
        """Read a matrix into a C-contiguous array of its shape and dtype."""
        ...


class StepCheckpointer(Protocol):
    """Saves the completed part of a long step, from which an interrupted run resumes."""

    @property
    def is_due(self) -> bool:
        """Return whether a checkpoint is due; called often, by any thread."""
        ...

    @property
    def should_stop(self) -> bool:
        """Return whether the step must stop after the checkpoint."""
        ...

    def save(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        """Save a checkpoint while nothing changes. Raises CheckpointWriteError if it cannot be written."""
        ...

    def take_resumed_step(self, step: int) -> StepCheckpoint | None:
        """Return the checkpoint of a step that this process has not started yet; None if there is none.

        Each checkpoint is returned once.
        """
        ...

    def start_step(self, plan: Mapping[str, Any], checkpoint: StepCheckpoint | None) -> None:
        """Report that a step starts, from a checkpoint or from its beginning (None)."""
        ...

    def report_progress(self) -> None:
        """Report that a device made progress; from any thread."""
        ...


_FORMAT = 1
_ABOUT = "about"
_PIECE = 1 << 24
# Bytes between two syncs: a single sync at the end might look like a stall.
_SYNCED = 1 << 28


def _no_op() -> None:
    """Do nothing (default progress callback)."""


def write_step_checkpoint(
    path: Path,
    position: StepPosition,
    matrices: Mapping[str, Array],
    about: Mapping[str, Any],
    on_operation: Callable[[str], None] = lambda doing: None,
    on_progress: Callable[[], None] = _no_op,
) -> None:
    """Write a mid-step checkpoint atomically; an OSError leaves the previous file unchanged.

    `about` is further metadata as plain JSON values. See `atomic_file` for `on_operation`; `on_progress` is
    called after each written piece.
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
    """Verified mid-step checkpoint file; see `hyrt.fullgraph.step_checkpoint.StepCheckpoint`."""

    path: Path
    position: StepPosition
    about: Mapping[str, Any]
    matrices: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    on_progress: Callable[[], None] = _no_op
    """Called after each piece that was read."""

    @classmethod
    def read(cls, path: Path, on_progress: Callable[[], None] = _no_op) -> StepCheckpointFile:
        """Read everything except the matrices, whose checksums are verified.

        Raises CheckpointError if the file is damaged, or of another version.
        """
        try:
            with zipfile.ZipFile(path) as file:
                for each in file.infolist():
                    with file.open(each) as stream:
                        # Reading to the end verifies the checksum.
                        while stream.read(_PIECE):
                            on_progress()
                metadata = json.loads(bytes(_array(file, _ABOUT)))
                if metadata["format"] != _FORMAT:
                    raise CheckpointError(
                        f"{path}: format {metadata['format']}, but this version reads {_FORMAT}"
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
                    raise CheckpointError(f"{path}: damaged: {join_names(sorted(lost))} is lost")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {system_error_text(error)}") from error
        except (*ARCHIVE_ERRORS, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: damaged: {error or type(error).__name__}") from error
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
                    f"{self.path}: {name} is {dtype} {shape}, but this step has {out.dtype} {out.shape}"
                )
            for piece in _pieces(out):
                num_read = stream.read(len(piece))
                if len(num_read) != len(piece):
                    raise CheckpointError(f"{self.path}: {name} ends early")
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
