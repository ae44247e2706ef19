"""Where kernels come from: compiled from source for the device, or a binary that was built for it before."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

from hyrt.errors import DeviceUnavailable
from hyrt_devices.opencl_host.kept_signals import kept_signals

Constants = Mapping[str, int | str]

# How often a program is built before its error is believed.
_TRIES = 3
# Which files of `kernels/` make each program.
_FILES = {
    "aggregate": ("vectors", "aggregate"),
    "product_vector": ("vectors", "product_vector"),
    "product_tiled": ("product_tiled",),
    "sizeless": ("weights", "loss", "generator", "dropout"),
    "sample": ("generator", "sample"),
}


@contextmanager
def _reports_ignored() -> Iterator[None]:
    """Some compilers report that all went well, and pyopencl warns of any report."""
    import pyopencl as cl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cl.CompilerWarning)
        yield


class SourcePrograms:
    """Compiles programs from the files of `kernels/`, each once for the same constants.

    Each call of `kernel` makes an object of its own: one must not be used by two threads.

    Parameters
    ----------
    context, device
        The OpenCL context and device.
    """

    def __init__(self, context: Any, device: Any) -> None:
        self._context = context
        self._device = device
        self._built: dict[tuple[str, frozenset[tuple[str, int | str]]], Any] = {}
        self._lock = threading.Lock()

    def built(self, program: str, constants: Constants) -> Any:
        """A `pyopencl.Program`."""
        key = (program, frozenset(constants.items()))
        with self._lock:
            built = self._built.get(key)
            if built is None:
                words = [f"-D{word}={value}" for word, value in constants.items()]
                built = self._built[key] = self._build(source_of(program), ["-cl-mad-enable", *words])
            return built

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

        with _reports_ignored(), kept_signals():
            return cl.Program(self._context, source).build(options, devices=[self._device])

    def kernel(self, program: str, name: str, constants: Constants) -> Any:
        """A `pyopencl.Kernel`.

        Parameters
        ----------
        program
            `aggregate`, `product_vector`, `product_tiled`, `sizeless` (what is compiled for no sizes) or
            `sample`.
        name
            The kernel's name.
        constants
            The constants that the program is compiled with.
        """
        import pyopencl as cl

        return cl.Kernel(self.built(program, constants), name)


class BinaryProgram:
    """Kernels of one binary, an FPGA's `.xclbin` say: what they were compiled with, they have been.

    Parameters
    ----------
    context, device
        The OpenCL context and device.
    path
        The file.
    units
        The compute unit each kernel runs on, `{"product": "product_1"}`, where there are several.

    Raises
    ------
    DeviceUnavailable
        If the file cannot be read.
    """

    def __init__(
        self, context: Any, device: Any, path: str | Path, units: Mapping[str, str] | None = None
    ) -> None:
        import pyopencl as cl

        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DeviceUnavailable(
                f"{path}: the device's binary cannot be read: {error.strerror}"
            ) from error
        with _reports_ignored():
            self._program = cl.Program(context, [device], [content]).build()
        self._units = dict(units or {})

    def kernel(self, program: str, name: str, constants: Constants) -> Any:
        """As `SourcePrograms.kernel`; the constants are those of the binary."""
        import pyopencl as cl

        unit = self._units.get(name)
        return cl.Kernel(self._program, name if unit is None else f"{name}:{{{unit}}}")


def source_of(program: str) -> str:
    """A program's files, one after the other."""
    folder = files("hyrt_devices.opencl") / "kernels"
    return "\n".join((folder / f"{file}.cl").read_text(encoding="utf-8") for file in _FILES[program])


Programs = SourcePrograms | BinaryProgram
