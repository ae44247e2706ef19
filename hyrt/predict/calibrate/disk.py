"""Measurement of the disk that stores matrices beyond the host memory budget."""

from __future__ import annotations

import os
import tempfile
import time

# Written and read in a fraction of a second on any reasonable disk.
_BYTES = 64 << 20


def file_gb_s() -> float | None:
    """Measure the bandwidth of writing a temporary file and reading it back from disk, in 1e9 bytes per
    second.

    The result is None if no temporary file can be written.
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
