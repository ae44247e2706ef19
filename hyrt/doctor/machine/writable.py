"""Whether a folder can really be written: permission bits tell nothing of full or read-only disks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_BLOCK = 4096


def nearest_folder(path: Path) -> Path:
    """The path, or the first above it that is there."""
    path = path.absolute()
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def why_not_writable(folder: Path) -> str:
    """Write a file in the folder, or in the first above it that exists; returns why that fails, or nothing.

    The file has no name where the system can do that, and never stays.
    """
    place = nearest_folder(folder)
    if not place.is_dir():
        return f"{place} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_BLOCK))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{place} cannot be written: {error.strerror or error}"
    return ""
