"""A file or a folder that appears complete or not at all, also on Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hyrt.errors import DataNotWritten


@contextlib.contextmanager
def all_or_nothing(destination: Path, what: str) -> Iterator[tuple[Path, Path]]:
    """Where to write what is going to be the destination, and a folder for what is needed meanwhile.

    Both are beside the destination, on the same file system. What the block has written takes the place of
    what is at the destination where the block ends well; otherwise all is as before.

    Parameters
    ----------
    destination
        An absolute path.
    what
        The kind of thing that may be replaced, for messages.

    Yields
    ------
    The path to write to, at which there is nothing, and an empty folder.

    Raises
    ------
    DataNotWritten
        If the disk is full or cannot be written.
    """
    work = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        work.mkdir()
        try:
            scratch = work / "scratch"
            scratch.mkdir()
            yield work / "result", scratch
            _publish(work, destination, what)
        finally:
            shutil.rmtree(work)
    except OSError as error:
        remedy = "free space, or give a destination on another disk"
        if isinstance(error, PermissionError):
            remedy = "give a destination in a folder that you may write to"
        raise DataNotWritten(
            f"{destination} cannot be written ({error.strerror or error}): {remedy}"
        ) from error


def _publish(work: Path, destination: Path, what: str) -> None:
    """Put the result in the place of what is at the destination; where that fails, all is as before."""
    # The working folder is deleted whatever happens: what is replaced gets there only once its successor is
    # in place.
    replaced = destination.with_name(f".{destination.name}.{os.getpid()}.old")
    try:
        if destination.exists():
            destination.rename(replaced)
        (work / "result").rename(destination)
    finally:
        if replaced.exists():
            if destination.exists():
                replaced.rename(work / "replaced")
            else:
                _put_back(replaced, destination, what)


def _put_back(replaced: Path, destination: Path, what: str) -> None:
    try:
        replaced.rename(destination)
    except OSError as error:
        raise DataNotWritten(
            f"{destination} cannot be written ({error.strerror or error}); the old {what} is now "
            f"{replaced}: rename it back"
        ) from error
