"""Bringing rows of the host to a device: all of an interval, or the useful ones."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.recycled_matrices import RecycledMatrices

Array = NDArray[Any]


class RowReader:
    """Copies rows to one device, and counts how many were filtered before.

    Useful rows are gathered into two buffers by turns, so that one is filled while the other is copied.

    Parameters
    ----------
    most_numbers
        Numbers of the useful rows of any chunk, at most.
    memory
        Where the buffers are taken from.
    """

    def __init__(self, most_numbers: int, memory: RecycledMatrices) -> None:
        self._buffers = [memory.take((most_numbers,), np.float32) for _ in range(2)] if most_numbers else []
        self.reads = 0
        self.read_bytes = 0
        self.filtered = 0
        self.spared_bytes = 0
        self.filter_s = 0.0
        """`reads`, `read_bytes`, `filtered`, `spared_bytes`, `filter_s`: since `begin`, how often rows of an
        interval were brought for a chunk, and how much, for how many chunks they were filtered, what was not
        brought for that, and how long filtering took."""
        self.handed_bytes = 0
        """Since `begin`, what other devices have handed on instead."""

    def begin(self) -> None:
        """Count from 0 again."""
        self.reads = self.read_bytes = self.filtered = self.spared_bytes = self.handed_bytes = 0
        self.filter_s = 0.0

    def read(self, kernels: ChunkKernels, rows: Array, useful: Array | None) -> None:
        """Bring rows to the place `read`.

        Parameters
        ----------
        kernels
            The device's.
        rows
            [n, width] the rows of an interval; float32 where all are wanted.
        useful
            [m] the rows that are wanted, by their numbers; None for all.
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
        begun = time.perf_counter()
        out = buffer[: len(useful) * width].reshape(len(useful), width)
        if rows.dtype == out.dtype:
            # With any other mode, numpy gathers into an array of its own first.
            np.take(rows, useful, axis=0, out=out, mode="clip")
        else:
            out[:] = rows[useful]
        self.filter_s += time.perf_counter() - begun
        self.filtered += 1
        self.read_bytes += out.nbytes
        self.spared_bytes += (len(rows) - len(useful)) * width * out.itemsize
        kernels.put("read", out)
