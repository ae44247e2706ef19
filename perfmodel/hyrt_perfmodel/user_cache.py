"""Cache folder of the user for measurements, compiled kernels and downloads."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_dir() -> Path:
    """Return the user's cache folder, which may not exist and cannot be created if the user has no home.

    The folder is XDG_CACHE_HOME, or `~/.cache` if this variable is unset or not absolute (the XDG
    specification requires that relative paths are ignored).
    """
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # Path.home() raises an exception for a user without a home, such as an arbitrary user id in a container.
    home = os.path.expanduser("~")
    return (
        configured
        if configured.is_absolute()
        else Path(home if os.path.isabs(home) else "/nonexistent", ".cache")
    )
