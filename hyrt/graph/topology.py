"""Edges of a graph as CSR over incoming edges, and its transpose."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_array
from hyrt.formatting import short_repr
from hyrt.graph import check, kernels
from hyrt.graph.kernels import (
    count_columns,
    hash_blocks,
    is_symmetric_csr,
    transpose_edge_ids,
    transpose_rows,
)
from hyrt.runtime.rng import vertex_streams
from hyrt.runtime.workers import current_workers

# Each range of columns reads all edges for the transpose, so there are few ranges.
_PASSES = 4
_MIN_COLUMNS = 1 << 12
_ROWS_AT_ONCE = 1 << 14
_HASH_KEYS = vertex_streams(np.uint64(1), np.arange(1 << 10))
_BLOCKS_AT_ONCE = 1 << 8


@dataclass(frozen=True, eq=False)
class Topology:
    """Edges in CSR format over incoming edges."""

    indptr: NDArray[np.int64]
    """Row pointers [V+1] int64: index of the first edge into each vertex."""
    indices: NDArray[Any]
    """Sources of the edges into each vertex, [E] int32 or int64, sorted in each row."""
    edge_types: NDArray[Any] | None = field(default=None, repr=False)
    """Type of each edge, [E] integers from 0, or None."""
    edge_weights: NDArray[np.float32] | None = field(default=None, repr=False)
    """Positive edge weights [E] float32, or None. Layers multiply by the weights; neighbour sampling may use
    weights as probabilities.
    """
    edge_features: NDArray[np.float32] | None = field(default=None, repr=False)
    """Feature row of each edge, [E, d] float32, or None."""
    edge_times: NDArray[Any] | None = field(default=None, repr=False)
    """Time of each edge, [E], or None. Link splits by time use it."""

    __repr__ = short_repr

    @property
    def num_vertices(self) -> int:
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        return int(self.indptr[-1])

    @property
    def nbytes(self) -> int:
        types = 0 if self.edge_types is None else self.edge_types.nbytes
        weights = 0 if self.edge_weights is None else self.edge_weights.nbytes
        features = 0 if self.edge_features is None else self.edge_features.nbytes
        times = 0 if self.edge_times is None else self.edge_times.nbytes
        return self.indptr.nbytes + self.indices.nbytes + types + weights + features + times

    @property
    def has_edge_values(self) -> bool:
        """Whether edges have weights or features, which blocks look up by edge index."""
        return self.edge_weights is not None or self.edge_features is not None

    @property
    def edge_rows(self) -> NDArray[np.float32] | None:
        """Edge data for layers [E, d]: the features, otherwise the weights as one column, otherwise None."""
        if self.edge_features is not None or self.edge_weights is None:
            return self.edge_features
        return self.edge_weights[:, None]

    @property
    def edge_width(self) -> int:
        rows = self.edge_rows
        return 0 if rows is None else int(rows.shape[1])

    @cached_property
    def checksum(self) -> int | None:
        """CRC-32 of hashes of all edges and their types, weights and features; identifies a dataset's edges.

        It does not depend on the storage or on integer dtypes. Topologies without self loops or held-out
        links, and the topology of a rank, keep the checksum of the whole dataset; None if it is unknown.
        Times are not included, because only link splits use them.
        """
        arrays = (self.indptr, self.indices, self.edge_types, self.edge_weights, self.edge_features)
        hashes = [None if array is None else (*array.shape, _hash_array(array)) for array in arrays]
        return zlib.crc32(repr(hashes).encode())

    def with_checksum_of(self, dataset: Topology) -> Topology:
        """Return this topology, which is derived from the edges of a dataset, with their checksum."""
        self.__dict__["checksum"] = dataset.checksum
        return self

    @cached_property
    def checked(self) -> Topology:
        """Topology itself, after its arrays have been checked, because kernels do not check bounds.

        Rows may be unsorted and have duplicate edges.
        """
        expected = {"indptr": (np.int64,), "indices": (np.int32, np.int64)}
        for key, dtypes in expected.items():
            array = getattr(self, key)
            if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype not in dtypes:
                names = " or ".join(dtype.__name__ for dtype in dtypes)
                kind = (
                    f"is {array.dtype} {list(array.shape)}"
                    if isinstance(array, np.ndarray)
                    else f"is of type {type(array).__name__}"
                )
                raise check.reject("Topology", key, f"{kind}: use a numpy array [n] of {names}")
        check.check_indptr("Topology", "indptr", self.indptr, len(self.indices), "indices")
        check.check_columns(
            "Topology", "indices", self.indices, self.indptr, self.num_vertices, "vertices", ordered=False
        )
        edges = self.num_edges
        if self.edge_types is not None:
            check_array("edge_types", self.edge_types, "iu", (edges,), "one type per edge")
            check.check_edge_types("Topology", "edge_types", self.edge_types, edges)
        if self.edge_weights is not None:
            check_array("edge_weights", self.edge_weights, "f", (edges,), "one weight per edge")
            check.check_edge_weights("Topology", "edge_weights", self.edge_weights, edges)
        if self.edge_features is not None:
            check_array("edge_features", self.edge_features, "f", (edges, None), "one row per edge")
        return self

    @cached_property
    def in_degrees(self) -> NDArray[np.int32]:
        """Number of edges into each vertex, [V] int32."""
        return np.diff(self.indptr).astype(np.int32)

    @cached_property
    def weighted_degrees(self) -> NDArray[np.float32]:
        """Sum of the weights of the edges into each vertex, [V] float32, computed in float64.

        Without weights, these are the in-degrees.
        """
        if self.edge_weights is None:
            return self.in_degrees.astype(np.float32)
        sums = np.zeros(self.num_vertices, np.float32)
        some = np.flatnonzero(self.in_degrees)
        if len(some):
            # reduceat does not support empty segments, so omit vertices without edges.
            sums[some] = np.add.reduceat(self.edge_weights, self.indptr[some], dtype=np.float64)
        return sums

    @cached_property
    def relation_weights(self) -> NDArray[np.float32]:
        """Sum of the weights of all edges with the type and the destination of each edge, [E] float32.

        Sums are computed in float64. The edges must have weights, and rows must be sorted by type, as in a
        heterogeneous graph.
        """
        types, weights = self.edge_types, self.edge_weights
        assert types is not None
        assert weights is not None
        begins = np.zeros(self.num_edges, np.bool_)
        begins[1:] = types[1:] != types[:-1]
        begins[self.indptr[:-1][self.in_degrees > 0]] = True
        starts = np.flatnonzero(begins)
        if not len(starts):
            return np.empty(0, np.float32)
        sums = np.add.reduceat(weights, starts, dtype=np.float64).astype(np.float32)
        return np.repeat(sums, np.diff(np.append(starts, self.num_edges)))

    @cached_property
    def gcn_scale(self) -> NDArray[np.float32]:
        """Factor of each endpoint in GCN normalization with self-loops, [V] float32: 1 / sqrt(d + 1) for the
        weighted in-degree d.
        """
        scale: NDArray[np.float32] = 1 / np.sqrt(self.weighted_degrees + np.float32(1))
        return scale

    @cached_property
    def num_self_loops(self) -> int:
        return int(self._self_loops_of_rows().sum())

    @property
    def is_self_loop(self) -> NDArray[np.bool_]:
        """Whether each edge is a self-loop, [E] bool."""
        marks = np.empty(self.num_edges, np.bool_)

        def mark(first: int, last: int) -> None:
            kernels.mark_self_loops(self.indptr, self.indices, first, last, marks)

        current_workers().run(mark, self.num_vertices, _ROWS_AT_ONCE)
        return marks

    @cached_property
    def without_self_loops(self) -> Topology:
        """Topology with all edges except self-loops; the topology itself if there are none."""
        if not self.num_self_loops:
            return self
        removed = np.zeros(self.num_vertices + 1, np.int64)
        np.cumsum(self._self_loops_of_rows(), out=removed[1:])
        keep = ~self.is_self_loop
        of_edges = (
            None if each is None else each[keep]
            for each in (self.edge_types, self.edge_weights, self.edge_features, self.edge_times)
        )
        found = Topology(self.indptr - removed, self.indices[keep], *of_edges)
        found.__dict__["num_self_loops"] = 0
        if "is_symmetric" in self.__dict__:
            found.__dict__["is_symmetric"] = self.is_symmetric
        return found.with_checksum_of(self)

    def _self_loops_of_rows(self) -> NDArray[np.int64]:
        """Return the number of self-loops of each vertex, [V]."""
        counts = np.empty(self.num_vertices, np.int64)

        def count(first: int, last: int) -> None:
            kernels.count_self_loops(self.indptr, self.indices, first, last, counts)

        current_workers().run(count, self.num_vertices, _ROWS_AT_ONCE)
        return counts

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether there are as many edges u -> v as v -> u for all u and v.

        This is computed once, by the worker team of the calling thread. Edge data are ignored and may differ
        between both directions. A topology with unsorted rows is considered directed.
        """
        differs: list[int] = []

        def compare(low: int, high: int) -> None:
            if not differs and not is_symmetric_csr(self.indptr, self.indices, low, high):
                differs.append(low)

        self._by_columns(compare)
        return not differs

    @cached_property
    def transposed(self) -> Topology:
        """Transpose: CSR over outgoing edges with sorted rows; the topology itself if it is symmetric.

        Edge data are read through `transposed_edges`. A symmetric graph needs no additional memory (GraphPy
        6.1), and a directed graph |V| + |E| integers.
        """
        if self.is_symmetric:
            return self
        counts = np.empty(self.num_vertices, np.int64)
        self._by_columns(lambda low, high: count_columns(self.indices, low, high, counts))
        indptr = np.zeros(self.num_vertices + 1, np.int64)
        np.cumsum(counts, out=indptr[1:])
        indices = np.empty_like(self.indices)
        self._by_columns(
            lambda low, high: transpose_rows(self.indptr, self.indices, indptr, low, high, indices)
        )
        transpose = Topology(indptr, indices)
        transpose.__dict__["is_symmetric"] = False
        return transpose

    @cached_property
    def transposed_edges(self) -> NDArray[Any]:
        """Index in this topology of each edge of `transposed`, [E] int32 (int64 from 2^31 edges).

        With these indices, the transpose reads edge tensors in place (GraphPy 6.1). They are computed only if
        edge tensors are used.
        """
        edges = np.empty(self.num_edges, np.int32 if self.num_edges < 2**31 else np.int64)
        starts = self.transposed.indptr
        self._by_columns(
            lambda low, high: transpose_edge_ids(self.indptr, self.indices, starts, low, high, edges)
        )
        return edges

    def _by_columns(self, work: Callable[[int, int], None]) -> None:
        """Run `work` on ranges of columns in the worker team of the calling thread."""
        columns = max(_MIN_COLUMNS, -(-self.num_vertices // _PASSES))
        current_workers().run(work, self.num_vertices, columns)


def _hash_array(array: NDArray[Any]) -> int:
    """Return a 64-bit hash of all elements and their order, independent of integer dtypes and of threads."""
    values = array.reshape(-1)
    if values.dtype.kind == "f":
        values = values.view(f"u{values.itemsize}")
    sums: list[int] = []

    def add(first: int, last: int) -> None:
        sums.append(int(hash_blocks(values, _HASH_KEYS, first, last)))

    current_workers().run(add, -(-len(values) // len(_HASH_KEYS)), _BLOCKS_AT_ONCE)
    return sum(sums) % 2**64
