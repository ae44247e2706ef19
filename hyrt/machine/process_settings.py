"""What the command line sets for its whole process before torch is loaded. The Python API sets none of it."""

from __future__ import annotations

import ctypes
import os
import sys

# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def prepare_process() -> None:
    """Let threads that wait sleep, and let the allocator keep freed pages.

    OpenMP's threads by default spin for milliseconds after each parallel region, on cores that another stage
    could use. And glibc returns large freed blocks to the system, so that every step pays page faults for its
    temporaries: that costs more than the work done in them. What the user has set in the environment stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, setting in (
                (_M_MMAP_THRESHOLD, 1 << 30),
                (_M_TRIM_THRESHOLD, 1 << 30),
                (_M_TOP_PAD, 1 << 24),
                (_M_ARENA_MAX, 1),
            ):
                mallopt(option, setting)
