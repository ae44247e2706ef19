"""What OpenCL compilers report of programs that they have built."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

# Filters of warnings belong to the process: a thread that restores them would restore another's.
_LOCK = threading.Lock()


@contextmanager
def reports_ignored() -> Iterator[None]:
    """Build programs without a warning where the compiler reports that all went well.

    pyopencl warns of any report, such as one of vectors that are wider than the processor's. One thread at a
    time is in such a block.
    """
    import pyopencl as cl

    with _LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield
