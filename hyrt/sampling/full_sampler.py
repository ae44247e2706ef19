"""Sampler of full-graph training, in which all steps use the same blocks over the full graph."""

from __future__ import annotations

import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from hyrt.checks import check_flag, check_int
from hyrt.errors import ArgumentError
from hyrt.graph.graph import Graph
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block, Ids, Transposed
from hyrt.sampling.checks import check_sampler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler

if TYPE_CHECKING:
    import torch


class GatherOps(Protocol):
    """Factory of gather operations along edges, some of whose sources belong to other processes."""

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
        """Return the number of bytes that each process can cache between steps, in addition to graph and
        features.
        """
        ...

    @property
    def halo_exchange(self) -> Any:
        """Return the halo exchange for chunks: a `hyrt.fullgraph.chunks.halo_exchange.HaloExchange`."""
        ...

    def build_gather_op(self, gather: Any, dtype: np.dtype[Any], layer: int) -> Any:
        """Return the `hyrt.fullgraph.gather_ops.GatherOp` of a layer (1..L)."""
        ...


class FullGraph:
    """Builder of blocks over all vertices and edges of a topology; the blocks share one set of arrays.

    Parameters
    ----------
    topology
        The graph's edges; not copied. In a process that has only some of the vertices: the in-edges of the
        local vertices. Local vertices come first, followed by the remote vertices that are read.
    vertices
        [n] ids of the local vertices; by default all vertices.
    gather_ops
        Factory of the gather operations, if other processes have the other vertices.
    is_hetero
        Whether edge types are the relations of a heterogeneous graph.
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
        self._typed = is_hetero
        num = topology.num_vertices if vertices is None else len(vertices)
        self.rows: Ids = np.arange(num, dtype=np.int32 if num < 2**31 else np.int64)
        """[n] row numbers 0..n-1, int32 if the numbers fit."""
        self.vertices: Ids = self.rows if vertices is None else vertices
        """[n] vertex id of each row."""
        self.gather_ops = gather_ops
        """Factory of the gather operations; None if all vertices are local."""
        self.relations: Any = None
        """See `Block.relations`."""

    @property
    def is_distributed(self) -> bool:
        """Return whether some vertices belong to other processes, which may need rows even of a process
        without targets.
        """
        return self.gather_ops is not None

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
            Whether sources stay vertex ids, to be read from the feature matrix in place.
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
            run_weights=topology.relation_weights if self._typed and sums is not None else None,
            weighted_degrees=sums,
            source_weighted_degrees=sums,
            format_cache=self,
        ).trusted()


class FullSampler:
    """Sampler that returns the same mini-batch in every step: all training targets, in blocks of the full
    graph.

    A step has one unit, and an epoch has one step. Steps differ only in the keys of the dropout masks.

    Parameters
    ----------
    graph, targets, layers, seed, class_weights
        See `hyrt.sampling.sampler_settings.SamplerSettings.build`.
    """

    def __init__(
        self,
        graph: Graph,
        targets: Ids,
        layers: int,
        seed: int,
        class_weights: NDArray[np.float32] | None = None,
    ) -> None:
        graph, targets = check_sampler(graph, targets, seed, class_weights, allow_empty=True, layers=layers)
        self._layers = layers
        self._seed = seed
        self._whole = FullGraph(graph.topology, is_hetero=graph.types is not None)
        self._targets = targets.astype(self._whole.rows.dtype)
        self._labels = graph.vertices.select_labels(targets)
        self._target_weights = None if class_weights is None else class_weights[self._labels]

    def for_part(self, full_graph: FullGraph, chosen: NDArray[np.bool_], rows: Ids) -> Self:
        """Return a copy of the sampler for one part of the graph.

        Parameters
        ----------
        full_graph
            The blocks of the part.
        chosen
            [n] whether each target is in the part.
        rows
            Row index in the part of each chosen target.
        """
        other = copy.copy(self)
        other._whole = full_graph
        other._targets = rows.astype(full_graph.rows.dtype)
        other._labels = self._labels[chosen]
        other._target_weights = None if self._target_weights is None else self._target_weights[chosen]
        return other

    def steps_per_epoch(self) -> int:
        return 1

    def units(self, step: int) -> Ids:
        return np.array([check_int("step", step, -1)], np.int64)

    def sample(
        self,
        step: int,
        units: Ids,
        workers: Workers,
        *,
        in_place: bool = False,
        hops: HopSampler | None = None,
    ) -> MiniBatch:
        check_int("step", step, -(2**62))
        if hops is not None:
            raise ArgumentError("hops is given, but a whole graph has all edges: omit it")
        check_flag("in_place", in_place)
        return MiniBatch(
            step=step,
            targets=self._targets,
            blocks=[
                self._whole.block(layer, step=step, seed=self._seed, in_place=in_place and layer == 1)
                for layer in range(1, self._layers + 1)
            ],
            labels=self._labels,
            target_weights=self._target_weights,
            normalizer=float(len(self._targets)),
            target_rows=self._targets,
            full_graph=self._whole,
        ).trusted()
