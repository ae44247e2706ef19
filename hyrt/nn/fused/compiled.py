"""Compilation of generated loops by numba, with machine code in the user's cache."""

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
def _called_source() -> bytes:
    """Return the source that generated loops call; if it changes, the loops are compiled again."""
    return b"".join(Path(str(module.__file__)).read_bytes() for module in (vectors, lane_functions))


@cache
def _folder() -> Path:
    """Return the folder of generated sources, next to which numba caches machine code."""
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache() / "hyrt") / "saga"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="hyrt-saga-"))


# Trainers of one process may compile the same loop concurrently.
_WRITING = threading.Lock()


@cache
def compiled(source: str) -> Callable[..., None]:
    """Compile a generated source and return its function `loop`.

    The source is written to a file named by its hash, since numba caches machine code per file. The file
    itself is never read back.
    """
    path = _folder() / f"{hashlib.sha256(source.encode() + _called_source()).hexdigest()[:32]}.py"
    with _WRITING:
        if not path.exists():
            write_atomically(path, source.encode())
    module = types.ModuleType(f"hyrt_saga_{path.stem}")
    module.__file__ = str(path)
    # Numba imports the module by name when it loads cached machine code.
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), vars(module))
    loop: Callable[..., None] = vars(module)["loop"]
    return loop
