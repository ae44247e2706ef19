"""Where what is measured, compiled or downloaded is kept for a user."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """The user's cache folder, which need not exist; for a user without a home, one that nobody can make.

    It is XDG_CACHE_HOME, or `~/.cache` where that is not set, or not absolute: the XDG specification then has
    it ignored.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # Path.home() raises for a user without a home, as in a container that runs under any number.
    home = os.path.expanduser("~")
    return named if named.is_absolute() else Path(home if os.path.isabs(home) else "/nonexistent", ".cache")
