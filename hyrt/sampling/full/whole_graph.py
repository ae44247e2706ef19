"""Full graph as the block of every layer and step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.sampling.block import Block, Ids, Transposed

if TYPE_CHECKING:
    import torch


class Gatherings(Protocol):
    """Factory of gather operations along edges whose sources are partly in other processes."""

    @property
    def num_vertices(self) -> int:
        """Return the number of vertices of the graph, in all processes."""
        ...

    @property
    def num_edges(self) -> int:
        """Return the number of edges of the graph, in all processes."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Return the bytes that every process can cache between steps, besides graph and features."""
        ...

    @property
    def travelling(self) -> Any:
        """Return the halo exchange for chunks: a `hyrt.fullgraph.chunks.travelling_rows.TravellingRows`."""
        ...

    def gathering(self, what: Any, dtype: np.dtype[Any], layer: int) -> Any:
        """Return the `hyrt.fullgraph.gathering.Gathering` of a layer (1..L)."""
        ...


class WholeGraph:
    """Builds blocks over all vertices and edges of a topology, which share one set of arrays.

    Parameters
    ----------
    topology
        The graph's edges; not copied. Of a process that has some of the vertices, the edges into those, which
        come first, from all that it reads.
    vertices
        [n] ids of the vertices that are computed here; all by default.
    gatherings
        Builds the gathers if other processes have the other vertices.
    typed
        Whether edge types are the relations of a heterogeneous graph.
    """

    def __init__(
        self,
        topology: Topology,
        vertices: Ids | None = None,
        gatherings: Gatherings | None = None,
        *,
        typed: bool = False,
    ) -> None:
        self.topology = topology
        self._typed = typed
        num = topology.num_vertices if vertices is None else len(vertices)
        self.rows: Ids = np.arange(num, dtype=np.int32 if num < 2**31 else np.int64)
        """[n] the row numbers 0..n-1, int32 if they fit."""
        self.vertices: Ids = self.rows if vertices is None else vertices
        """[n] the vertex ids of the rows."""
        self.gatherings = gatherings
        """Builds the gathers; None if all vertices are local."""
        self.relations: Any = None
        """As `Block.relations`."""

    @property
    def is_shared(self) -> bool:
        """Return whether other processes have some vertices; they may need rows of a process without
        targets.
        """
        return self.gatherings is not None

    @cached_property
    def transposed(self) -> Transposed:
        """Return the edges by source; arrays are shared with the topology if the graph is symmetric."""
        turned = self.topology.transposed
        return Transposed(turned.indptr, turned.indices, self.topology.transposed_edges)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """Return a [2, E] int64 tensor of sources and destinations, as in PyG."""
        import torch

        rows = np.repeat(np.arange(self.topology.num_vertices), self.topology.in_degrees)
        return torch.from_numpy(np.stack([self.topology.indices.astype(np.int64), rows]))

    def block(self, layer: int, *, step: int, seed: int, in_place: bool = False) -> Block:
        """Build a block of all edges.

        Parameters
        ----------
        layer
            1..L, counted from the input.
        step, seed
            The key of the dropout masks.
        in_place
            Leave the sources unlabelled, to be read from the feature matrix in place.
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
            run_weights=topology.run_weights if self._typed and sums is not None else None,
            weighted_degrees=sums,
            source_weighted_degrees=sums,
            kept=self,
        ).trusted()
