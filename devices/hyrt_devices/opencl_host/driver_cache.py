"""A place for what PoCL compiles: without one it has no device, and where it is full it ends the process."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from hyrt_perfmodel.user_cache import user_cache

from hyrt.errors import MachineWarning, warn_user
from hyrt.quantities import size
from hyrt_devices.opencl_host.program_checksums import remove_damaged, save_checksums

# The kernels of a few runs, and what its compiler writes beside them for a while.
_LEAST_BYTES = 16 << 20


def ensure_driver_cache() -> None:
    """Give PoCL a temporary folder where its own cannot be written or has no space left.

    Its kernels are then compiled anew by every process. And pyopencl, which refuses to launch a kernel where
    it cannot keep how it did so, keeps nothing. Call it before pyopencl is imported.
    """
    if _unusable(user_cache()):
        os.environ.setdefault("PYOPENCL_NO_CACHE", "true")
    own = _folder()
    why = _unusable(own)
    if not why:
        if remove_damaged(own):
            warn_user(
                f"compiled OpenCL kernels in {own} are damaged: they are compiled again", MachineWarning
            )
        atexit.unregister(save_checksums)
        atexit.register(save_checksums, own)
    if not why or "POCL_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="hyrt-opencl-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["POCL_CACHE_DIR"] = folder
    warn_user(
        f"{own}, where PoCL keeps compiled OpenCL kernels, {why}, so every process compiles them again: mend "
        "that, or set POCL_CACHE_DIR to another folder",
        MachineWarning,
    )


def driver_cache_problem() -> str:
    """Why PoCL cannot keep what it compiles, with the remedy; empty where it can."""
    own = _folder()
    why = _unusable(own)
    return why and f"{own}, where PoCL keeps compiled kernels, {why}: set POCL_CACHE_DIR to another folder"


def _folder() -> Path:
    """Where PoCL keeps what it compiles; it takes the variables as they are."""
    named, cache = os.environ.get("POCL_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    if named is not None:
        return Path(named)
    return Path(cache or os.path.join(os.environ.get("HOME", "/tmp"), ".cache"), "pocl", "kcache")


def _unusable(folder: Path) -> str:
    """What is wrong with a folder that need not exist yet; empty where nothing is."""
    # Unlike os.path, Path.exists raises where a folder above may not be entered.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        return "cannot be written"
    free = shutil.disk_usage(folder).free
    return f"has {size(free)} left" if free < _LEAST_BYTES else ""
