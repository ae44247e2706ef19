"""Where feature rows come from. The load stage knows only this protocol and the two forms rows have here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.narrow.row_format import FLOAT16, FLOAT32, RowFormat
from hyrt.graph.row_kernels import densify, gather_rows, gather_sparse_rows
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line

_GRAIN = 512


class RowSource(Protocol):
    """The feature rows of one vertex type, wherever they are kept."""

    @property
    def width(self) -> int:
        """Columns of a row."""
        ...

    @property
    def value_bytes(self) -> int:
        """Bytes of one value of a dense row, as it is read."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are kept in this process's memory or files."""
        ...

    @property
    def matrix(self) -> NDArray[Any] | None:
        """[V, F] all rows in host memory, for compiled loops that read them there; else None.

        The dtype is float32, float64, uint16 for the bits of float16, or int16 for those of bfloat16.
        """
        ...

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Write the rows of some vertices.

        Parameters
        ----------
        ids
            [n] the vertices.
        out
            [n, width] float32, overwritten.
        workers
            The threads that share the work.
        """
        ...


@runtime_checkable
class SparseSource(RowSource, Protocol):
    """A row source that can give its rows as sparse ones."""

    def take(self, ids: NDArray[Any], workers: Workers) -> SparseFeatures:
        """The rows of some vertices, in their order and still sparse."""
        ...


@runtime_checkable
class NarrowSource(RowSource, Protocol):
    """A row source that can give its rows in the format that they are kept or rounded in."""

    @property
    def row_format(self) -> RowFormat:
        """The format; float32 where there is nothing narrow to give."""
        ...

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        """[F] the scales of columns, for a format that has them; else None."""
        ...

    @property
    def all_rows(self) -> NarrowRows | None:
        """The rows of all vertices, where they are kept in the format in host memory; else None."""
        ...

    def narrow_rows(self, ids: NDArray[Any], out: NarrowRows, workers: Workers) -> None:
        """Write the rows of some vertices, as `rows` does, in the format.

        Parameters
        ----------
        ids
            [n] the vertices.
        out
            [n, width] rows of the format, overwritten.
        workers
            The threads that share the work.
        """
        ...


@runtime_checkable
class FetchedRows(RowSource, Protocol):
    """A row source that brings all remote rows of a step at once, before any of them is asked for."""

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        """Bring the rows of a step here; `rows` then gives those of this step.

        Parameters
        ----------
        step
            The step of the run; below zero where it is none that is trained.
        ids
            Arrays [n] of the vertices that the mini-batches of the step read, at least one for each of them;
            a vertex may be there several times. Where the step has been fetched and not been released, they
            do not count: what was fetched is used again.
        workers
            The threads that share the work.
        """
        ...

    def release(self, step: int) -> None:
        """Let the rows of a step go; any thread may ask for it."""
        ...

    def end(self) -> None:
        """No more steps are fetched: who waits for one raises `ChannelClosed`. Any thread may ask for it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class DenseFeatures:
    """Feature rows in one matrix, in memory or memory-mapped."""

    values: NDArray[Any]
    """[V, F] float32 or float16, C-contiguous."""

    __repr__ = one_line

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
    def all_rows(self) -> NarrowRows:
        return NarrowRows(self.row_format, self.matrix)

    def narrow_rows(self, ids: NDArray[Any], out: NarrowRows, workers: Workers) -> None:
        self.all_rows.gather(ids, out, workers)

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        matrix = self.matrix
        workers.run_rows(lambda start, stop: gather_rows(matrix, ids, out, start, stop), len(ids), _GRAIN)


@dataclass(frozen=True, slots=True, eq=False)
class SparseFeatures:
    """Feature rows as CSR, for bags of words whose dense form would not fit."""

    indptr: NDArray[Any]
    """[V+1] int64."""
    columns: NDArray[Any]
    """[nnz] int32, strictly increasing within a row."""
    values: NDArray[Any]
    """[nnz] float32."""
    width: int
    """F, the number of columns."""

    __repr__ = one_line

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
        """The rows of some vertices, in their order and still sparse."""
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
