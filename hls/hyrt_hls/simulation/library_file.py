"""Compiled libraries in a cache folder: written whole or not at all, and loaded only as they were written.

A library is `<name>.<sha256>.so`, where <sha256> is the first 32 hex digits of its own: the loader maps a
file, and one that is shorter than its headers say ends the process with SIGBUS.
"""

from __future__ import annotations

import glob
import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

_CHECKSUM_DIGITS = 32
# A compilation takes ten minutes at most; what is older was left by one whose processes were killed all at
# once.
_DEAD_S = 3600.0


def find_library(folder: Path, name: str) -> Path | None:
    """A library that is there, whole; damaged ones are removed with a warning.

    Raises
    ------
    OSError
        A file cannot be read, or a damaged one not removed.
    """
    for library in sorted(folder.glob(f"{glob.escape(name)}.*.so")):
        try:
            found = _checksum(library.read_bytes())
        except FileNotFoundError:
            continue  # Another process found it damaged.
        if library.name == f"{name}.{found}.so":
            return library
        warnings.warn(
            f"{library}: the compiled simulation is damaged: hyrt deletes and recompiles it",
            RuntimeWarning,
            stacklevel=3,
        )
        library.unlink(missing_ok=True)
    return None


def publish_library(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Write a library and give it its name once all of it is on the disk.

    Parameters
    ----------
    folder
        The cache folder. What compilations that died have left in it is removed.
    name
        Without checksum and ending.
    write
        Writes it to the path that it is given, or raises.

    Raises
    ------
    OSError
        It cannot be written.
    """
    _remove_dead(folder)
    handle, path = tempfile.mkstemp(prefix=f".{name}-", suffix=".so", dir=folder)
    os.close(handle)
    partial = Path(path)
    try:
        write(partial)
        with partial.open("rb") as file:
            checksum = _checksum(file.read())
            os.fsync(file.fileno())
        library = folder / f"{name}.{checksum}.so"
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)
    return library


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_CHECKSUM_DIGITS]


def _remove_dead(folder: Path) -> None:
    for partial in folder.glob(".*.so"):
        try:
            if time.time() - partial.stat().st_mtime > _DEAD_S:
                partial.unlink()
        except OSError:
            continue  # Another process was first, or it is another user's: it only costs room.
