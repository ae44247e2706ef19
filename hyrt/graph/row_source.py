"""Row source protocols, and dense, sparse and heterogeneous feature rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.hetero.graph_types import GraphTypes
from hyrt.graph.quantized.row_format import FLOAT16, FLOAT32, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_kernels import densify, gather_rows, gather_sparse_rows
from hyrt.runtime.workers import Workers

_GRAIN = 512


class RowSource(Protocol):
    """Feature rows of a vertex type, which may be in memory, in a file, or on other ranks."""

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    @property
    def value_bytes(self) -> int:
        """Number of bytes per stored value of a dense row."""
        ...

    @property
    def nbytes(self) -> int:
        """Number of bytes that this process stores in memory or files."""
        ...

    @property
    def matrix(self) -> NDArray[Any] | None:
        """All rows [V, F] in host memory, for compiled loops that read them in place; otherwise None.

        The dtype is float32, float64, uint16 (float16 bits) or int16 (bfloat16 bits).
        """
        ...

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Write the rows of vertices to an array.

        Parameters
        ----------
        ids
            Vertices [n].
        out
            Array [n, width] float32 that is overwritten.
        workers
            Threads that share the work.
        """
        ...


@runtime_checkable
class SparseSource(RowSource, Protocol):
    """Row source that can return sparse rows."""

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        """Return the sparse rows of vertices, in the given order."""
        ...


@runtime_checkable
class QuantizedRowSource(RowSource, Protocol):
    """Row source that can return quantized rows without dequantization."""

    @property
    def row_format(self) -> RowFormat:
        """Storage format; float32 if rows are not quantized."""
        ...

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        """Column scales [F]; None if the format has none."""
        ...

    @property
    def all_rows(self) -> QuantizedRows | None:
        """Quantized rows of all vertices; None if they are not in host memory."""
        ...

    def quantized_rows(self, ids: NDArray[Any], out: QuantizedRows, workers: Workers) -> None:
        """Write the quantized rows of vertices to `out`.

        Parameters
        ----------
        ids
            Vertices [n].
        out
            Rows [n, width] in the storage format, which are overwritten.
        workers
            Threads that share the work.
        """
        ...


@runtime_checkable
class PrefetchedRowSource(RowSource, Protocol):
    """Row source that prefetches all remote rows of a step in one exchange."""

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        """Fetch the remote rows of a step, which `rows` can then return.

        Parameters
        ----------
        step
            Step of the run, which is negative unless it is a training step.
        ids
            Vertices [n] of each mini-batch, possibly with duplicates. They are ignored if the step has been
            fetched and not released.
        workers
            Threads that share the work.
        """
        ...

    def release(self, step: int) -> None:
        """Release the rows of a step (thread-safe)."""
        ...

    def end(self) -> None:
        """Stop fetching; waiting threads raise `ChannelClosedError` (thread-safe)."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseFeatures:
    """Dense feature rows in one matrix, which is in memory or memory-mapped."""

    values: NDArray[Any]
    """Matrix [V, F] float32 or float16, C-contiguous."""

    __repr__ = short_repr

    @property
    def width(self) -> int:
        return int(self.values.shape[1])

    @property
    def value_bytes(self) -> int:
        return self.values.itemsize

    @property
    def nbytes(self) -> int:
        return self.values.nbytes

    @property
    def matrix(self) -> NDArray[Any]:
        return self.values.view(np.uint16) if self.values.dtype == np.float16 else self.values

    @property
    def row_format(self) -> RowFormat:
        return FLOAT16 if self.values.dtype == np.float16 else FLOAT32

    @property
    def column_scales(self) -> None:
        return None

    @property
    def all_rows(self) -> QuantizedRows:
        return QuantizedRows(self.row_format, self.matrix)

    def quantized_rows(self, ids: NDArray[Any], out: QuantizedRows, workers: Workers) -> None:
        self.all_rows.gather(ids, out, workers)

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        matrix = self.matrix
        workers.run_rows(lambda start, stop: gather_rows(matrix, ids, out, start, stop), len(ids), _GRAIN)


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeatures:
    """Sparse feature rows in CSR format, such as bags of words."""

    indptr: NDArray[Any]
    """Index of the first entry of each row, [V+1] int64."""
    columns: NDArray[Any]
    """Column of each entry, [nnz] int32, strictly increasing in each row."""
    values: NDArray[Any]
    """Value of each entry, [nnz] float32."""
    width: int

    __repr__ = short_repr

    @property
    def value_bytes(self) -> int:
        return np.dtype(np.float32).itemsize

    @property
    def nbytes(self) -> int:
        return self.indptr.nbytes + self.columns.nbytes + self.values.nbytes

    @property
    def matrix(self) -> None:
        return None

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        indptr = np.zeros(len(ids) + 1, np.int64)
        np.cumsum(self.indptr[ids + 1] - self.indptr[ids], out=indptr[1:])
        columns = np.empty(indptr[-1], np.int32)
        values = np.empty(indptr[-1], np.float32)
        workers.run_rows(
            lambda start, stop: gather_sparse_rows(
                self.indptr, self.columns, self.values, ids, indptr, columns, values, start, stop
            ),
            len(ids),
            _GRAIN,
        )
        return SparseFeatures(indptr, columns, values, self.width)

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        taken = self.take(ids, workers)
        workers.run_rows(
            lambda start, stop: densify(taken.indptr, taken.columns, taken.values, out, start, stop),
            len(ids),
            _GRAIN,
        )


@dataclass(frozen=True, slots=True, eq=False)
class HeteroRows:
    """Row sources of all vertex types. Widths differ, so rows are read by type, without padding."""

    types: GraphTypes
    tables: tuple[RowSource | None, ...]
    """Row source of each type [T], indexed within the type; None if the type has no features, but embeddings.
    """

    __repr__ = short_repr

    def table(self, vertex_type: str) -> RowSource | None:
        """Return the row source of a type; None if the type has no features."""
        return self.tables[self.types.type_index(vertex_type)]

    def table_width(self, vertex_type: str) -> int:
        """Return the number of feature columns of a type; 0 if the type has no features."""
        table = self.table(vertex_type)
        return 0 if table is None else table.width

    def table_rows(
        self, vertex_type: str, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers
    ) -> None:
        """Write the features of vertices [n] of a type (ids in the graph) to `out` [n, F] float32.

        Raises DataError if the type has no features.
        """
        number = self.types.type_index(vertex_type)
        table = self.tables[number]
        if table is None:
            raise DataError(
                f"vertices of type {vertex_type!r} have no features: use a model that learns embeddings for "
                "them"
            )
        table.rows(ids - ids.dtype.type(self.types.starts[number]), out, workers)

    @property
    def width(self) -> int:
        """Maximum number of columns; 0 if no type has features."""
        return max((table.width for table in self.tables if table is not None), default=0)

    @property
    def value_bytes(self) -> int:
        """Maximum number of bytes per value over all tables."""
        return max((table.value_bytes for table in self.tables if table is not None), default=4)

    @property
    def nbytes(self) -> int:
        return sum(table.nbytes for table in self.tables if table is not None)

    @property
    def matrix(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Raise DataError with a remedy, because there is no single feature matrix [V, F]."""
        raise DataError(
            "a heterogeneous graph has one feature table per vertex type and no single feature matrix: "
            "train a heterogeneous model, or read the rows of each type with HeteroRows.table_rows"
        )
