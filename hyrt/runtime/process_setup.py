"""Setup of the process before torch and numba are used: environment, kernel cache folder and fork safety."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from hyrt_perfmodel.user_cache import user_cache_dir

from hyrt.errors import ConfigError, warn_user

# Constants from <malloc.h> of glibc.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8

_COMPILER = "torch._dynamo"


class _LazyCompiler(ModuleType):
    """Lazy stand-in for torch's compiler module, replaced by the real module on first real use.

    torch's optimizers import the compiler only to exclude functions from compilation. Without the compiler,
    no function is compiled, so none has to be excluded.
    """

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Do nothing, because there is no compiled graph to break."""

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function unchanged, because it is never compiled."""
        return function

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)  # `inspect` reads these attributes from every module.
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def prepare_process() -> None:
    """Make idle threads sleep and the allocator keep freed pages, and defer the import of torch's compiler.

    By default, OpenMP threads spin for milliseconds after each parallel region, on cores that another stage
    could use. glibc returns large freed blocks to the system, so the temporaries of every step would cause
    page faults, which cost more than the work itself. The first torch optimizer imports torch's compiler,
    which takes a second; now only models that use the compiler import it. Settings in the user's environment
    take precedence.
    """
    # hyrt reports broken connections itself, but torch would log each one with C++ frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # If torch is already loaded, its compiler may be loaded as well.
    sys.modules.setdefault(_COMPILER, _LazyCompiler(_COMPILER))
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if sys.platform == "linux" and not any(name.startswith("MALLOC_") for name in os.environ):
        import ctypes

        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            for option, setting in (
                (_M_MMAP_THRESHOLD, 1 << 30),
                (_M_TRIM_THRESHOLD, 1 << 30),
                (_M_TOP_PAD, 1 << 24),
                (_M_ARENA_MAX, 1),
            ):
                mallopt(option, setting)


def check_compiler() -> None:
    """Check that numba can compile and cache kernels, since numba's errors do not name a remedy.

    Raises ConfigError, which names the environment variable and the remedy.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        raise ConfigError("NUMBA_DISABLE_JIT is set, but hyrt works only with compiled kernels: unset it")
    threads = os.environ.get("NUMBA_NUM_THREADS", "1")
    if not threads.strip().isdecimal() or int(threads) < 1:
        raise ConfigError(
            f"NUMBA_NUM_THREADS is {threads!r}: set it to an integer of at least 1, or unset it"
        )
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

    Every process then compiles its kernels again. If NUMBA_CACHE_DIR is set, nothing is done. The folder is
    new and private, because numba executes cached files.
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
        "no folder for compiled kernels is writable, so every run recompiles them (about half a minute): "
        "set NUMBA_CACHE_DIR to a writable folder",
        RuntimeWarning,
    )


def _default_folders() -> tuple[Path, Path]:
    return Path(__file__).parents[1] / "nn" / "__pycache__", user_cache_dir() / "numba"


def _can_write(folder: Path) -> bool:
    """Return whether the folder is writable, or could be created in its first existing ancestor."""
    # Unlike os.path.exists, Path.exists raises an error if an ancestor, such as another user's home, is not
    # accessible.
    while not os.path.exists(folder) and folder != folder.parent:
        folder = folder.parent
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


# The value of the variable is the process id, so an interpreter that a forked child starts is not marked.
_MARK = "HYRT_FORKED"
# Longest wait for the import of torch from a slow disk. The fork then proceeds, even if the child may hang.
_MAX_WAIT_S = 60.0
# Neither module locks nor the lock of numba's compiler notify waiting threads, so poll both.
_POLL_S = 0.01


@cache
def register_fork_handlers() -> None:
    """Make every later fork of this process wait for imports and compilations in other threads.

    Otherwise the child would inherit locks (of modules that are being imported, or of numba's compiler) whose
    owner threads do not exist in the child, and wait for these locks forever.
    """
    # Handlers run in reverse order of registration. `logging` has a lock that an import may take, so it must
    # register first.
    assert logging
    os.register_at_fork(before=_wait_for_locks)


def _wait_for_locks() -> None:
    end = time.monotonic() + _MAX_WAIT_S
    while _others_hold_locks() and time.monotonic() < end:
        time.sleep(_POLL_S)


def _others_hold_locks() -> bool:
    this_thread = threading.get_ident()
    return any(
        _holds_locks(frame) for thread, frame in sys._current_frames().items() if thread != this_thread
    )


def _holds_locks(frame: FrameType | None) -> bool:
    """Return whether a thread is in numba's compiler or in an import of hyrt; other imports are ignored."""
    is_import = False
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package == "numba":
            return True
        # Search from the innermost call outwards, because another library's import may run hyrt.
        if package == "hyrt" and (is_import or frame.f_code.co_name == "<module>"):
            return True
        is_import = is_import or package == "importlib"
        frame = frame.f_back
    return False


@cache
def mark_forks() -> None:
    """Mark all processes that are forked from now on: see `forked_after_threads`."""
    os.register_at_fork(after_in_child=lambda: os.environ.update({_MARK: str(os.getpid())}))


def forked_after_threads() -> bool:
    """Return whether this process was forked after `mark_forks`.

    OpenMP threads exist only in the parent, so torch's first parallel loop would wait forever in the child.
    """
    return os.environ.get(_MARK) == str(os.getpid())
