"""Names that no file can have."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def is_too_long(path: Path) -> bool:
    """Whether the system takes no path of that length: pathlib raises when it is asked for such a file."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    except ValueError:
        pass
    return False
