"""Selective scheduling: if a chunk reads few rows of an interval, only these rows are copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.grid.edge_chunks import EdgeChunks
from hyrt.fullgraph.recycled_matrices import RecycledMatrices

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class UsefulRows:
    """Rows that are copied for each chunk of edges (NeuGraph, section 3.2, selective scheduling)."""

    columns: int
    """Number of intervals that are read."""
    starts: NDArray[np.int64]
    """[chunks + 1] first row of each chunk; all rows are copied for a chunk without any."""
    ids: NDArray[np.int32]
    """Row numbers within the interval, ascending."""

    @classmethod
    def select(
        cls,
        chunks: EdgeChunks,
        limits: Sequence[float],
        others: Callable[[int, int], Array],
        memory: RecycledMatrices,
    ) -> UsefulRows:
        """Choose the chunks whose rows are filtered, and renumber their columns in place.

        Parameters
        ----------
        chunks
            The edges; columns of a chosen chunk refer to its useful rows afterwards.
        limits
            For each interval of the chunk rows, the useful fraction below which rows are filtered; 0 is
            never.
        others
            Returns the columns that a chunk reads, by row and column interval, in addition to those of its
            edges.
        memory
            The pool of the row numbers.
        """

        def used(i: int, j: int) -> NDArray[np.bool_]:
            mask = np.zeros(chunks.columns.length(j), np.bool_)
            mask[chunks.chunk(i, j).columns] = True
            mask[others(i, j)] = True
            return mask

        counts = np.zeros((chunks.rows.num, chunks.columns.num), np.int64)
        for i, limit in enumerate(limits):
            for j in range(chunks.columns.num) if limit else ():
                count = np.count_nonzero(used(i, j))
                if count < limit * chunks.columns.length(j):
                    counts[i, j] = count
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        selected = cls(chunks.columns.num, starts, memory.take((int(starts[-1]),), np.int32))
        for i, j in np.argwhere(counts).tolist():
            mask, edges = used(i, j), chunks.chunk(i, j).columns
            useful = selected.of(i, j)
            assert useful is not None
            useful[:] = np.flatnonzero(mask)
            edges[:] = (np.cumsum(mask) - 1)[edges]
        return selected

    def of(self, row: int, column: int) -> NDArray[np.int32] | None:
        """Return the useful rows of interval `column` for the chunk of interval `row`; None if all are
        copied.
        """
        first, last = self.starts[row * self.columns + column : row * self.columns + column + 2]
        return self.ids[first:last] if last > first else None

    @property
    def most(self) -> int:
        """Return the maximum number of rows of a filtered chunk; 0 if no chunk is filtered."""
        return int(np.diff(self.starts).max(initial=0))
