"""How kernels are cut for a type of device: data, not code."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Sizes that kernels are compiled with. None depends on the number of compute units, so results do not.

    Parameters
    ----------
    product
        `vector`: a work item multiplies with registers; `tiled`: a work group multiplies with local memory.
    lanes
        Work items that share a row of an aggregation.
    vector
        Widest vector of floats.
    unroll
        Vectors of a row that a work item keeps in registers.
    items
        Work items of a group in kernels that share nothing.
    grain
        Rows of a work item (or of a group of `lanes`).
    product_rows, product_grain
        Rows that a work item of the vector product multiplies at once, and in all: a multiple of those.
    panel
        Columns that it multiplies at once; twice `vector`. Of the tiled product, columns that lie together in
        sums.
    weight_chunk
        Rows behind one partial sum of a weight gradient.
    weight_block
        Rows of a weight that one work item packs or reduces.
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
    # 32 registers of 16 floats: 12 x 2 sums, 2 columns, 1 row. Less than half of them for an aggregation.
    16: _cpu(vector=16, rows=12, unroll=16),
    # 16 registers: 6 x 2 sums.
    8: _cpu(vector=8, rows=6, unroll=8),
    4: _cpu(vector=4, rows=6, unroll=8),
}
"""The settings for CPUs, by the floats of the vector registers that code is generated for."""

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
    """How to cut kernels for a `pyopencl.Device`.

    What a CPU device says of its vectors is no guide: one PoCL states the width it was built for, another
    that of its LLVM's taste. The registers are those of this process's CPU, unless the compiler's target does
    not know it.
    """
    import pyopencl as cl
    import torch

    if not device.type & cl.device_type.CPU:
        return GPU
    if "PoCL" in device.version and re.search(r"-generic\b", device.version):
        return CPUS[4]
    return CPUS[{"AVX512": 16, "AVX2": 8}.get(torch.backends.cpu.get_cpu_capability(), 4)]
