"""Cache folder of compiled libraries: atomic writes, and a checksum test before loading.

A library is named `<name>.<sha256>.so`, with the first 32 hex digits of its SHA-256. The checksum is needed
because the loader maps the file: if it is truncated, the process ends with SIGBUS.
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
# Compilation takes ten minutes at most; older partial files belong to killed processes.
_STALE_S = 3600.0


def find_library(folder: Path, name: str) -> Path | None:
    """Return an intact library; damaged ones are deleted with a warning.

    Raises
    ------
    OSError
        If a file cannot be read, or a damaged one cannot be deleted.
    """
    for library in sorted(folder.glob(f"{glob.escape(name)}.*.so")):
        try:
            checksum = _checksum(library.read_bytes())
        except FileNotFoundError:
            continue  # Another process deleted the damaged file.
        if library.name == f"{name}.{checksum}.so":
            return library
        warnings.warn(
            f"{library}: the compiled simulation is damaged: hyrt deletes and recompiles it",
            RuntimeWarning,
            stacklevel=3,
        )
        library.unlink(missing_ok=True)
    return None


def publish_library(folder: Path, name: str, write: Callable[[Path], None]) -> Path:
    """Write a library, and rename it to its final name after it is flushed to disk.

    Parameters
    ----------
    folder
        The cache folder; partial files of killed compilations are deleted.
    name
        Name without checksum and suffix.
    write
        Writes the library to the given path, or raises.

    Raises
    ------
    OSError
        If the library cannot be written.
    """
    _remove_stale(folder)
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


def _remove_stale(folder: Path) -> None:
    for partial in folder.glob(".*.so"):
        try:
            if time.time() - partial.stat().st_mtime > _STALE_S:
                partial.unlink()
        except OSError:
            continue  # Another process was faster, or it is another user's file: it only takes disk space.
