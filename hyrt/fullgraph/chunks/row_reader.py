"""Uploads of host rows to a device: all rows of an interval, or only the useful ones."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.recycled_matrices import RecycledMatrices

Array = NDArray[Any]


class RowReader:
    """Uploads rows to one device, and counts filtered uploads.

    Useful rows are gathered into two alternating buffers: one is filled while the other is copied.

    Parameters
    ----------
    most_numbers
        Maximum number of values of the useful rows of a chunk.
    memory
        The pool of the buffers.
    """

    def __init__(self, most_numbers: int, memory: RecycledMatrices) -> None:
        self._buffers = [memory.take((most_numbers,), np.float32) for _ in range(2)] if most_numbers else []
        self.reads = 0
        self.read_bytes = 0
        self.filtered = 0
        self.spared_bytes = 0
        self.filter_s = 0.0
        """`reads`, `read_bytes`, `filtered`, `spared_bytes`, `filter_s`: since `begin`, number and bytes of
        uploads, how many were filtered, the bytes that filtering saved, and the time that it took.
        """
        self.handed_bytes = 0
        """Bytes since `begin` that other devices forwarded instead."""

    def begin(self) -> None:
        """Reset the counters."""
        self.reads = self.read_bytes = self.filtered = self.spared_bytes = self.handed_bytes = 0
        self.filter_s = 0.0

    def read(self, kernels: ChunkKernels, rows: Array, useful: Array | None) -> None:
        """Upload rows to the buffer `read`.

        Parameters
        ----------
        kernels
            The device's kernels.
        rows
            [n, width] the rows of an interval; float32 if all are read.
        useful
            [m] numbers of the rows to upload; None for all.
        """
        self.reads += 1
        if useful is None:
            self.read_bytes += rows.nbytes
            kernels.put("read", rows)
            return
        width = rows.shape[1]
        buffer = self._buffers.pop(0)
        self._buffers.append(buffer)
        kernels.settle(rows)
        kernels.settle(buffer)
        started = time.perf_counter()
        out = buffer[: len(useful) * width].reshape(len(useful), width)
        if rows.dtype == out.dtype:
            # Any other mode makes numpy gather into a temporary array first.
            np.take(rows, useful, axis=0, out=out, mode="clip")
        else:
            out[:] = rows[useful]
        self.filter_s += time.perf_counter() - started
        self.filtered += 1
        self.read_bytes += out.nbytes
        self.spared_bytes += (len(rows) - len(useful)) * width * out.itemsize
        kernels.put("read", out)
