"""Kernels, compiled from source for the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.resources import files
from typing import Any

from hyrt_devices.opencl_host.driver_workarounds import preserve_signal_handlers, reports_ignored

Constants = Mapping[str, int | str]
_Key = tuple[str, frozenset[tuple[str, int | str]]]

# How often a program is built before its error is believed.
_TRIES = 3
# A run has a dozen; a process that trains many models forgets the oldest.
_MOST_BUILT = 128
# Which files of `kernels/` make each program.
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
    """Compiles programs from the files of `kernels/`, each once for the same constants.

    Any thread may use it. Each call of `kernel` makes an object of its own: one must not be used by two
    threads.

    Parameters
    ----------
    context, device
        The OpenCL context and device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        self.context = context
        self._device = device
        self._built: dict[_Key, Any] = {}
        self._lock = threading.Lock()

    def built(self, program: str, constants: Constants) -> Any:
        """A `pyopencl.Program`."""
        words = [f"-D{word}={value}" for word, value in constants.items()]
        key = (program, frozenset(constants.items()))
        return self._cached(key, lambda: self._build(source_of(program), ["-cl-mad-enable", *words]))

    def printed(self, source: str, name: str) -> Any:
        """A `pyopencl.Kernel` of a source that was printed."""
        import pyopencl as cl

        key = (source, frozenset[tuple[str, int | str]]())
        return cl.Kernel(self._cached(key, lambda: self._build(source, ["-cl-mad-enable"])), name)

    def _cached(self, key: _Key, build: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._built:
                self._built[key] = build()
                if len(self._built) > _MOST_BUILT:
                    del self._built[next(iter(self._built))]
            return self._built[key]

    def _build(self, source: str, options: list[str]) -> Any:
        import pyopencl as cl

        for _ in range(_TRIES - 1):
            # PoCL's processes share a cache of compiled kernels: one that is at the same place at the same
            # time, or is killed there, makes a build fail now and then.
            with suppress(cl.RuntimeError):
                return self._build_once(source, options)
        return self._build_once(source, options)

    def _build_once(self, source: str, options: list[str]) -> Any:
        import pyopencl as cl

        with reports_ignored(), preserve_signal_handlers():
            return cl.Program(self.context, source).build(options, devices=[self._device])

    def kernel(self, program: str, name: str, constants: Constants) -> Any:
        """A `pyopencl.Kernel`.

        Parameters
        ----------
        program
            `aggregate`, `dequantize`, `join`, `chunk`, `product_vector`, `product_tiled`, `sizeless` (what is
            compiled for no sizes) or `sample`.
        name
            The kernel's name.
        constants
            The constants that the program is compiled with.
        """
        import pyopencl as cl

        return cl.Kernel(self.built(program, constants), name)


_SHARED: dict[Any, Programs] = {}
_SHARED_LOCK = threading.Lock()


def shared_programs(device: Any) -> Programs:
    """The programs of a device, in one context for all who open it in this process.

    Building a program again takes tens of milliseconds even where the driver has kept it.

    Parameters
    ----------
    device
        `pyopencl.Device`.
    """
    import pyopencl as cl

    with _SHARED_LOCK:
        if device not in _SHARED:
            _SHARED[device] = Programs(cl.Context([device]), device)
        return _SHARED[device]


def forget_programs(device: Any) -> None:
    """Who opens the device next gets another context: in this one something failed."""
    with _SHARED_LOCK:
        _SHARED.pop(device, None)


def source_of(program: str) -> str:
    """A program's files, one after the other."""
    folder = files("hyrt_devices.opencl") / "kernels"
    return "\n".join((folder / f"{file}.cl").read_text(encoding="utf-8") for file in _FILES[program])
