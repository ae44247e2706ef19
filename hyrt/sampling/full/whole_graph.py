"""The whole graph as the block of every layer and step."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.sampling.block import Block, Ids, Transposed

if TYPE_CHECKING:
    import torch


class WholeGraph:
    """Makes blocks over all vertices and edges of a topology, which share one set of arrays.

    Destinations and sources are all vertices in order, so the columns of a block are the topology's own
    array. What is not there yet, degrees and the transpose, is built once, when it is first needed.

    Parameters
    ----------
    topology
        The graph's edges; not copied.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.vertices: Ids = np.arange(
            topology.num_vertices, dtype=np.int32 if topology.num_vertices < 2**31 else np.int64
        )
        """[V] the numbers 0..V-1, int32 where they fit."""

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
        topology, vertices = self.topology, self.vertices
        return Block(
            indptr=topology.indptr,
            columns=topology.indices,
            destinations=vertices,
            sources=None if in_place else vertices,
            num_src=len(vertices),
            degrees=topology.in_degrees,
            source_degrees=topology.in_degrees,
            layer=layer,
            step=step,
            seed=seed,
            source_scale=lambda: topology.gcn_scale,
            edge_types=topology.edge_types,
            kept=self,
        )
