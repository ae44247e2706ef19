"""How the two ends of edges are cut so that a loop over them fits into a device."""

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
    """The largest chunks of a grid."""

    near: int
    """Rows of an interval that are added to."""
    far: int
    """Rows of an interval that are read."""
    edges: int
    """Edges of a chunk."""


@dataclass(frozen=True)
class LoopEdges:
    """The edges of a loop by its near rows, those that do not count left out."""

    indptr: Array
    columns: Array
    chosen: Array | None
    """The rows in question; all by default."""
    numbers: Array | None
    """[E] the number of each edge by destination; consecutive by default."""
    num_near: int
    num_far: int

    @classmethod
    def of(cls, edges: Edges, num_far: int) -> LoopEdges:
        """The edges that a loop is given.

        Parameters
        ----------
        edges
            By the near end.
        num_far
            Rows of the other end: of its positions, where they have some.
        """
        indptr, columns, numbers = edges.indptr, edges.columns, edges.numbers
        if edges.positions is not None:
            places = edges.positions[columns]
            there = places >= 0
            counts = np.concatenate([[0], np.cumsum(there, dtype=np.int64)])
            indptr, columns = counts[indptr], places[there]
            numbers = np.flatnonzero(there) if numbers is None else numbers[there]
        num_near = len(indptr) - 1 if edges.rows is None else len(edges.rows)
        return cls(indptr, columns, edges.rows, numbers, num_near, num_far)

    @cached_property
    def num_edges(self) -> int:
        if self.chosen is None:
            return int(self.indptr[-1])
        return int((self.indptr[self.chosen + 1] - self.indptr[self.chosen]).sum(dtype=np.int64))

    def cuts(self, num: int) -> tuple[Intervals, Intervals]:
        """Intervals of near and far rows, none longer than if the longer end were cut into `num`."""
        longest = -(-max(self.num_near, self.num_far) // num)
        near, far = (Intervals(rows, -(-rows // longest)) for rows in (self.num_near, self.num_far))
        return near, far

    def counts(self, num: int) -> ChunkCounts:
        """What the chunks of such a grid hold."""
        return count_chunks(self.indptr, self.columns, *self.cuts(num), self.chosen)

    def chunks(self, num: int, memory: RecycledMatrices) -> EdgeChunks:
        """The edges in chunks."""
        near, far = self.cuts(num)
        return EdgeChunks.of(self.indptr, self.columns, near, far, memory, self.chosen)

    def numbers_in_chunks(self, num: int) -> Array:
        """[E] the number of each edge, in the order in which `chunks` has them."""
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
    """Into how many intervals the longer end is cut at the least, so that chunks fit.

    Parameters
    ----------
    edges
        The edges.
    needs
        The bytes that a loop takes for chunks of such sizes; more for larger ones.
    free_bytes
        The most that it may take.
    first
        The least number to try.
    device
        Its name, for messages.

    Raises
    ------
    DeviceOutOfMemory
        If chunks of single rows take more, or as many chunks as there may be.
    """
    rows = max(edges.num_near, edges.num_far)
    most = most_intervals(rows)

    def bound(num: int) -> int:
        """What any such grid takes at least: as if all chunks were equal."""
        near, far = edges.cuts(num)
        return needs(LoopGridSizes(near.longest, far.longest, -(-edges.num_edges // (near.num * far.num))))

    try:
        return least_number(
            bound, lambda num: needs_of(edges, needs, num), free_bytes, first=first, most=most
        )
    except NoneFits as none:
        raise exhausted(none.needed, free_bytes, device, None if most == rows else most) from None


def needs_of(edges: LoopEdges, needs: Callable[[LoopGridSizes], int], num: int) -> int:
    """What a loop takes for a grid."""
    near, far = edges.cuts(num)
    return needs(LoopGridSizes(near.longest, far.longest, int(edges.counts(num).edges.max())))
