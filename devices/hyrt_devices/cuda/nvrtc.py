"""Compilation of the .cu files in `kernels/` with NVRTC, without a CUDA toolkit, driver or GPU."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "kernels"
_FLAGS = ("-std=c++17",)

Defines = tuple[tuple[str, str], ...]
"""Preprocessor definitions, as (name, value) pairs."""


def has_bindings() -> bool:
    """Return whether cuda-bindings, the interface to NVRTC, is installed, without importing it."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


@cache
def compiled(name: str, defines: Defines, capability: int) -> bytes:
    """Compile `kernels/<name>.cu` for a GPU of compute capability `capability` (90 for 9.0).

    Returns a cubin; or PTX, which the driver compiles further, if the GPU is newer than the compiler. Without
    cuda-bindings, pycuda compiles the file with the toolkit's nvcc. Raises RuntimeError, with the compiler
    log, if NVRTC is missing or rejects the file.
    """
    source = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return _compiled(f"{name}.cu", source, [f"-D{key}={value}" for key, value in defines], capability)


@cache
def compiled_source(source: str, capability: int) -> bytes:
    """Compile generated CUDA C++ source like `compiled` compiles files."""
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
            raise RuntimeError(f"NVRTC cannot compile {file} for {target}: {status.name}: {message}")
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
    """Check the status of a cuda-bindings call and return its result, or None without a result.

    Raises RuntimeError, with the name of the error, if the status is an error.
    """
    status, *values = answer
    if status:
        raise RuntimeError(f"{type(status).__name__} {status.name}")
    return values[0] if values else None
