"""Lock of a run folder, which only one process may write at a time."""

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
    """Lock a run folder for this process; the operating system releases the lock when the process ends.

    Yields a holder name, which is in the lock file until the block ends. If the name is still there although
    the
    folder is not locked, the holder was killed.

    Raises
    ------
    HyrtError
        If another process holds the lock, or the folder cannot be written.
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
        # Ignore a full disk: the run itself does not need the name.
        with suppress(OSError):
            file.truncate(0)
            file.write(holder.encode())
        try:
            yield holder
        finally:
            with suppress(OSError):
                file.truncate(0)


def take_over(folder: Path, holder: str) -> ExitStack | None:
    """Lock the run folder of a killed process; close the result to release the lock.

    Returns None if the folder is unreachable, is locked, or was released regularly by its holder.

    Parameters
    ----------
    folder
        Path of the run folder, as used by its holder.
    holder
        Holder name from `locked`.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / _NAME).open("rb+", buffering=0))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # On another machine, the same path may be the folder of another run.
            if file.read() != holder.encode():
                return None
            # Clear the name so that only one process takes over.
            file.truncate(0)
        except OSError:
            return None
        return stack.pop_all()
