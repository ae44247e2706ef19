"""The whole graph as the block of every layer and step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.sampling.block import Block, Ids, Transposed

if TYPE_CHECKING:
    import torch


class Gatherings(Protocol):
    """Makes what combines messages along edges whose sources are partly in other processes."""

    @property
    def num_vertices(self) -> int:
        """The vertices of the graph, in all processes."""
        ...

    @property
    def num_edges(self) -> int:
        """The edges of the graph, in all processes."""
        ...

    @property
    def kept_bytes(self) -> int:
        """What every process has the memory to keep between steps, beside graph and features."""
        ...

    @property
    def travelling(self) -> Any:
        """What brings rows to devices that compute in chunks: a
        `hyrt.fullgraph.chunks.travelling_rows.TravellingRows`.
        """
        ...

    def gathering(self, what: Any, dtype: np.dtype[Any], layer: int) -> Any:
        """The `hyrt.fullgraph.gathering.Gathering` that a layer (1..L) asks for."""
        ...


class WholeGraph:
    """Makes blocks over all vertices and edges of a topology, which share one set of arrays.

    Destinations and sources are all vertices in order, so the columns of a block are the topology's own
    array. What is not there yet, degrees and the transpose, is built once, when it is first needed.

    Parameters
    ----------
    topology
        The graph's edges; not copied. Of a process that has some of the vertices, the edges into those, which
        come first, from all that it reads.
    vertices
        [n] the numbers in the graph of the vertices that are computed here; all by default.
    gatherings
        Makes the gatherings where other processes have the other vertices.
    typed
        Whether types of edges are the relations of a typed graph.
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
        """[n] the numbers 0..n-1 of the rows that are computed, int32 where they fit."""
        self.vertices: Ids = self.rows if vertices is None else vertices
        """[n] the vertices of these rows."""
        self.gatherings = gatherings
        """Makes the gatherings; None where all vertices are here."""
        self.relations: Any = None
        """As `Block.relations`."""

    @property
    def is_shared(self) -> bool:
        """Whether other processes have some vertices: they may need rows of one that has no targets."""
        return self.gatherings is not None

    @cached_property
    def transposed(self) -> Transposed:
        """The edges by source. Where the graph is symmetric, rows and their starts are the topology's own."""
        turned = self.topology.transposed
        return Transposed(turned.indptr, turned.indices, self.topology.transposed_edges)

    @cached_property
    def edge_index(self) -> torch.Tensor:
        """[2, E] int64 tensor of sources and destinations, the form PyG's layers take."""
        import torch

        rows = np.repeat(np.arange(self.topology.num_vertices), self.topology.in_degrees)
        return torch.from_numpy(np.stack([self.topology.indices.astype(np.int64), rows]))

    def block(self, layer: int, *, step: int, seed: int, in_place: bool = False) -> Block:
        """A block of all edges.

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
