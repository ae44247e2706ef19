"""Datasets that come with hyrt, so that the first run on a real graph needs no download."""

from __future__ import annotations

import os
from pathlib import Path

_HOME = Path(__file__).parent
NAMES = tuple(sorted(file.stem for file in _HOME.glob("*.npz")))


def path_of(source: str) -> Path:
    """The path that a source names; `~` is the home folder.

    A name of `NAMES` is the bundled dataset's file, unless the current folder holds something of that name.
    """
    path = Path(os.path.expanduser(source))
    if source in NAMES and not path.exists():
        return _HOME / f"{source}.npz"
    return path
