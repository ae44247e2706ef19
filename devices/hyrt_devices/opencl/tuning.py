"""Kernel sizes per type of device: data, not code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Compile-time sizes of kernels; independent of the number of compute units, as are the results.

    Parameters
    ----------
    product
        `vector`: a work item multiplies in registers; `tiled`: a work group multiplies in local memory.
    lanes
        Work items that share a row of an aggregation.
    vector
        Width of the widest vector, in floats.
    unroll
        Vectors of a row that a work item holds in registers.
    items
        Work items per group in kernels without shared data.
    grain
        Rows per work item (or per group of `lanes`).
    product_rows, product_grain
        Rows that a work item of the vector product multiplies at once, and in total: a multiple.
    panel
        Columns that a work item of the vector product multiplies at once: twice `vector`. In the tiled
        product, contiguous columns in partial sums.
    weight_chunk
        Rows per partial sum of a weight gradient.
    weight_block
        Weight rows that one work item packs or reduces.
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
    # 32 registers of 16 floats: 12 x 2 sums, 2 columns, 1 row. An aggregation uses less than half of them.
    16: _cpu(vector=16, rows=12, unroll=16),
    # 16 registers: 6 x 2 sums.
    8: _cpu(vector=8, rows=6, unroll=8),
    4: _cpu(vector=4, rows=6, unroll=8),
}
"""Kernel sizes for CPUs, by the compilation target's width of vector registers in floats."""

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

    The vector width that a CPU device reports is unreliable: some PoCL versions report the width that PoCL
    was built for, others the width that LLVM prefers. The width of this process's CPU is used instead, unless
    the compiler's target is generic.
    """
    import pyopencl as cl
    import torch

    if not device.type & cl.device_type.CPU:
        return GPU
    if "PoCL" in device.version and re.search(r"-generic\b", device.version):
        return CPUS[4]
    return CPUS[{"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)]
