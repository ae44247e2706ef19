"""One process at a time writes a run folder."""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from hyrt.errors import HyrtError

_NAME = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Hold a run folder for this process; the system lets go when the process ends, however it does.

    Gives a name of the holder, which is in the lock file until the block ends: where it still is when nobody
    holds the folder, the holder was killed.

    Raises
    ------
    HyrtError
        If another process holds it, or the folder cannot be written.
    """
    path = folder / _NAME
    try:
        file = path.open("ab", buffering=0)
    except OSError as error:
        raise HyrtError(f"{path}: {error.strerror}: make the run's folder writable") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HyrtError(
                f"{folder}: another process is training this run: wait until it ends, or stop it"
            ) from None
        holder = f"{socket.gethostname()} {os.getpid()} {secrets.token_hex(8)}"
        # On a full disk nobody can be told; the run itself needs no name.
        with suppress(OSError):
            file.truncate(0)
            file.write(holder.encode())
        try:
            yield holder
        finally:
            with suppress(OSError):
                file.truncate(0)


def take_over(folder: Path, holder: str) -> ExitStack | None:
    """Hold the run folder of a process that was killed; close what is given to let go of it.

    None where the folder cannot be reached from here, is held, or was let go of by its holder: then there is
    nothing to take over.

    Parameters
    ----------
    folder
        The run folder, as its holder has named it.
    holder
        What `locked` gave to the holder.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / _NAME).open("rb+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # On another machine, a folder of the same path may be that of another run.
            if file.read() != holder.encode():
                return None
            # One process alone takes it over.
            file.truncate(0)
        except OSError:
            return None
        return stack.pop_all()
