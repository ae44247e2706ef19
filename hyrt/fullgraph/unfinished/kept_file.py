"""Mid-step checkpoint file: an uncompressed .npz that is streamed in pieces, so its matrices may exceed
memory.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hyrt.errors import CheckpointError, listed, told_of_system
from hyrt.fullgraph.unfinished.step_keeper import StepPosition
from hyrt.machine.archive_damage import ARCHIVE_DAMAGE
from hyrt.machine.atomic_write import atomic_file

Array = NDArray[Any]

_FORMAT = 1
_ABOUT = "about"
_PIECE = 1 << 24
# Bytes between two syncs: a single sync at the end might look like a stall.
_SYNCED = 1 << 28


def _no_op() -> None:
    """Do nothing (default progress callback)."""


def write_kept(
    path: Path,
    position: StepPosition,
    matrices: Mapping[str, Array],
    about: Mapping[str, Any],
    before: Callable[[str], None] = lambda doing: None,
    moved: Callable[[], None] = _no_op,
) -> None:
    """Write a mid-step checkpoint atomically.

    Parameters
    ----------
    path
        The file, which is replaced.
    position
        The position of the step.
    matrices
        The matrices of the step, by name.
    about
        Further metadata, as plain JSON values.
    before
        See `atomic_file`.
    moved
        Called after each written piece.

    Raises
    ------
    OSError
        If it cannot be written; the previous file is unchanged.
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
            "rest": dict(position.rest),
        }
    )
    with atomic_file(path, before) as file:
        before("write")
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
                        moved()


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A checked mid-step checkpoint file; see `hyrt.fullgraph.unfinished.step_keeper.KeptStep`."""

    path: Path
    position: StepPosition
    about: Mapping[str, Any]
    matrices: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    moved: Callable[[], None] = _no_op
    """Called after each piece that was read."""

    @classmethod
    def read(cls, path: Path, moved: Callable[[], None] = _no_op) -> KeptFile:
        """Read everything except the matrices, whose checksums are verified.

        Raises
        ------
        CheckpointError
            If it is damaged, or of another version.
        """
        try:
            with zipfile.ZipFile(path) as file:
                for each in file.infolist():
                    with file.open(each) as stream:
                        # Reading to the end verifies the checksum.
                        while stream.read(_PIECE):
                            moved()
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
                    raise CheckpointError(f"{path}: damaged: {listed(sorted(lost))} is lost")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {told_of_system(error)}") from error
        except (*ARCHIVE_DAMAGE, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: damaged: {error or type(error).__name__}") from error
        position = StepPosition(
            plan=metadata["plan"],
            number=metadata["number"],
            columns=metadata["columns"],
            num_passes=metadata["passes"],
            losses={q: (loss, counts) for q, loss, counts in metadata["losses"]},
            sums=sums,
            rest=metadata["rest"],
        )
        return cls(path, position, metadata["about"], kinds, moved)

    def fill(self, name: str, out: Array) -> None:
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
                self.moved()


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
