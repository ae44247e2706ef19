"""Atomic file writes: after a crash the file is either the old or the new one, never a mixture."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def write_atomically(path: Path, data: bytes, before: Callable[[str], None] = lambda doing: None) -> None:
    """Write `data` to `path` through `atomic_file`; `before` is also called with `write`."""
    with atomic_file(path, before) as file:
        before("write")
        file.write(data)


@contextmanager
def atomic_file(path: Path, before: Callable[[str], None] = lambda doing: None) -> Iterator[BinaryIO]:
    """Open a temporary file that replaces `path` when the block ends: write, fsync, rename, fsync the folder.

    The temporary file is `.<name>.<pid>.partial` in the same folder. It is removed on any failure; only a
    killed process leaves it there.

    Parameters
    ----------
    path
        The file.
    before
        Called before each operation (`open`, `fsync`, `replace`, `sync`); may raise an OSError in its place.

    Raises
    ------
    OSError
        The operating system's error. `path` is unchanged, unless only the final fsync of the folder failed:
        then the new file is in place but may not survive a power failure.
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
    """Fsync a folder, so that its file names survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
