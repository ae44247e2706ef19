"""Process-wide settings that the command line makes before torch is loaded; the Python API changes none of
them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

# Constants of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8

_COMPILER = "torch._dynamo"


class _LazyCompiler(ModuleType):
    """Lazy stand-in for torch's compiler module, replaced by the real module on first real use.

    torch's optimizers import the compiler only to exclude functions from compilation. If it is not loaded,
    no function is compiled, so none has to be excluded.
    """

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Return at once: there is no compiled graph to break."""

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function unchanged: it is never compiled."""
        return function

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)  # Attributes that `inspect` reads from every module.
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def prepare_process() -> None:
    """Let idle threads sleep, let the allocator keep freed pages, and defer the import of torch's compiler.

    OpenMP's threads by default spin for milliseconds after each parallel region, on cores that another stage
    could use. glibc returns large freed blocks to the system, so every step would pay page faults for its
    temporaries, which cost more than the work itself. torch's first optimizer imports torch's compiler, which
    takes a second; now only models that use the compiler import it. Settings in the user's environment take
    precedence.
    """
    # hyrt reports broken connections itself; torch would log each one with C++ frames.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # If torch is already loaded, its compiler may be loaded too.
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
