"""The edges into one block of vertices, with the vertices of other blocks that they come from."""

# mypy: disable-error-code="no-untyped-def,call-arg"
from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.full_graph.rank_grid import RankGrid
from hyrt.graph.topology import Topology
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.quantities import one_line

Array = NDArray[Any]


@dataclass(frozen=True)
class PartEdges:
    """A block's vertices, n of them, and after them the h remote ones; all are numbered in this order.

    Remote vertices come in the order of the exchanges that bring their rows, and in that of their blocks.
    """

    grid: RankGrid
    """This rank, and the others."""
    vertices: Array
    """[n + h] the numbers in the graph."""
    num_own: int
    """n."""
    wave_starts: tuple[int, ...]
    """[waves + 1] where the rows of each exchange begin; the last is n + h."""
    block_counts: tuple[tuple[int, ...], ...]
    """For each exchange, how many rows come from each block of its `RankGrid.waves`."""
    topology: Topology
    """Edges into the block's vertices from blocks of the rank's column, among the n + h; a row's edges keep
    the order that they have in the graph. Remote vertices have none. In-degrees are those of the graph."""

    __repr__ = one_line

    @classmethod
    def of(cls, grid: RankGrid, topology: Topology, blocks: Array, *, oblivious: bool) -> PartEdges:
        """The edges of a rank.

        Parameters
        ----------
        grid
            The ranks.
        topology
            All edges, or at least those into the vertices of this rank's block; in-degrees are of all.
        blocks
            [V] the block of each vertex.
        oblivious
            Whether all rows of other blocks come, whatever is needed of them.
        """
        own = np.flatnonzero(blocks == grid.row)
        mine = np.zeros(grid.num_blocks, np.bool_)
        mine[list(grid.blocks)] = True
        starts, sources, kept = _rows_of(topology, own, None if mine.all() else mine[blocks])
        of_edges = [
            None if each is None else each[kept]
            for each in (topology.edge_types, topology.edge_weights, topology.edge_features)
        ]
        needed = np.zeros(topology.num_vertices, np.bool_)
        needed[sources] = True
        groups: list[Array] = []
        counts: list[tuple[int, ...]] = []
        wave_starts = [len(own)]
        for wave in grid.waves:
            found = [np.flatnonzero((blocks == k) if oblivious else ((blocks == k) & needed)) for k in wave]
            groups += found
            counts.append(tuple(len(each) for each in found))
            wave_starts.append(wave_starts[-1] + sum(counts[-1]))
        vertices = np.concatenate([own, *groups])
        local = np.empty(topology.num_vertices, topology.indices.dtype)
        local[vertices] = np.arange(len(vertices), dtype=local.dtype)
        indptr = np.concatenate([starts, np.full(len(vertices) - len(own), starts[-1])])
        edges = Topology(indptr, local[sources], *of_edges)
        # What would be counted of the edges that are here.
        edges.__dict__["in_degrees"] = topology.in_degrees[vertices]
        edges.__dict__["weighted_degrees"] = topology.weighted_degrees[vertices]
        edges.__dict__["is_symmetric"] = False
        return cls(grid, vertices, len(own), tuple(wave_starts), tuple(counts), edges)

    @property
    def num_rows(self) -> int:
        """N + h."""
        return len(self.vertices)

    @cached_property
    def blocks(self) -> tuple[tuple[Array, Array], ...]:
        """[n + 1] and [edges]: the edges from own vertices, and those from the rows of each exchange.

        Columns are counted from the first row of each.
        """
        borders = np.array([0, *self.wave_starts], np.int64)
        num = len(borders) - 1
        indptr = self.topology.indptr[: self.num_own + 1]
        starts = np.zeros((num, self.num_own + 1), np.int64)
        _count_blocks(indptr, self.topology.indices, borders, starts)
        np.cumsum(starts, axis=1, out=starts)
        first = np.concatenate([[0], np.cumsum(starts[:, -1])])
        columns = np.empty(self.topology.num_edges, self.topology.indices.dtype)
        _fill_blocks(indptr, self.topology.indices, borders, starts, first, columns)
        return tuple((starts[b], columns[first[b] : first[b + 1]]) for b in range(num))

    @cached_property
    def block_weights(self) -> tuple[Array | None, ...]:
        """The weights of the edges of each of `blocks`; None where edges have none."""
        weights = self.topology.edge_weights
        if weights is None:
            return (None,) * (len(self.wave_starts))
        borders = np.array([0, *self.wave_starts], np.int64)
        numbers = np.searchsorted(borders, self.topology.indices, side="right") - 1
        # Edges lie by row, and do so in each block, too.
        ordered = weights[np.argsort(numbers, kind="stable")]
        counts = np.bincount(numbers, minlength=len(borders) - 1)
        return tuple(np.split(ordered, np.cumsum(counts)[:-1]))


def _rows_of(topology: Topology, rows: Array, mine: Array | None) -> tuple[Array, Array, Array]:
    """Starts, sources and numbers of the edges into some vertices, from those that `mine` [V] marks."""
    indptr = topology.indptr
    lengths = indptr[rows + 1] - indptr[rows]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    edges = np.repeat(indptr[rows] - starts[:-1], lengths) + np.arange(starts[-1])
    sources = topology.indices[edges]
    if mine is None:
        return starts, sources, edges
    kept = mine[sources]
    before = np.concatenate([[0], np.cumsum(kept)])
    return before[starts], sources[kept], edges[kept]


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _count_blocks(indptr, columns, borders, starts):
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            b = np.searchsorted(borders, np.int64(columns[e]), side="right") - 1
            starts[b, i + 1] += 1


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _fill_blocks(indptr, columns, borders, starts, first, out):
    filled = np.zeros(len(first) - 1, np.int64)
    for i in range(len(indptr) - 1):
        for e in range(indptr[i], indptr[i + 1]):
            b = np.searchsorted(borders, np.int64(columns[e]), side="right") - 1
            out[first[b] + filled[b]] = columns[e] - borders[b]
            filled[b] += 1
