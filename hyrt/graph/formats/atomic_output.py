"""Atomic creation of output files and folders: complete or absent, even after Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from hyrt.errors import DataWriteError


@contextlib.contextmanager
def atomic_output(destination: Path, kind: str) -> Iterator[tuple[Path, Path]]:
    """Create a file or folder atomically: yield a path to write to, and an empty scratch folder.

    Both are next to the destination, an absolute path, on the same file system. If the block succeeds, its
    output replaces the destination; otherwise the destination is unchanged. `kind` names the output in
    messages, such as "dataset". Raises DataWriteError if the disk is full or cannot be written.
    """
    work = destination.with_name(f".{destination.name}.{os.getpid()}.partial")
    try:
        work.mkdir()
        try:
            scratch = work / "scratch"
            scratch.mkdir()
            yield work / "result", scratch
            _publish(work, destination, kind)
        finally:
            shutil.rmtree(work)
    except OSError as error:
        remedy = "free space, or give a destination on another disk"
        if isinstance(error, PermissionError):
            remedy = "give a destination in a folder that you may write to"
        raise DataWriteError(
            f"{destination} cannot be written ({error.strerror or error}): {remedy}"
        ) from error


def _publish(work: Path, destination: Path, kind: str) -> None:
    """Move the output to the destination; if that fails, restore the previous state."""
    # The working folder is always deleted, so move the old destination into it only after the new one is in
    # place.
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
                _restore(replaced, destination, kind)


def _restore(replaced: Path, destination: Path, kind: str) -> None:
    try:
        replaced.rename(destination)
    except OSError as error:
        raise DataWriteError(
            f"{destination} cannot be written ({error.strerror or error}); the old {kind} is now "
            f"{replaced}: rename it back"
        ) from error
