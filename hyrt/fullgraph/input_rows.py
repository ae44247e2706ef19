"""Feature rows as the first layer reads them, and memory-mapped rows whose pages can be dropped after use."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.workers import Workers

_MAPS = Path("/proc/self/smaps")
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class MmapRows:
    """Consecutive rows of a memory-mapped matrix; dropped pages are read again at the next access.

    `values` [V, f] is a matrix for which `find_mmap` returns a map.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        mapped = find_mmap(values)
        assert mapped is not None
        self._map = mapped
        self._row_bytes = values.strides[0]
        self._at = values.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data

    def drop_pages(self, start: int, stop: int) -> None:
        """Drop from memory all pages that contain only rows of a range."""
        first = -(-(self._at + start * self._row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (self._at + stop * self._row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def find_mmap(values: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map behind an array, if the map has no modified pages.

    Modified pages of a private map exist only in memory and would be lost. Returns None if there is no map,
    if it has modified pages, or if the system cannot report modified pages.
    """
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(base, "madvise") or not values.size:
        return None
    start = values.ctypes.data
    return base if _written_bytes(start, start + values.nbytes) == 0 else None


def _written_bytes(start: int, stop: int) -> int | None:
    """Return the modified bytes in the pages of an address range; None if unknown."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    total, overlaps, is_listed = 0, False, False
    for line in lines:
        if limits := _RANGE.match(line):
            overlaps = int(limits[1], 16) < stop and int(limits[2], 16) > start
            is_listed = is_listed or overlaps
        elif overlaps and line.startswith("Anonymous:"):
            total += int(line.split()[1]) * 1024
    return total if is_listed else None


Array = NDArray[Any]
_GRAIN = 8192


class InputRows:
    """Features of all vertices, as the first layer reads them.

    `rows` [V, f] are the inputs of a full-graph mini-batch. Rows that are read are converted to `dtype`.
    """

    def __init__(self, rows: InPlaceFeatures | SparseRows | torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._sparse = rows if isinstance(rows, SparseRows) else None
        self._dense: Array | None = rows.values if isinstance(rows, InPlaceFeatures) else None
        if isinstance(rows, torch.Tensor):
            self._dense = rows.numpy()
        self._dtype = dtype

    @property
    def is_mapped(self) -> bool:
        """Whether the rows are memory-mapped and their pages can be dropped: see `find_mmap`."""
        return self._dense is not None and find_mmap(self._dense) is not None

    def as_matrix(self) -> Array:
        """Return all rows [V, f]: dense in place (float16 and bfloat16 as bits), sparse as a dense copy."""
        if self._sparse is None:
            assert self._dense is not None
            return self._dense
        return self._sparse.to_dense().numpy().astype(self._dtype, copy=False)

    def copy_columns(self, first: int, out: Array, workers: Workers) -> None:
        """Copy the columns from `first` on into `out` [V, n], up to n or the last column.

        Pages of a mapped file are dropped after the copy, so resident memory does not grow.
        """
        pages = MmapRows(self._dense) if self._dense is not None and self.is_mapped else None

        def copy(start: int, stop: int) -> None:
            if self._sparse is not None:
                _scatter(self._sparse, start, stop, first, out[start:stop])
                return
            part = self._values(start, stop)[:, first : first + out.shape[1]]
            out[start:stop, : part.shape[1]] = part
            if pages is not None:
                pages.drop_pages(start, stop)

        workers.run(copy, len(out), _GRAIN)

    def read_range(self, start: int, stop: int) -> torch.Tensor | SparseRows:
        """Return consecutive rows in `dtype`."""
        if self._sparse is None:
            # Copy read-only memory, such as a mapped file, because torch warns about it.
            values = np.require(self._values(start, stop), self._dtype, ["C", "W"])
            return torch.from_numpy(values)
        return SparseRows(
            self._sparse.indptr[start : stop + 1],
            self._sparse.columns,
            self._sparse.values,
            self._sparse.width,
        )

    def read_stored_range(self, start: int, stop: int) -> Array:
        """Return consecutive rows [n, f] in the stored dtype; dense rows are a view."""
        if self._sparse is None:
            return self._values(start, stop)
        part = self.read_range(start, stop)
        assert isinstance(part, SparseRows)
        dense: Array = part.to_dense().numpy()
        return dense

    def read_rows(self, vertices: Array, workers: Workers) -> torch.Tensor | SparseRows:
        """Return the rows of some vertices."""
        if self._sparse is None:
            assert self._dense is not None
            return torch.from_numpy(np.ascontiguousarray(to_numpy_dtype(self._dense[vertices]), self._dtype))
        rows = self._sparse
        all_rows = SparseFeatures(rows.indptr, rows.columns, rows.values, rows.width)
        return SparseRows.from_features(all_rows.take(vertices, workers))

    def _values(self, start: int = 0, stop: int | None = None) -> Array:
        """Return a range of the dense rows as a numpy array."""
        assert self._dense is not None
        return to_numpy_dtype(self._dense[start:stop])


def _scatter(rows: SparseRows, start: int, stop: int, first: int, out: Array) -> None:
    """Write some columns of consecutive sparse rows into a dense matrix."""
    begin, end = rows.indptr[start], rows.indptr[stop]
    columns = rows.columns[begin:end] - first
    inside = (columns >= 0) & (columns < out.shape[1])
    row_of_value = np.repeat(np.arange(stop - start), np.diff(rows.indptr[start : stop + 1]))
    values = rows.values[begin:end][inside]
    out.fill(0)
    out[row_of_value[inside], columns[inside]] = to_numpy_dtype(values)
