"""Compilation of the CUDA kernels in `kernels/` with NVRTC, and kernel launchers in torch's primary context,
with pycuda or cuda-bindings.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

FOLDER = Path(__file__).parent / "kernels"
_FLAGS = ("-std=c++17",)

Defines = tuple[tuple[str, str], ...]
"""Preprocessor definitions, as (name, value) pairs."""


def has_bindings() -> bool:
    """Return whether cuda-bindings (the interface to NVRTC) is installed, without importing it."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


@cache
def compiled(name: str, defines: Defines, capability: int) -> bytes:
    """Compile `kernels/<name>.cu` for a GPU of compute capability `capability` (90 for 9.0).

    Return a cubin, or PTX for the driver to compile if the GPU is newer than the compiler. Without
    cuda-bindings, pycuda compiles the file with the toolkit's nvcc. Raises RuntimeError, with the compiler
    log, if NVRTC is missing or rejects the file.
    """
    source = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return _compiled(f"{name}.cu", source, [f"-D{key}={value}" for key, value in defines], capability)


@cache
def compiled_source(source: str, capability: int) -> bytes:
    """Compile generated CUDA C++ source as `compiled` compiles files."""
    return _compiled("printed.cu", source, [], capability)


def _compiled(file: str, source: str, defines: list[str], capability: int) -> bytes:
    options = [*_FLAGS, *defines]
    if has_bindings():
        return _by_nvrtc(file, source, options, capability)
    from pycuda.compiler import compile as by_nvcc

    code: bytes = by_nvcc(source, options=options, no_extern_c=True, arch=f"sm_{capability}")
    return code


def _by_nvrtc(file: str, source: str, options: list[str], capability: int) -> bytes:
    from cuda.bindings import nvrtc

    known = checked(nvrtc.nvrtcGetSupportedArchs())
    older = [architecture for architecture in known if architecture < capability]
    is_code = capability in known or not older
    target = f"sm_{capability}" if is_code else f"compute_{max(older)}"
    program = checked(nvrtc.nvrtcCreateProgram(source.encode(), file.encode(), 0, [], []))
    words = [word.encode() for word in (f"--gpu-architecture={target}", *options)]
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = bytes(checked(nvrtc.nvrtcGetProgramLogSize(program)))
        checked(nvrtc.nvrtcGetProgramLog(program, log))
        message = log.rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise RuntimeError(f"NVRTC cannot compile {file} for {target} ({status.name}): {message}")
        size, get = (
            (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            if is_code
            else (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        )
        code = bytes(checked(size(program)))
        checked(get(program, code))
        return code
    finally:
        checked(nvrtc.nvrtcDestroyProgram(program))


def checked(answer: tuple[Any, ...]) -> Any:
    """Check the status of a cuda-bindings call, and return its result, or None if it has no result.

    Raises RuntimeError with the name of the error if the status is an error.
    """
    status, *values = answer
    if status:
        raise RuntimeError(f"{type(status).__name__} {status.name}")
    return values[0] if values else None


Argument = torch.Tensor | np.generic | None

THREADS = (256, 1)
"""Thread block shape for kernels with one thread per item."""

ROWS = (32, 8)
"""Thread block shape for kernels over rows: 32 threads per row, 8 rows per thread block."""

# Flags of cuMemHostRegister: valid in all contexts, mapped to device addresses, read-only.
_PORTABLE, _MAPPED, _READ_ONLY = 1, 2, 8


class KernelLauncher(Protocol):
    """Interface for building and launching kernels on one device."""

    def stream(self) -> Any:
        """Create a torch stream on which kernels can also be launched."""
        ...

    def build(self, name: str, defines: Defines) -> Any:
        """Compile and load `kernels/<name>.cu`."""
        ...

    def build_source(self, source: str) -> Any:
        """Compile and load generated CUDA C++ source."""
        ...

    def launch(
        self, built: Any, kernel: str, groups: int, shape: tuple[int, int], numbers: Sequence[np.generic]
    ) -> None:
        """Launch a kernel on the current stream, with `groups` thread blocks of `shape` threads."""
        ...

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        """Map a host array for kernels, and return its device address, or None if the driver refuses."""
        ...

    def unmap_host(self, array: NDArray[Any]) -> None:
        """Undo the effect of `map_host`."""
        ...


class KernelProgram:
    """Kernel file `kernels/<name>.cu` that was compiled and loaded."""

    def __init__(self, launcher: KernelLauncher, name: str, defines: Mapping[str, str] | None = None) -> None:
        self._launcher = launcher
        self._built = launcher.build(name, tuple((defines or {}).items()))

    def launch(self, kernel: str, items: int, shape: tuple[int, int], arguments: Sequence[Argument]) -> None:
        """Launch a kernel on the current stream.

        `items` is the number of items or rows; if it is 0, nothing is launched. `shape` is `THREADS` or
        `ROWS`, and must be the same in every launch of a kernel. Among the arguments, tensors are passed as
        addresses, None as a null pointer, and numbers in their numpy type.
        """
        if items > 0:
            self._launcher.launch(self._built, kernel, groups(items, shape), shape, packed(arguments))


def groups(items: int, shape: tuple[int, int]) -> int:
    """Return the number of thread blocks that cover the items.

    A thread block covers `shape[1]` items, or `shape[0]` items if `shape[1]` is 1.
    """
    share = shape[1] if shape[1] > 1 else shape[0]
    return -(-items // share)


def packed(arguments: Sequence[Argument]) -> list[np.generic]:
    """Convert kernel arguments to numbers of the declared types."""
    return [
        np.uint64(0)
        if argument is None
        else np.uint64(argument.data_ptr())
        if isinstance(argument, torch.Tensor)
        else argument
        for argument in arguments
    ]


def launchers() -> dict[str, type[PycudaLauncher] | type[BindingsLauncher]]:
    """Return the launchers whose packages are installed, by package and in order of preference."""
    there: dict[str, type[PycudaLauncher] | type[BindingsLauncher]] = {}
    if importlib.util.find_spec("pycuda") is not None:
        there["pycuda"] = PycudaLauncher
    if has_bindings():
        there["cuda-bindings"] = BindingsLauncher
    return there


class PycudaLauncher:
    """Kernel launcher for one CUDA device with pycuda. Torch must have created the primary context.

    pycuda cannot use torch streams, so pycuda creates the shared streams, which torch wraps as external
    streams.
    """

    def __init__(self, device: torch.device) -> None:
        import pycuda.driver as cuda

        cuda.init()
        self._cuda = cuda
        self._device = device
        self._context = cuda.Device(device.index).retain_primary_context()
        self._streams: dict[int, Any] = {}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current for pycuda in the calling thread during the block."""
        self._context.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()

    def stream(self) -> Any:
        non_blocking = 1  # Use CU_STREAM_NON_BLOCKING: no implicit synchronization with the default stream.
        with self.current():
            stream = self._cuda.Stream(non_blocking)
        self._streams[int(stream.handle)] = stream
        return torch.cuda.ExternalStream(stream.handle, device=self._device)  # type: ignore[no-untyped-call]

    def build(self, name: str, defines: Defines) -> Any:
        return self._loaded(compiled(name, defines, capability(self._device)))

    def build_source(self, source: str) -> Any:
        return self._loaded(compiled_source(source, capability(self._device)))

    def _loaded(self, image: bytes) -> Any:
        with self.current():
            module = self._cuda.module_from_buffer(image)
        # Look up each kernel only once, instead of at every launch.
        return cache(module.get_function)

    def launch(
        self, built: Any, kernel: str, groups: int, shape: tuple[int, int], numbers: Sequence[np.generic]
    ) -> None:
        stream = self._streams[_current_stream(self._device)]
        with self.current():
            built(kernel)(*numbers, grid=(groups, 1), block=(*shape, 1), stream=stream)

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        return _map_host(self.current(), array)

    def unmap_host(self, array: NDArray[Any]) -> None:
        _unmap_host(self.current(), array)


class BindingsLauncher:
    """Kernel launcher for one CUDA device with cuda-bindings. Torch has created the primary context."""

    def __init__(self, device: torch.device) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self._device = device
        checked(driver.cuInit(0))
        handle = checked(driver.cuDeviceGet(device.index))
        self._context = checked(driver.cuDevicePrimaryCtxRetain(handle))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in the calling thread during the block."""
        checked(self._driver.cuCtxPushCurrent(self._context))
        try:
            yield
        finally:
            checked(self._driver.cuCtxPopCurrent())

    def stream(self) -> Any:
        return torch.cuda.Stream(device=self._device)  # type: ignore[no-untyped-call]

    def build(self, name: str, defines: Defines) -> Any:
        return self._loaded(compiled(name, defines, capability(self._device)))

    def build_source(self, source: str) -> Any:
        return self._loaded(compiled_source(source, capability(self._device)))

    def _loaded(self, image: bytes) -> Any:
        with self.current():
            module = checked(self._driver.cuModuleLoadData(image))
        return cache(lambda kernel: checked(self._driver.cuModuleGetFunction(module, kernel.encode())))

    def launch(
        self, built: Any, kernel: str, groups: int, shape: tuple[int, int], numbers: Sequence[np.generic]
    ) -> None:
        # The driver reads each argument through its address, and copies the value before the call returns.
        values = [np.array(number) for number in numbers]
        places = np.array([value.ctypes.data for value in values], np.uint64)
        stream = _current_stream(self._device)
        with self.current():
            checked(
                self._driver.cuLaunchKernel(
                    built(kernel), groups, 1, 1, *shape, 1, 0, stream, places.ctypes.data, 0
                )
            )

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        return _map_host(self.current(), array)

    def unmap_host(self, array: NDArray[Any]) -> None:
        _unmap_host(self.current(), array)


def capability(device: torch.device) -> int:
    """Return the compute capability of a GPU as a number, such as 90 for 9.0."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def _current_stream(device: torch.device) -> int:
    """Return the handle of the stream on which torch operators currently run."""
    return int(torch.cuda.current_stream(device).cuda_stream)


# Call the driver directly, because neither torch (whose runtime would report a refusal at its next call) nor
# pycuda (which copies the array's interface) can register memory that it did not allocate.
def _map_host(current: AbstractContextManager[None], array: NDArray[Any]) -> np.uint64 | None:
    library = ctypes.CDLL("libcuda.so.1")
    host = ctypes.c_void_p(array.ctypes.data)
    there = ctypes.c_uint64()
    with current:
        size = ctypes.c_size_t(array.nbytes)
        if library.cuMemHostRegister_v2(host, size, _PORTABLE | _MAPPED | _READ_ONLY) != 0:
            return None
        if library.cuMemHostGetDevicePointer_v2(ctypes.byref(there), host, 0) != 0:
            library.cuMemHostUnregister(host)
            return None
    return np.uint64(there.value)


def _unmap_host(current: AbstractContextManager[None], array: NDArray[Any]) -> None:
    library = ctypes.CDLL("libcuda.so.1")
    with current:
        status = library.cuMemHostUnregister(ctypes.c_void_p(array.ctypes.data))
    if status != 0:
        raise RuntimeError(f"cuMemHostUnregister of {array.nbytes:,} bytes failed with CUDA error {status}")
