"""Below which useful fraction rows are filtered on the host, for a device as it is measured to copy."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from hyrt_perfmodel.chunks.selection import filter_below

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels

# Enough for a rate, and copied in some milliseconds.
_MOST_BYTES = 16 << 20
_REPEATS = 3


def measured_limit(kernels: ChunkKernels, num_rows: int, width: int) -> float:
    """The limit of `hyrt_perfmodel.chunks.selection.filter_below` with rates that are measured now.

    Parameters
    ----------
    kernels
        The device's; what lies in its place `read` is lost.
    num_rows, width
        Rows of the largest interval, and their columns.
    """
    num = max(1, min(num_rows, _MOST_BYTES // (4 * width)))
    rows = np.ones((num, width), np.float32)
    # Half of them, ascending as the useful rows of a chunk are.
    chosen = np.sort(np.random.default_rng(0).permutation(num)[: -(-num // 2)])
    out = np.empty((len(chosen), width), np.float32)

    def transfer() -> None:
        kernels.put("read", rows)
        kernels.wait()

    kernels.name("rows that measure the link")
    transfer_s = _least_s(transfer)
    kernels.name("")
    copy_s = _least_s(lambda: np.take(rows, chosen, axis=0, out=out, mode="clip"))
    return filter_below(out.nbytes / copy_s, rows.nbytes / transfer_s)


def _least_s(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several times; the first one warms up."""
    took = []
    for _ in range(1 + _REPEATS):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    return max(min(took[1:]), 1e-9)
