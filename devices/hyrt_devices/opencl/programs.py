"""Kernel sizes for each type of device, and compilation of OpenCL kernels with these sizes."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from hyrt_devices.opencl_host.driver_workarounds import preserve_signal_handlers, reports_ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Compile-time sizes of kernels, which do not depend on the number of compute units; nor do results.

    Parameters
    ----------
    product
        `vector` if a work item multiplies in registers, `tiled` if a work group does in local memory.
    lanes
        Number of work items that share a row of an aggregation.
    vector
        Width of the widest vector, in floats.
    unroll
        Number of vectors of a row that a work item holds in registers.
    items
        Number of work items per group in kernels that share no data.
    grain
        Number of rows per work item (or per group of `lanes`).
    product_rows, product_grain
        Rows that a work item of the vector product multiplies at once, and in total (a multiple of it).
    panel
        Columns that a work item of the vector product multiplies at once, which is twice `vector`; or number
        of contiguous columns in the tiled product's partial sums.
    weight_chunk
        Number of rows per partial sum of a weight gradient.
    weight_block
        Number of weight rows that one work item packs or reduces.
    """

    product: Literal["vector", "tiled"]
    lanes: int
    vector: int
    unroll: int
    items: int
    grain: int
    product_rows: int
    product_grain: int
    panel: int
    weight_chunk: int
    weight_block: int


def _cpu(*, vector: int, rows: int, unroll: int) -> Tuning:
    return Tuning(
        product="vector",
        lanes=1,
        vector=vector,
        unroll=unroll,
        items=1,
        grain=64,
        product_rows=rows,
        product_grain=192,
        panel=2 * vector,
        weight_chunk=2048,
        weight_block=16,
    )


CPUS = {
    # 32 registers of 16 floats suffice for 12 x 2 sums, 2 columns and 1 row. Aggregations use fewer.
    16: _cpu(vector=16, rows=12, unroll=16),
    # 16 registers suffice for 6 x 2 sums, 2 columns and a row.
    8: _cpu(vector=8, rows=6, unroll=8),
    4: _cpu(vector=4, rows=6, unroll=8),
}
"""Kernel sizes for CPUs, by the width of the compilation target's vector registers in floats."""

GPU = Tuning(
    product="tiled",
    lanes=32,
    vector=1,
    unroll=4,
    items=64,
    grain=1,
    product_rows=0,
    product_grain=0,
    panel=32,
    weight_chunk=1024,
    weight_block=1,
)


def tuning_of(device: Any) -> Tuning:
    """Return the kernel sizes for a `pyopencl.Device`.

    The vector width that a CPU device reports is unreliable: some PoCL versions report the width for which
    PoCL was built, others the width that LLVM prefers. The width of this machine's CPU is used instead,
    unless the compiler's target is generic.
    """
    import pyopencl as cl
    import torch

    if not device.type & cl.device_type.CPU:
        return GPU
    if "PoCL" in device.version and re.search(r"-generic\b", device.version):
        return CPUS[4]
    return CPUS[{"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)]


Constants = Mapping[str, int | str]
_Key = tuple[str, frozenset[tuple[str, int | str]]]

# Maximum number of attempts to build a program.
_TRIES = 3
# Maximum number of cached programs, of which a run needs about twelve. The oldest program is evicted.
_MAX_PROGRAMS = 128
# Source files of each program in `kernels/`.
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
    """Thread-safe cache of programs that are compiled from the files in `kernels/`, one per set of constants.

    Each call of `kernel` returns a new kernel object, because threads must not share kernel objects.
    """

    def __init__(self, context: Any, device: Any) -> None:
        self.context = context
        self._device = device
        self._built: dict[_Key, Any] = {}
        self._lock = threading.Lock()

    def built(self, program: str, constants: Constants) -> Any:
        """Return a `pyopencl.Program`, which is compiled on first use."""
        words = [f"-D{word}={value}" for word, value in constants.items()]
        key = (program, frozenset(constants.items()))
        return self._cached(key, lambda: self._build(source_of(program), ["-cl-mad-enable", *words]))

    def printed(self, source: str, name: str) -> Any:
        """Return a new `pyopencl.Kernel` that is compiled from generated source."""
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
            # Retry: processes share PoCL's cache of compiled kernels, so a build may fail if another process
            # builds the same kernel or is killed while it writes.
            with suppress(cl.RuntimeError):
                return self._build_once(source, options)
        return self._build_once(source, options)

    def _build_once(self, source: str, options: list[str]) -> Any:
        import pyopencl as cl

        with reports_ignored(), preserve_signal_handlers():
            return cl.Program(self.context, source).build(options, devices=[self._device])

    def kernel(self, program: str, name: str, constants: Constants) -> Any:
        """Return a new `pyopencl.Kernel` of a program compiled with `constants`.

        The programs are `aggregate`, `widen`, `join`, `place`, `product_vector`, `product_tiled`, `sample`
        and `sizeless` (kernels that do not depend on the model's sizes).
        """
        import pyopencl as cl

        return cl.Kernel(self.built(program, constants), name)


_SHARED: dict[Any, Programs] = {}
_SHARED_LOCK = threading.Lock()


def shared_programs(device: Any) -> Programs:
    """Return the programs of a `pyopencl.Device` and its context, which all its users in the process share.

    They are shared because building a program takes tens of milliseconds even if the driver has cached it.
    """
    import pyopencl as cl

    with _SHARED_LOCK:
        if device not in _SHARED:
            _SHARED[device] = Programs(cl.Context([device]), device)
        return _SHARED[device]


def forget_programs(device: Any) -> None:
    """Discard the context of a device after a failure, so that the next open creates a new context."""
    with _SHARED_LOCK:
        _SHARED.pop(device, None)


def source_of(program: str) -> str:
    """Return the concatenated source files of a program."""
    folder = files("hyrt_devices.opencl") / "kernels"
    return "\n".join((folder / f"{file}.cl").read_text(encoding="utf-8") for file in _FILES[program])
