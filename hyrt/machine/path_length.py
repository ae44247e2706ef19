"""Check for paths that are too long for the system."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def is_too_long(path: Path) -> bool:
    """Return whether a path is too long for the system; pathlib would raise for such a path."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    except ValueError:
        pass
    return False
