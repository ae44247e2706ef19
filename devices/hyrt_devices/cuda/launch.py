"""Building and launching the CUDA kernels beside this file, with pycuda.

Torch's tensors and the kernels share the device's primary context. pycuda cannot adopt a stream of torch's,
so streams on which both work are pycuda's, known to torch as external streams.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Argument = torch.Tensor | np.generic | None

THREADS = (256, 1)
"""Of a kernel with a thread an item."""

ROWS = (32, 8)
"""Of a kernel over rows: 32 threads share a row, 8 rows a group."""

# cuMemHostRegister: for all contexts, mapped into the device's address space, and never written by it.
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8

_FOLDER = Path(__file__).parent / "kernels"


class Program(Protocol):
    """A compiled file of kernels."""

    def launch(self, kernel: str, items: int, shape: tuple[int, int], arguments: Sequence[Argument]) -> None:
        """Run a kernel on the current stream.

        Parameters
        ----------
        kernel
            Its name.
        items
            How many items or rows there are; nothing is launched for none.
        shape
            `THREADS` or `ROWS`; the same for a kernel at every launch.
        arguments
            Tensors as their addresses, None as a null pointer, numbers in their own type.
        """
        ...


class KernelLauncher(Protocol):
    """Compiles kernels for one device."""

    def stream(self) -> Any:
        """A new stream of torch's on which kernels can be launched too."""
        ...

    def program(self, name: str, defines: Mapping[str, str] | None = None) -> Program:
        """Compile `kernels/<name>.cu`; the machine keeps what it compiled before."""
        ...

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        """Let kernels read an array where it is: its address on the device, None where the driver refuses."""
        ...

    def unmap_host(self, array: NDArray[Any]) -> None:
        """Undo `map_host`."""
        ...


def groups(items: int, shape: tuple[int, int]) -> int:
    """How many groups of threads cover the items, `shape[1]` items a group where that is more than one."""
    share = shape[1] if shape[1] > 1 else shape[0]
    return -(-items // share)


def packed(arguments: Sequence[Argument]) -> list[np.generic]:
    """Arguments as numbers in the types the kernels declare."""
    return [
        np.uint64(0)
        if argument is None
        else np.uint64(argument.data_ptr())
        if isinstance(argument, torch.Tensor)
        else argument
        for argument in arguments
    ]


def can_build() -> bool:
    """Whether pycuda is installed; it is not imported."""
    return importlib.util.find_spec("pycuda") is not None


class PycudaProgram:
    """One module on one device."""

    def __init__(self, launcher: PycudaLauncher, module: Any) -> None:
        self._launcher = launcher
        self._module = module
        self._functions: dict[str, Any] = {}

    def launch(self, kernel: str, items: int, shape: tuple[int, int], arguments: Sequence[Argument]) -> None:
        if items <= 0:
            return
        with self._launcher.current():
            if kernel not in self._functions:
                self._functions[kernel] = self._module.get_function(kernel)
            self._functions[kernel](
                *packed(arguments),
                grid=(groups(items, shape), 1),
                block=(*shape, 1),
                stream=self._launcher.current_stream(),
            )


class PycudaLauncher:
    """Kernels on one CUDA device.

    Parameters
    ----------
    device
        Of torch; its primary context exists already, since torch made it.
    """

    def __init__(self, device: torch.device) -> None:
        import pycuda.driver as cuda

        cuda.init()
        self._cuda = cuda
        self._device = device
        self._context = cuda.Device(device.index).retain_primary_context()
        self._streams: dict[int, Any] = {}
        self._programs: dict[tuple[str, ...], PycudaProgram] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current for pycuda, in whichever thread this is."""
        self._context.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()

    def stream(self) -> Any:
        non_blocking = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream.
        with self.current():
            stream = self._cuda.Stream(non_blocking)
        self._streams[int(stream.handle)] = stream
        return torch.cuda.ExternalStream(stream.handle, device=self._device)  # type: ignore[no-untyped-call]

    def current_stream(self) -> Any:
        """The stream torch's operators run on now, which is one of ours."""
        return self._streams[int(torch.cuda.current_stream(self._device).cuda_stream)]

    def program(self, name: str, defines: Mapping[str, str] | None = None) -> PycudaProgram:
        from pycuda.compiler import SourceModule

        options = ["-std=c++17", *(f"-D{key}={value}" for key, value in (defines or {}).items())]
        key = (name, *options)
        if key not in self._programs:
            source = (_FOLDER / f"{name}.cu").read_text(encoding="utf-8")
            with self.current():
                module = SourceModule(source, options=options, no_extern_c=True)
            self._programs[key] = PycudaProgram(self, module)
        return self._programs[key]

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        # Neither torch (whose runtime would report a refusal at its next call) nor pycuda (which copies the
        # array's interface) registers memory it did not allocate: this is the driver's own call.
        library = ctypes.CDLL("libcuda.so.1")
        host = ctypes.c_void_p(array.ctypes.data)
        there = ctypes.c_uint64()
        with self.current():
            size = ctypes.c_size_t(array.nbytes)
            if library.cuMemHostRegister_v2(host, size, _PORTABLE | _MAPPED | _READ_ONLY) != 0:
                return None
            if library.cuMemHostGetDevicePointer_v2(ctypes.byref(there), host, 0) != 0:
                library.cuMemHostUnregister(host)
                return None
        return np.uint64(there.value)

    def unmap_host(self, array: NDArray[Any]) -> None:
        library = ctypes.CDLL("libcuda.so.1")
        with self.current():
            status = library.cuMemHostUnregister(ctypes.c_void_p(array.ctypes.data))
        if status != 0:
            raise RuntimeError(
                f"cuMemHostUnregister of {array.nbytes:,} bytes failed with CUDA error {status}"
            )
