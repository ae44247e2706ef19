"""The file in which what is done of a step is kept: an uncompressed .npz, read and written in pieces.

Its matrices may be larger than memory: they are written from where they lie, and read to where they belong.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hyrt.errors import CheckpointError, told_of_system
from hyrt.fullgraph.unfinished.step_keeper import StepPosition
from hyrt.machine.atomic_write import atomic_file

Array = NDArray[Any]

_FORMAT = 1
_ABOUT = "about"
_PIECE = 1 << 24


def write_kept(
    path: Path,
    position: StepPosition,
    matrices: Mapping[str, Array],
    about: Mapping[str, Any],
    before: Callable[[str], None] = lambda doing: None,
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
            "rest": dict(position.rest),
        }
    )
    with atomic_file(path, before) as file:
        before("write")
        arrays: dict[str, Any] = {_ABOUT: np.frombuffer(text.encode(), np.uint8), **sums}
        arrays |= {f"matrix {name}": each for name, each in matrices.items()}
        np.savez(file, **arrays)


@dataclass(frozen=True, slots=True)
class KeptFile:
    """Such a file, found whole; see `hyrt.fullgraph.unfinished.step_keeper.KeptStep`."""

    path: Path
    position: StepPosition
    about: Mapping[str, Any]
    matrices: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]

    @classmethod
    def read(cls, path: Path) -> KeptFile:
        """Read all but the matrices, and check these.

        Raises
        ------
        CheckpointError
            If it is damaged, or another version's.
        """
        try:
            with zipfile.ZipFile(path) as file:
                if (bad := file.testzip()) is not None:
                    raise CheckpointError(f"{path}: damaged at {bad}")
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
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {told_of_system(error)}") from error
        except (zipfile.BadZipFile, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path}: damaged: {error}") from error
        position = StepPosition(
            plan=known["plan"],
            number=known["number"],
            columns=known["columns"],
            num_passes=known["passes"],
            losses={q: (loss, counts) for q, loss, counts in known["losses"]},
            sums=sums,
            rest=known["rest"],
        )
        return cls(path, position, known["about"], kinds)

    def fill(self, name: str, out: Array) -> None:
        with zipfile.ZipFile(self.path) as file, file.open(f"matrix {name}.npy") as stream:
            shape, dtype = _header(stream)
            if shape != out.shape or dtype != out.dtype:
                raise CheckpointError(
                    f"{self.path}: {name} is {dtype} {shape}, where this step has {out.dtype} {out.shape}"
                )
            bytes_of = memoryview(out.reshape(-1).view(np.uint8).data) if out.size else memoryview(b"")
            at = 0
            while at < len(bytes_of):
                piece = stream.read(min(_PIECE, len(bytes_of) - at))
                if not piece:
                    raise CheckpointError(f"{self.path}: {name} ends early")
                bytes_of[at : at + len(piece)] = piece
                at += len(piece)


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
