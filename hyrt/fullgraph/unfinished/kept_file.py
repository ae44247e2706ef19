"""The file in which what is done of a step is kept: an uncompressed .npz, read and written in pieces.

Its matrices may be larger than memory: they are written from where they lie, and read to where they belong.
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
# So many bytes are written between two syncs: a single one at the end might take as long as a stall.
_SYNCED = 1 << 28


def _nothing() -> None:
    """Nobody watches."""


def write_kept(
    path: Path,
    position: StepPosition,
    matrices: Mapping[str, Array],
    about: Mapping[str, Any],
    before: Callable[[str], None] = lambda doing: None,
    moved: Callable[[], None] = _nothing,
) -> None:
    """Write a step that is under way, whole or not at all.

    Parameters
    ----------
    path
        The file, which is replaced.
    position
        How far the step is.
    matrices
        What it has computed, by name.
    about
        What else is to be known of it; plain values that JSON holds.
    before
        See `atomic_file`.
    moved
        Called after each piece that was written.

    Raises
    ------
    OSError
        If it cannot be written; what was there before is untouched.
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
    """Such a file, found whole; see `hyrt.fullgraph.unfinished.step_keeper.KeptStep`."""

    path: Path
    position: StepPosition
    about: Mapping[str, Any]
    matrices: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    moved: Callable[[], None] = _nothing
    """Called after each piece that was read."""

    @classmethod
    def read(cls, path: Path, moved: Callable[[], None] = _nothing) -> KeptFile:
        """Read all but the matrices, and check these.

        Raises
        ------
        CheckpointError
            If it is damaged, or another version's.
        """
        try:
            with zipfile.ZipFile(path) as file:
                for each in file.infolist():
                    with file.open(each) as stream:
                        # At its end the checksum is compared.
                        while stream.read(_PIECE):
                            moved()
                known = json.loads(bytes(_array(file, _ABOUT)))
                if known["format"] != _FORMAT:
                    raise CheckpointError(
                        f"{path}: format {known['format']}, but this version reads {_FORMAT}"
                    )
                sums = [
                    [_array(file, f"sum {member} {k}") for k in range(count)]
                    for member, count in enumerate(known["sums"])
                ]
                kinds = {}
                for name in file.namelist():
                    if name.startswith("matrix "):
                        with file.open(name) as stream:
                            kinds[name.removeprefix("matrix ").removesuffix(".npy")] = _header(stream)
                if lost := set(known["matrices"]) - set(kinds):
                    raise CheckpointError(f"{path}: damaged: {listed(sorted(lost))} is lost")
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {told_of_system(error)}") from error
        except (*ARCHIVE_DAMAGE, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: damaged: {error or type(error).__name__}") from error
        position = StepPosition(
            plan=known["plan"],
            number=known["number"],
            columns=known["columns"],
            num_passes=known["passes"],
            losses={q: (loss, counts) for q, loss, counts in known["losses"]},
            sums=sums,
            rest=known["rest"],
        )
        return cls(path, position, known["about"], kinds, moved)

    def fill(self, name: str, out: Array) -> None:
        with zipfile.ZipFile(self.path) as file, file.open(f"matrix {name}.npy") as stream:
            shape, dtype = _header(stream)
            if shape != out.shape or dtype != out.dtype:
                raise CheckpointError(
                    f"{self.path}: {name} is {dtype} {shape}, where this step has {out.dtype} {out.shape}"
                )
            for piece in _pieces(out):
                found = stream.read(len(piece))
                if len(found) != len(piece):
                    raise CheckpointError(f"{self.path}: {name} ends early")
                piece[:] = found
                self.moved()


def _pieces(array: Array) -> Iterator[memoryview]:
    """The bytes of a C-contiguous array, one piece after the other."""
    all_bytes = array.reshape(-1).view(np.uint8).data
    for at in range(0, len(all_bytes), _PIECE):
        yield all_bytes[at : at + _PIECE]


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of the array that a stream begins with."""
    version = npy.read_magic(stream)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _array(file: zipfile.ZipFile, name: str) -> Array:
    with file.open(f"{name}.npy") as stream:
        found: Array = npy.read_array(stream)
        return found
