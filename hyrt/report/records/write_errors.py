"""User-facing errors of failed writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyrt.errors import HyrtError


@contextmanager
def explained(path: Path, remedy: str = "Free space, or choose a writable folder.") -> Iterator[None]:
    """Convert an OSError in the block to a HyrtError with the file and a remedy."""
    try:
        yield
    except OSError as error:
        raise HyrtError(f"{path} cannot be written: {error.strerror or error}. {remedy}") from error
