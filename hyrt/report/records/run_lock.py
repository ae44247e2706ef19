"""One process at a time writes a run folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyrt.errors import HyrtError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder for this process; the system lets go when the process ends, however it does.

    Raises
    ------
    HyrtError
        If another process holds it, or the folder cannot be written.
    """
    path = folder / ".lock"
    try:
        file = path.open("ab")
    except OSError as error:
        raise HyrtError(f"{path}: {error.strerror}: make the run's folder writable") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HyrtError(
                f"{folder}: another process is training this run: wait until it ends, or stop it"
            ) from None
        yield
