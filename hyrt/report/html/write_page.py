"""A page's way to the disk."""

from __future__ import annotations

from pathlib import Path

from hyrt.errors import HyrtError
from hyrt.machine.atomic_write import write_atomically


def write_page(path: Path, page: str) -> None:
    """Write a page whole or not at all.

    Raises
    ------
    HyrtError
        If it cannot be written, naming the file and the remedy.
    """
    try:
        # Names of files may hold bytes that are no text.
        write_atomically(path, page.encode("utf-8", "replace"))
    except OSError as error:
        raise HyrtError(
            f"{path}: cannot be written: {error.strerror or error}. Give another file with --output"
        ) from error
