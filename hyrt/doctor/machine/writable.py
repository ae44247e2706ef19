"""Write test for folders: permission bits do not reveal full or read-only disks."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_BLOCK = 4096


def nearest_folder(path: Path) -> Path:
    """Return the first existing ancestor of `path`, or `path` itself."""
    path = path.absolute()
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    return path


def why_not_writable(folder: Path) -> str:
    """Write a file in the folder or in its first existing ancestor; return the problem, or "" if there is
    none.

    The file is unnamed if the system supports that, and is always removed.
    """
    parent = nearest_folder(folder)
    if not parent.is_dir():
        return f"{parent} is not a folder"
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(_BLOCK))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{parent} cannot be written: {error.strerror or error}"
    return ""
