"""What a user reads where something cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyrt.errors import HyrtError


@contextmanager
def explained(path: Path, remedy: str = "Free space, or choose a writable folder.") -> Iterator[None]:
    """Turn an OSError of the block into a HyrtError that names the file and the remedy."""
    try:
        yield
    except OSError as error:
        raise HyrtError(f"{path} cannot be written: {error.strerror or error}. {remedy}") from error
