"""Useful fraction below which the host filters rows for a device, from measured copy rates."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from hyrt_perfmodel.chunks.selection import filter_below

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels

# Large enough for a stable rate, and copied in milliseconds.
_MAX_BYTES = 16 << 20
_REPEATS = 3


def measured_limit(kernels: ChunkKernels, num_rows: int, width: int) -> float:
    """Measure the copy rates and return the limit of `hyrt_perfmodel.chunks.selection.filter_below`.

    Parameters
    ----------
    kernels
        The device's kernels; the contents of `read` are overwritten.
    num_rows, width
        Rows and columns of the largest interval.
    """
    num = max(1, min(num_rows, _MAX_BYTES // (4 * width)))
    rows = np.ones((num, width), np.float32)
    # Half of the rows, ascending as the useful rows of a chunk are.
    chosen = np.sort(np.random.default_rng(0).permutation(num)[: -(-num // 2)])
    out = np.empty((len(chosen), width), np.float32)

    def transfer() -> None:
        kernels.put("read", rows)
        kernels.wait()

    kernels.name("rows that measure the link")
    transfer_s = _fastest_s(transfer)
    kernels.name("")
    copy_s = _fastest_s(lambda: np.take(rows, chosen, axis=0, out=out, mode="clip"))
    return filter_below(out.nbytes / copy_s, rows.nbytes / transfer_s)


def _fastest_s(work: Callable[[], object]) -> float:
    """Return the fastest of several runs in seconds; the first run warms up."""
    times_s = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started)
    return max(min(times_s[1:]), 1e-9)
