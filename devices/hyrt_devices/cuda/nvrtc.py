"""The .cu files beside this one as code for a GPU, by NVRTC: no CUDA toolkit, driver or GPU is needed."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "kernels"
_FLAGS = ("-std=c++17",)

Defines = tuple[tuple[str, str], ...]
"""What a file is compiled with: names and values."""


def has_bindings() -> bool:
    """Whether cuda-bindings, through which NVRTC is called, is installed; it is not imported."""
    try:
        return importlib.util.find_spec("cuda.bindings") is not None
    except ModuleNotFoundError:
        return False


@cache
def compiled(name: str, defines: Defines, capability: int) -> bytes:
    """`kernels/<name>.cu` for a GPU, in a form that the driver loads.

    Without cuda-bindings, pycuda compiles it with the toolkit's nvcc.

    Parameters
    ----------
    name, defines
        The file, and what it is compiled with.
    capability
        The GPU's compute capability, 90 for 9.0.

    Returns
    -------
    A cubin; PTX, which the driver goes on to compile, for a GPU that is newer than the compiler.

    Raises
    ------
    RuntimeError
        If NVRTC is not there or refuses the file, with its own words.
    """
    source = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    return _compiled(f"{name}.cu", source, [f"-D{key}={value}" for key, value in defines], capability)


@cache
def compiled_source(source: str, capability: int) -> bytes:
    """CUDA C++ that was printed, as `compile_loop` compiles files."""
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
        told = log.rstrip(b"\0").decode(errors="replace").strip()
        if status:
            raise RuntimeError(f"NVRTC cannot compile {file} for {target}: {status.name}: {told}")
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
    """What a call of cuda-bindings returns beside its status.

    Raises
    ------
    RuntimeError
        If the status is an error, with its name.
    """
    status, *values = answer
    if status:
        raise RuntimeError(f"{type(status).__name__} {status.name}")
    return values[0] if values else None
