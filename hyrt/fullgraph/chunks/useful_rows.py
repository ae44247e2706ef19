"""The rows of an interval that a chunk reads, where they are so few that the others stay on the host."""

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
    """Which rows are copied for each chunk of edges (NeuGraph, section 3.2, selective scheduling)."""

    columns: int
    """Intervals of the rows that are read."""
    starts: NDArray[np.int64]
    """[chunks + 1] where the rows of each chunk start; a chunk without any is copied all rows."""
    ids: NDArray[np.int32]
    """The rows, ascending, counted from the start of their interval."""

    @classmethod
    def select(
        cls,
        chunks: EdgeChunks,
        limits: Sequence[float],
        others: Callable[[int, int], Array],
        memory: RecycledMatrices,
    ) -> UsefulRows:
        """Choose the chunks for which rows are filtered, and renumber their columns in place.

        Parameters
        ----------
        chunks
            The edges; columns of a chunk that is chosen count from its useful rows afterwards.
        limits
            For each interval of their rows, the useful fraction below which rows are filtered; 0 is never.
        others
            The columns that are read for a chunk, by its row and its column, beside those of its edges.
        memory
            Where the numbers of rows are taken from.
        """

        def used(i: int, j: int) -> NDArray[np.bool_]:
            found = np.zeros(chunks.columns.length(j), np.bool_)
            found[chunks.chunk(i, j).columns] = True
            found[others(i, j)] = True
            return found

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
        """The useful rows of interval `column` for the chunk of interval `row`; None where all are copied."""
        first, last = self.starts[row * self.columns + column : row * self.columns + column + 2]
        return self.ids[first:last] if last > first else None

    @property
    def most(self) -> int:
        """Rows of the chunk that has most of them; 0 where none is filtered."""
        return int(np.diff(self.starts).max(initial=0))
