"""What numba needs to compile: a place for its kernels, and an environment that lets it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.errors import ConfigError, warn_user


def check_compiler() -> None:
    """Whether the environment lets numba compile, and keep what it compiled; its own errors name no remedy.

    Raises
    ------
    ConfigError
        Naming the variable and what to do.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set, but hyrt works only with compiled kernels: unset it")
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not threads.strip().isdecimal() or int(threads) < 1:
        raise ConfigError(f"NUMBA_NUM_THREADS is {threads!r}: set it to a number of at least 1, or unset it")
    named = os.environ.get("NUMBA_CACHE_DIR")
    if not any(map(_can_write, [*([Path(named)] if named else []), *_usual_places()])):
        given = f"not even NUMBA_CACHE_DIR ({named})" if named else "not even one for temporary files"
        raise ConfigError(
            f"hyrt cannot write to any folder for compiled kernels, {given}: set NUMBA_CACHE_DIR to a "
            "writable folder"
        )


def ensure_kernel_cache() -> None:
    """Give numba a temporary folder when neither the package's folder nor the user's cache can be written.

    Kernels are then compiled anew by every process. Does nothing where NUMBA_CACHE_DIR is set. The folder is
    new and private: what numba reads back it runs.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    if any(map(_can_write, _usual_places())):
        return
    import atexit
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="hyrt-kernels-")
    except OSError:
        return  # Whoever needs a kernel hears of it: see `check_compiler`.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder
    warn_user(
        "no folder for compiled kernels is writable, so every run compiles them again (half a minute): "
        "set NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
    )


def _usual_places() -> tuple[Path, Path]:
    """Where numba keeps what it compiled, unless it is told where."""
    return Path(__file__).parents[2] / "nn" / "__pycache__", user_cache() / "numba"


def _can_write(folder: Path) -> bool:
    """Whether a file can be made in the folder, or the folder itself in the first parent there is."""
    # Unlike os.path, Path.exists raises where a folder above may not be entered, like another user's home.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
