"""Feature rows as the first layer reads them: all in place, or a range at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.mmap_rows import MmapRows, find_mmap
from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.inputs import InPlaceFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.workers import Workers

Array = NDArray[Any]
_GRAIN = 8192


class InputRows:
    """Features of all vertices.

    `rows` [V, f] have the form of the inputs of a full-graph mini-batch; they are converted to `dtype`.
    """

    def __init__(self, rows: InPlaceFeatures | SparseRows | torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._sparse = rows if isinstance(rows, SparseRows) else None
        self._dense: Array | None = rows.values if isinstance(rows, InPlaceFeatures) else None
        if isinstance(rows, torch.Tensor):
            self._dense = rows.numpy()
        self._dtype = dtype

    @property
    def is_mapped(self) -> bool:
        """Return whether the rows are memory-mapped and their pages can be dropped: see `find_mmap`."""
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
            # Copy read-only memory, such as a mapped file: torch warns about it.
            values = np.require(self._values(start, stop), self._dtype, ["C", "W"])
            return torch.from_numpy(values)
        return SparseRows(
            self._sparse.indptr[start : stop + 1],
            self._sparse.columns,
            self._sparse.values,
            self._sparse.width,
        )

    def read_stored_range(self, start: int, stop: int) -> Array:
        """Return [n, f] consecutive rows as numbers of the stored dtype; dense rows in place."""
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
        """Return rows as numbers."""
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
