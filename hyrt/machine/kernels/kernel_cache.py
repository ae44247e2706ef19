"""Folder of numba's kernel cache, and checks of the environment variables that numba reads."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.errors import ConfigError, warn_user


def check_compiler() -> None:
    """Check that numba can compile and cache kernels; numba's own errors name no remedy.

    Raises
    ------
    ConfigError
        Naming the environment variable and the remedy.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set, but hyrt works only with compiled kernels: unset it")
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not threads.strip().isdecimal() or int(threads) < 1:
        raise ConfigError(f"NUMBA_NUM_THREADS is {threads!r}: set it to a number of at least 1, or unset it")
    configured = os.environ.get("NUMBA_CACHE_DIR")
    if not any(map(_can_write, [*([Path(configured)] if configured else []), *_default_folders()])):
        detail = (
            f"not even NUMBA_CACHE_DIR ({configured})" if configured else "not even one for temporary files"
        )
        raise ConfigError(
            f"hyrt cannot write to any folder for compiled kernels, {detail}: set NUMBA_CACHE_DIR to a "
            "writable folder"
        )


def ensure_kernel_cache() -> None:
    """Create a temporary kernel cache if neither the package's folder nor the user's cache is writable.

    Every process then recompiles its kernels. No-op if NUMBA_CACHE_DIR is set. The folder is new and
    private, because numba executes cached files.
    """
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    if any(map(_can_write, _default_folders())):
        return
    import atexit
    import shutil
    import tempfile

    try:
        folder = tempfile.mkdtemp(prefix="hyrt-kernels-")
    except OSError:
        return  # `check_compiler` reports this when a kernel is needed.
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["NUMBA_CACHE_DIR"] = folder
    if "numba" in sys.modules:
        sys.modules["numba"].config.CACHE_DIR = folder
    warn_user(
        "no folder for compiled kernels is writable, so every run compiles them again (half a minute): "
        "set NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
    )


def _default_folders() -> tuple[Path, Path]:
    """Return numba's default folders for compiled kernels."""
    return Path(__file__).parents[2] / "nn" / "__pycache__", user_cache() / "numba"


def _can_write(folder: Path) -> bool:
    """Return whether the folder is writable, or can be created in its first existing ancestor."""
    # Unlike os.path.exists, Path.exists raises if an ancestor may not be entered, such as another user's
    # home.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)
