"""Printed loops, compiled by numba, which keeps their machine code in the user's cache."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.machine.atomic_write import write_atomically
from hyrt.nn.fused import lane_functions
from hyrt.nn.whole_graph import vectors


@cache
def _of_functions() -> bytes:
    """What the printed loops call; where it changes, they are compiled again."""
    return b"".join(Path(str(each.__file__)).read_bytes() for each in (vectors, lane_functions))


@cache
def _folder() -> Path:
    """Where sources are kept beside which numba finds machine code."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache() / "hyrt") / "saga"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="hyrt-saga-"))


# Trainers of one process may come at once with the same loop.
_WRITING = threading.Lock()


@cache
def compiled(source: str) -> Callable[..., None]:
    """The function `loop` of a printed source.

    The source is written to a file named after what is in it, since numba keeps machine code by file. The
    file itself is never read back.
    """
    path = _folder() / f"{hashlib.sha256(source.encode() + _of_functions()).hexdigest()[:32]}.py"
    with _WRITING:
        if not path.exists():
            write_atomically(path, source.encode())
    module = types.ModuleType(f"hyrt_saga_{path.stem}")
    module.__file__ = str(path)
    # Numba asks for the module by its name where it finds machine code of it.
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), vars(module))
    loop: Callable[..., None] = vars(module)["loop"]
    return loop
