"""Datasets that are part of hyrt, so that a first run on a real graph needs no download."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in _HOME.glob("*.npz")))


def resolve_source(source: str) -> Path:
    """Return the path of a source, with `~` expanded.

    A name in `NAMES` is the bundled dataset, unless the current folder contains a file with this name.
    """
    path = Path(os.path.expanduser(source))
    if source in NAMES and not path.exists():
        return _HOME / f"{source}.npz"
    return path
