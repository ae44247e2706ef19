"""The .cu files compiled as plain C++ and run thread after thread on the host: an emulation, for tests only.

It checks every kernel's arithmetic and indexing without a GPU. Running the threads backwards must change
nothing.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyrt_devices.cuda.launch import FOLDER, Defines
from numpy.typing import NDArray
from unit.cuda.fake_driver import FakeDriver

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the kernels with")

_PRELUDE = r"""
#define __global__
#define __device__
#define __forceinline__ inline
struct Dimensions { unsigned x, y, z; };
static thread_local Dimensions blockIdx, threadIdx, blockDim;
static inline int atomicMin(int* at, int value) { int old = *at; if (value < old) *at = value; return old; }
static inline float __uint_as_float(unsigned bits) {
    float out; __builtin_memcpy(&out, &bits, 4); return out;
}
static inline unsigned __float_as_uint(float value) {
    unsigned out; __builtin_memcpy(&out, &value, 4); return out;
}
typedef __SIZE_TYPE__ size_t;
#define FUNCTION(name) \
    static inline float name(float x) { return __builtin_##name##f(x); } \
    static inline double name(double x) { return __builtin_##name(x); }
FUNCTION(exp)
FUNCTION(log)
FUNCTION(sqrt)
FUNCTION(tanh)
"""

_LOOP = """
extern "C" void emulate_{name}(
    int backwards_, unsigned groups_, unsigned wide_, unsigned high_, {parameters}) {{
    blockDim = {{wide_, high_, 1}};
    long long total_ = (long long)groups_ * wide_ * high_;
    for (long long n_ = 0; n_ < total_; n_++) {{
        long long at_ = backwards_ ? total_ - 1 - n_ : n_;
        threadIdx = {{(unsigned)(at_ % wide_), (unsigned)(at_ / wide_ % high_), 0}};
        blockIdx = {{(unsigned)(at_ / wide_ / high_), 0, 0}};
        {name}({arguments});
    }}
}}
"""


@cache
def compiled(name: str, defines: Defines) -> ctypes.CDLL:
    return compiled_source((FOLDER / f"{name}.cu").read_text(encoding="utf-8"), defines)


@cache
def compiled_source(source: str, defines: Defines = ()) -> ctypes.CDLL:
    loops = []
    for kernel, parameters in re.findall(
        r'extern "C" __global__ void (\w+)\((.*?)\)\s*\{', source, re.DOTALL
    ):
        names = [re.split(r"[\s*]", parameter)[-1] for parameter in parameters.split(",")]
        loops.append(_LOOP.format(name=kernel, parameters=parameters, arguments=", ".join(names)))
    text = _PRELUDE + source + "".join(loops)
    folder = Path(tempfile.mkdtemp(prefix="hyrt-emulated-"))
    file = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.so"
    flags = [f"-D{key}={value}" for key, value in defines]
    subprocess.run(
        ["g++", "-x", "c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        + [*flags, "-o", str(file), "-"],
        input=text,
        text=True,
        check=True,
    )
    library = ctypes.CDLL(str(file))
    shutil.rmtree(folder)
    return library


class EmulatedLauncher:
    """See `hyrt_devices.cuda.launch.KernelLauncher`; host memory is device memory here."""

    def __init__(self, driver: FakeDriver, *, backwards: bool = False, maps: bool = True) -> None:
        self._driver = driver
        self.backwards = backwards
        self.maps = maps
        self.mapped: set[int] = set()
        self.launched: list[str] = []

    def stream(self) -> Any:
        return self._driver.stream()

    def build(self, name: str, defines: Defines) -> ctypes.CDLL:
        return compiled(name, defines)

    def build_source(self, source: str) -> ctypes.CDLL:
        return compiled_source(source)

    def launch(
        self,
        built: ctypes.CDLL,
        kernel: str,
        groups: int,
        shape: tuple[int, int],
        numbers: Sequence[np.generic],
    ) -> None:
        self.launched.append(kernel)
        values = [np.ctypeslib.as_ctypes_type(value.dtype)(value.item()) for value in numbers]
        call = built[f"emulate_{kernel}"]
        call.restype = None
        call(int(self.backwards), groups, *shape, *values)

    def map_host(self, array: NDArray[Any]) -> np.uint64 | None:
        if not self.maps:
            return None
        self.mapped.add(array.ctypes.data)
        return np.uint64(array.ctypes.data)

    def unmap_host(self, array: NDArray[Any]) -> None:
        self.mapped.remove(array.ctypes.data)
