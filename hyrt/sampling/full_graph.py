"""The full graph as one block per layer, and the layers' gather operations on it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.sampling.block import Block, Ids, Transposed

if TYPE_CHECKING:
    import torch


class GatherOps(Protocol):
    """Factory of gather operations along edges, if some sources belong to other processes."""

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices of the graph over all processes."""
        ...

    @property
    def num_edges(self) -> int:
        """Return the number of edges of the graph over all processes."""
        ...

    @property
    def cache_bytes(self) -> int:
        """Return the bytes that each process can cache between steps, in addition to graph and features."""
        ...

    @property
    def halo_exchange(self) -> Any:
        """Return the halo exchange for chunks: a `hyrt.fullgraph.chunks.halo_exchange.RowExchange`."""
        ...

    def build_gather_op(self, gather: Any, dtype: np.dtype[Any], layer: int) -> Any:
        """Return the `hyrt.fullgraph.gather_ops.GatherOp` of a layer (1..L)."""
        ...


class FullGraph:
    """Builder of blocks over all vertices and edges of a topology; the blocks share one set of arrays.

    The topology is not copied. In a process that has only some of the vertices, it has the in-edges of the
    local vertices, which come first, followed by the remote vertices that are read. `vertices` [n] are the
    ids of the local vertices, by default all, and `gather_ops` is None if all vertices are local. In a
    heterogeneous graph (`is_hetero`), edge types are its relations.
    """

    def __init__(
        self,
        topology: Topology,
        vertices: Ids | None = None,
        gather_ops: GatherOps | None = None,
        *,
        is_hetero: bool = False,
    ) -> None:
        self.topology = topology
        self._is_hetero = is_hetero
        num = topology.num_vertices if vertices is None else len(vertices)
        self.rows: Ids = np.arange(num, dtype=np.int32 if num < 2**31 else np.int64)
        """[n] row numbers 0..n-1, int32 if the numbers fit."""
        self.vertices: Ids = self.rows if vertices is None else vertices
        """[n] vertex id of each row."""
        self.gather_ops = gather_ops
        self.relations: Any = None
        """See `Block.relations`."""

    @property
    def is_distributed(self) -> bool:
        """Return whether other processes have vertices, and may need rows from a process without targets."""
        return self.gather_ops is not None

    @cached_property
    def transposed(self) -> Transposed:
        """Return the edges by source; arrays are shared with the topology if the graph is symmetric."""
        transposed = self.topology.transposed
        return Transposed(transposed.indptr, transposed.indices, self.topology.transposed_edges)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """Return a [2, E] int64 tensor of sources and destinations, as in PyG."""
        import torch

        rows = np.repeat(np.arange(self.topology.num_vertices), self.topology.in_degrees)
        return torch.from_numpy(np.stack([self.topology.indices.astype(np.int64), rows]))

    def block(self, layer: int, *, step: int, seed: int, in_place: bool = False) -> Block:
        """Build a block of all edges for a layer, 1..L from the input.

        `step` and `seed` are the key of the dropout masks. If `in_place`, sources stay vertex ids, to be read
        from the feature matrix in place.
        """
        topology, rows = self.topology, self.rows
        sums = None if topology.edge_weights is None else topology.weighted_degrees
        return Block(
            indptr=topology.indptr,
            columns=topology.indices,
            destinations=rows,
            sources=None if in_place else rows,
            num_src=len(rows),
            degrees=topology.in_degrees,
            source_degrees=topology.in_degrees,
            layer=layer,
            step=step,
            seed=seed,
            source_scale=lambda: topology.gcn_scale,
            edge_types=topology.edge_types,
            edge_weights=topology.edge_weights,
            edge_features=topology.edge_features,
            run_weights=topology.relation_weights if self._is_hetero and sums is not None else None,
            weighted_degrees=sums,
            source_weighted_degrees=sums,
            format_cache=self,
        ).trusted()
