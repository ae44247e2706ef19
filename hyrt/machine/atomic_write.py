"""Write a file so that a crash at any moment leaves the old one or the new one, never a part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, data: bytes, before: Callable[[str], None] = lambda doing: None) -> None:
    """Put `data` at `path`, as `atomic_file` does; `before` also hears of `write`."""
    with atomic_file(path, before) as file:
        before("write")
        file.write(data)


@contextmanager
def atomic_file(path: Path, before: Callable[[str], None] = lambda doing: None) -> Iterator[BinaryIO]:
    """A file to be written in the block: temporary beside `path`, then fsync, rename, fsync of the folder.

    The temporary file is `.<name>.<pid>.partial`. It is removed when anything fails; only a killed process
    leaves one behind.

    Parameters
    ----------
    path
        The file.
    before
        Called before each operation (`open`, `fsync`, `replace`, `sync`); may raise an OSError in its place.

    Raises
    ------
    OSError
        As the operating system raised it. What was at `path` before is untouched, unless only the last fsync
        (of the folder) failed: then the new file is there, but may not survive a loss of power.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        before("open")
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            before("fsync")
            os.fsync(file.fileno())
        before("replace")
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    before("sync")
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
