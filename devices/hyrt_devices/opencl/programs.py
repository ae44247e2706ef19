"""Compilation of OpenCL kernels for a device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from hyrt_devices.opencl_host.driver_workarounds import preserve_signal_handlers, reports_ignored

Constants = Mapping[str, int | str]
_Key = tuple[str, frozenset[tuple[str, int | str]]]

# Number of attempts to build a program.
_TRIES = 3
# Maximum number of cached programs; a run has about twelve, and the oldest program is evicted.
_MAX_PROGRAMS = 128
# Source files in `kernels/` of each program.
_FILES = {
    "aggregate": ("vectors", "codes", "aggregate"),
    "widen": ("vectors", "codes", "widen"),
    "join": ("vectors", "codes", "join"),
    "chunk": ("vectors", "chunk"),
    "product_vector": ("vectors", "product_vector"),
    "product_tiled": ("product_tiled",),
    "sizeless": ("weights", "loss", "generator", "dropout"),
    "sample": ("generator", "sample"),
}


class Programs:
    """Thread-safe cache of programs compiled from the files in `kernels/`, one per set of constants.

    Each call of `kernel` returns a new kernel object, because threads must not share a kernel object.
    """

    def __init__(self, context: Any, device: Any) -> None:
        self.context = context
        self._device = device
        self._built: dict[_Key, Any] = {}
        self._lock = threading.Lock()

    def built(self, program: str, constants: Constants) -> Any:
        """Return a `pyopencl.Program`, compiled on first use."""
        words = [f"-D{word}={value}" for word, value in constants.items()]
        key = (program, frozenset(constants.items()))
        return self._cached(key, lambda: self._build(source_of(program), ["-cl-mad-enable", *words]))

    def printed(self, source: str, name: str) -> Any:
        """Return a `pyopencl.Kernel` of generated source."""
        import pyopencl as cl

        key = (source, frozenset[tuple[str, int | str]]())
        return cl.Kernel(self._cached(key, lambda: self._build(source, ["-cl-mad-enable"])), name)

    def _cached(self, key: _Key, build: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._built:
                self._built[key] = build()
                if len(self._built) > _MAX_PROGRAMS:
                    del self._built[next(iter(self._built))]
            return self._built[key]

    def _build(self, source: str, options: list[str]) -> Any:
        import pyopencl as cl

        for _ in range(_TRIES - 1):
            # Processes share PoCL's cache of compiled kernels: a concurrent build of the same kernel, or a
            # process killed while it writes, occasionally makes a build fail.
            with suppress(cl.RuntimeError):
                return self._build_once(source, options)
        return self._build_once(source, options)

    def _build_once(self, source: str, options: list[str]) -> Any:
        import pyopencl as cl

        with reports_ignored(), preserve_signal_handlers():
            return cl.Program(self.context, source).build(options, devices=[self._device])

    def kernel(self, program: str, name: str, constants: Constants) -> Any:
        """Return a new `pyopencl.Kernel` of a program compiled with `constants`.

        Programs are `aggregate`, `widen`, `join`, `place`, `product_vector`, `product_tiled`, `sizeless`
        (kernels that are independent of the model's sizes) and `sample`.
        """
        import pyopencl as cl

        return cl.Kernel(self.built(program, constants), name)


_SHARED: dict[Any, Programs] = {}
_SHARED_LOCK = threading.Lock()


def shared_programs(device: Any) -> Programs:
    """Return the programs of a `pyopencl.Device`, shared in one context by all users in this process.

    Rebuilding a program takes tens of milliseconds even if the driver has cached it.
    """
    import pyopencl as cl

    with _SHARED_LOCK:
        if device not in _SHARED:
            _SHARED[device] = Programs(cl.Context([device]), device)
        return _SHARED[device]


def forget_programs(device: Any) -> None:
    """Discard a device's context after a failure; the next open creates a new context."""
    with _SHARED_LOCK:
        _SHARED.pop(device, None)


def source_of(program: str) -> str:
    """Return the concatenated source files of a program."""
    folder = files("hyrt_devices.opencl") / "kernels"
    return "\n".join((folder / f"{file}.cl").read_text(encoding="utf-8") for file in _FILES[program])
