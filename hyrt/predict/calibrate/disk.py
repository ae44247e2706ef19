"""How fast the disk is on which matrices live that exceed a budget of host memory."""

from __future__ import annotations

import os
import tempfile
import time

# Written and read in a fraction of a second on any disk that is worth using.
_BYTES = 64 << 20


def file_gb_s() -> float | None:
    """1e9 bytes a second that are written to a file of the system's temporary folder, and read again from the
    disk; None where no file can be written there.
    """
    block = os.urandom(1 << 20)
    try:
        with tempfile.TemporaryFile(prefix="hyrt-disk-", buffering=0) as file:
            started = time.perf_counter()
            for _ in range(_BYTES // len(block)):
                file.write(block)
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, _BYTES, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            while file.read(len(block)):
                pass
            seconds = time.perf_counter() - started
    except OSError:
        return None
    return 2 * _BYTES / seconds / 1e9
