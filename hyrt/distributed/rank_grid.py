"""Two-dimensional grid of ranks, and the edges into a rank's block with their remote sources (halo)."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.topology import Topology
from hyrt.runtime.numba_cache import nb

MAX_ROUNDS = 4
"""Maximum number of exchange rounds per product. In each round, every rank sends a message to every other
rank; received rows are multiplied during the next round.
"""


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Grid of P / c x c ranks. The ranks of a grid row all hold the same block of vertices (1.5D).

    Rank (i, j) adds up the contributions of the blocks of column j to block i. With c = 1, the only column
    has all blocks (1D).
    """

    num_ranks: int
    """P, the number of ranks."""
    replication: int
    """c, the replication factor, a divisor of P."""
    rank: int
    """Number of this rank, i * c + j."""

    @property
    def num_blocks(self) -> int:
        """Number of grid rows, which is the number of vertex blocks."""
        return self.num_ranks // self.replication

    @property
    def row(self) -> int:
        """Grid row i, the block of this rank."""
        return self.rank // self.replication

    @property
    def column(self) -> int:
        """Grid column j of this rank."""
        return self.rank % self.replication

    def owner(self, block: int) -> int:
        """Return the rank that represents a block: the first rank that holds it."""
        return block * self.replication

    def column_of(self, block: int) -> int:
        """Return the grid column whose ranks multiply with a block."""
        return block * self.replication // self.num_blocks

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks with whose rows this rank multiplies, in ascending order."""
        return tuple(k for k in range(self.num_blocks) if self.column_of(k) == self.column)

    @property
    def multiplies_local(self) -> bool:
        """Whether this rank multiplies with the rows of its own block."""
        return self.column_of(self.row) == self.column

    @property
    def rounds(self) -> tuple[tuple[int, ...], ...]:
        """Grid rows that send rows of `blocks` to this rank, per exchange round.

        In each round, the rank receives from the grid rows at certain distances after its own, and sends to
        the grid rows at the same distances before its own.
        """
        rounds: list[list[int]] = [[] for _ in range(self.num_rounds)]
        for distance in range(1, self.num_blocks):
            other = (self.row + distance) % self.num_blocks
            if self.column_of(other) == self.column:
                rounds[self._round_of(distance)].append(other)
        return tuple(tuple(sorted(members)) for members in rounds)

    @property
    def receivers(self) -> tuple[tuple[int, ...], ...]:
        """Grid rows to which this rank sends its rows, per exchange round."""
        rounds: list[list[int]] = [[] for _ in range(self.num_rounds)]
        if self.multiplies_local:
            for distance in range(1, self.num_blocks):
                rounds[self._round_of(distance)].append((self.row - distance) % self.num_blocks)
        return tuple(tuple(sorted(members)) for members in rounds)

    @property
    def num_rounds(self) -> int:
        """Number of exchange rounds of a product."""
        return min(MAX_ROUNDS, self.num_blocks - 1)

    def _round_of(self, distance: int) -> int:
        return (distance - 1) * self.num_rounds // (self.num_blocks - 1)


Array = NDArray[Any]


@dataclass(frozen=True)
class PartEdges:
    """Edges into a block. Its n local vertices are numbered first, then the h remote sources.

    Remote vertices are ordered by the exchange round that receives their rows, and then by block.
    """

    grid: RankGrid
    vertices: Array
    """Vertex ids in the whole graph, [n + h]."""
    num_local: int
    """Number n of local vertices."""
    round_starts: tuple[int, ...]
    """First row of each exchange round, [rounds + 1]; the last entry is n + h."""
    block_counts: tuple[tuple[int, ...], ...]
    """Number of rows received from each grid row in `RankGrid.rounds`, per exchange round."""
    topology: Topology
    """Edges into the block's vertices from the blocks of the rank's grid column, with renumbered vertices.

    The edges of a row keep their order in the whole graph. Remote vertices have no incoming edges. In-degrees
    refer to the whole graph.
    """

    __repr__ = short_repr

    @classmethod
    def select(cls, grid: RankGrid, topology: Topology, blocks: Array, *, oblivious: bool) -> PartEdges:
        """Select and renumber the edges of a rank.

        `topology` has at least the edges into this rank's block, with in-degrees in the whole graph. `blocks`
        [V] is the block of each vertex. With `oblivious`, all rows of the other blocks are received, whether
        or not they are needed.
        """
        local_vertices = np.flatnonzero(blocks == grid.row)
        is_column_block = np.zeros(grid.num_blocks, np.bool_)
        is_column_block[list(grid.blocks)] = True
        starts, sources, edge_ids = _incoming_edges(
            topology, local_vertices, None if is_column_block.all() else is_column_block[blocks]
        )
        edge_data = [
            None if array is None else array[edge_ids]
            for array in (topology.edge_types, topology.edge_weights, topology.edge_features)
        ]
        needed = np.zeros(topology.num_vertices, np.bool_)
        needed[sources] = True
        groups: list[Array] = []
        counts: list[tuple[int, ...]] = []
        round_starts = [len(local_vertices)]
        for members in grid.rounds:
            round_groups = [
                np.flatnonzero((blocks == k) if oblivious else ((blocks == k) & needed)) for k in members
            ]
            groups += round_groups
            counts.append(tuple(len(array) for array in round_groups))
            round_starts.append(round_starts[-1] + sum(counts[-1]))
        vertices = np.concatenate([local_vertices, *groups])
        new_ids = np.empty(topology.num_vertices, topology.indices.dtype)
        new_ids[vertices] = np.arange(len(vertices), dtype=new_ids.dtype)
        indptr = np.concatenate([starts, np.full(len(vertices) - len(local_vertices), starts[-1])])
        edges = Topology(indptr, new_ids[sources], *edge_data)
        # Set the degrees in the whole graph, which would otherwise be counted from the local edges.
        edges.__dict__["in_degrees"] = topology.in_degrees[vertices]
        edges.__dict__["weighted_degrees"] = topology.weighted_degrees[vertices]
        edges.__dict__["is_symmetric"] = False
        return cls(grid, vertices, len(local_vertices), tuple(round_starts), tuple(counts), edges)

    @property
    def num_rows(self) -> int:
        """Number n + h of rows."""
        return len(self.vertices)

    @cached_property
    def blocks(self) -> tuple[tuple[Array, Array], ...]:
        """Edges grouped by source: local sources, then one group per exchange round, as CSR arrays.

        Each group is (indptr [n + 1], columns [edges]); columns are relative to the group's first row.
        """
        borders = np.array([0, *self.round_starts], np.int64)
        num = len(borders) - 1
        indptr = self.topology.indptr[: self.num_local + 1]
        starts = np.zeros((num, self.num_local + 1), np.int64)
        _count_blocks(indptr, self.topology.indices, borders, starts)
        np.cumsum(starts, axis=1, out=starts)
        first = np.concatenate([[0], np.cumsum(starts[:, -1])])
        columns = np.empty(self.topology.num_edges, self.topology.indices.dtype)
        _fill_blocks(indptr, self.topology.indices, borders, starts, first, columns)
        return tuple((starts[b], columns[first[b] : first[b + 1]]) for b in range(num))

    @cached_property
    def block_weights(self) -> tuple[Array | None, ...]:
        """Edge weights for each group of `blocks`; None if edges are unweighted."""
        weights = self.topology.edge_weights
        if weights is None:
            return (None,) * (len(self.round_starts))
        borders = np.array([0, *self.round_starts], np.int64)
        numbers = np.searchsorted(borders, self.topology.indices, side="right") - 1
        # The sort is stable because edges are ordered by row, also within each group.
        ordered = weights[np.argsort(numbers, kind="stable")]
        counts = np.bincount(numbers, minlength=len(borders) - 1)
        return tuple(np.split(ordered, np.cumsum(counts)[:-1]))


def _incoming_edges(topology: Topology, rows: Array, is_selected: Array | None) -> tuple[Array, Array, Array]:
    """Return starts, sources and edge ids of the edges into `rows` from the vertices in a mask [V]."""
    indptr = topology.indptr
    lengths = indptr[rows + 1] - indptr[rows]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    edges = np.repeat(indptr[rows] - starts[:-1], lengths) + np.arange(starts[-1])
    sources = topology.indices[edges]
    if is_selected is None:
        return starts, sources, edges
    keep = is_selected[sources]
    num_selected = np.concatenate([[0], np.cumsum(keep)])
    return num_selected[starts], sources[keep], edges[keep]


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
