"""Grid of chunks with which an edge loop fits a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.grid.edge_chunks import ChunkCounts, EdgeChunks, count_chunks
from hyrt.fullgraph.grid.intervals import Intervals
from hyrt.fullgraph.grid.least_grid import exhausted, most_intervals
from hyrt.fullgraph.grid.least_number import NoneFits, least_number
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.nn.fused.edges import Edges

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoopGridSizes:
    """Maximum sizes of the chunks of a grid."""

    near: int
    """Accumulated rows per interval."""
    far: int
    """Read rows per interval."""
    edges: int
    """Edges per chunk."""


@dataclass(frozen=True)
class LoopEdges:
    """Edges of a loop by near row, without edges that do not count."""

    indptr: Array
    columns: Array
    chosen: Array | None
    """The near rows; all by default."""
    numbers: Array | None
    """[E] edge numbers by destination; consecutive by default."""
    num_near: int
    num_far: int

    @classmethod
    def of(cls, edges: Edges, num_far: int) -> LoopEdges:
        """Build from the edges of a loop.

        Parameters
        ----------
        edges
            By the near end.
        num_far
            Rows of the far end, or of its positions.
        """
        indptr, columns, numbers = edges.indptr, edges.columns, edges.numbers
        if edges.positions is not None:
            places = edges.positions[columns]
            is_kept = places >= 0
            counts = np.concatenate([[0], np.cumsum(is_kept, dtype=np.int64)])
            indptr, columns = counts[indptr], places[is_kept]
            numbers = np.flatnonzero(is_kept) if numbers is None else numbers[is_kept]
        num_near = len(indptr) - 1 if edges.rows is None else len(edges.rows)
        return cls(indptr, columns, edges.rows, numbers, num_near, num_far)

    @cached_property
    def num_edges(self) -> int:
        if self.chosen is None:
            return int(self.indptr[-1])
        return int((self.indptr[self.chosen + 1] - self.indptr[self.chosen]).sum(dtype=np.int64))

    def cuts(self, num: int) -> tuple[Intervals, Intervals]:
        """Return intervals of near and far rows, no longer than `num` intervals of the longer end."""
        longest = -(-max(self.num_near, self.num_far) // num)
        near, far = (Intervals(rows, -(-rows // longest)) for rows in (self.num_near, self.num_far))
        return near, far

    def counts(self, num: int) -> ChunkCounts:
        """Count the edges of the chunks of such a grid."""
        return count_chunks(self.indptr, self.columns, *self.cuts(num), self.chosen)

    def chunks(self, num: int, memory: RecycledMatrices) -> EdgeChunks:
        """Sort the edges into chunks."""
        near, far = self.cuts(num)
        return EdgeChunks.of(self.indptr, self.columns, near, far, memory, self.chosen)

    def numbers_in_chunks(self, num: int) -> Array:
        """Return [E] edge numbers in the order of `chunks`."""
        near, far = self.cuts(num)
        counts, edges = np.diff(self.indptr), np.arange(int(self.indptr[-1]))
        if self.chosen is not None:
            counts = counts[self.chosen]
            first = np.cumsum(counts) - counts
            edges = np.arange(self.num_edges) + np.repeat(self.indptr[self.chosen] - first, counts)
        rows = np.repeat(np.arange(self.num_near), counts)
        of_row, of_column = (
            np.searchsorted(cut.starts, ends, side="right") - 1
            for cut, ends in ((near, rows), (far, self.columns[edges]))
        )
        # Within a chunk, edges stay in the order of the rows.
        order = edges[np.argsort(of_row * far.num + of_column, kind="stable")]
        return order if self.numbers is None else self.numbers[order]


def least_cut(
    edges: LoopEdges, needs: Callable[[LoopGridSizes], int], free_bytes: int, first: int, device: str
) -> int:
    """Return the smallest number of intervals of the longer end whose chunks fit.

    Parameters
    ----------
    edges
        The edges.
    needs
        Returns the bytes that a loop needs for chunks of these sizes; increases with the sizes.
    free_bytes
        The bytes that are available.
    first
        The smallest number to try.
    device
        Name of the device, for messages.

    Raises
    ------
    DeviceOutOfMemory
        If chunks of single rows, or of the maximum number of intervals, do not fit.
    """
    rows = max(edges.num_near, edges.num_far)
    maximum = most_intervals(rows)

    def bound(num: int) -> int:
        """Return a lower bound of the bytes of any such grid: all chunks are equal."""
        near, far = edges.cuts(num)
        return needs(LoopGridSizes(near.longest, far.longest, -(-edges.num_edges // (near.num * far.num))))

    try:
        return least_number(
            bound, lambda num: needs_of(edges, needs, num), free_bytes, first=first, most=maximum
        )
    except NoneFits as none:
        raise exhausted(none.needed, free_bytes, device, None if maximum == rows else maximum) from None


def needs_of(edges: LoopEdges, needs: Callable[[LoopGridSizes], int], num: int) -> int:
    """Return the bytes that a loop needs for a grid."""
    near, far = edges.cuts(num)
    return needs(LoopGridSizes(near.longest, far.longest, int(edges.counts(num).edges.max())))
