"""What the command line sets for its whole process before torch is loaded. The Python API sets none of it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

# Numbers of glibc's <malloc.h>.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8

_COMPILER = "torch._dynamo"


class _Compiler(ModuleType):
    """Stands for a module until something of it is asked for that is more than to keep the compiler away.

    torch's optimizers import the compiler only to tell it what not to compile. Where it is not loaded,
    nothing is compiled, and there is nothing to tell it.
    """

    def graph_break(self, *_: Any, **__: Any) -> None:
        """Between two parts of what is compiled: nothing is."""

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """What is never compiled is as it was."""
        return function

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            if name.startswith("__") and name != "__path__":
                raise AttributeError(name)  # What `inspect` asks every module for.
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), name)


def prepare_process() -> None:
    """Let threads that wait sleep, let the allocator keep freed pages, and leave torch's compiler out.

    OpenMP's threads by default spin for milliseconds after each parallel region, on cores that another stage
    could use. And glibc returns large freed blocks to the system, so that every step pays page faults for its
    temporaries: that costs more than the work done in them. torch's first optimizer imports its compiler, a
    second of each command, which now comes only with a model that uses it. What the user has set in the
    environment stays.
    """
    # Of connections that break, hyrt tells itself; torch tells of each in its own words, with frames of C++.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # Where torch is loaded, its compiler may be too.
    sys.modules.setdefault(_COMPILER, _Compiler(_COMPILER))
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
