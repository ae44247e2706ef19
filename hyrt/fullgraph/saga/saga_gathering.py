"""Gather of a `SagaLayer` over a full graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import UnsupportedModel
from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.graph.topology import Topology
from hyrt.nn.fused.edges import Edges
from hyrt.nn.saga.combining import check_slots
from hyrt.nn.saga.gather import SagaSum

Array = NDArray[Any]
Arrays = tuple[Array, ...]


class SagaGathering:
    """Combines messages that read both ends of all edges; see `hyrt.fullgraph.gathering.Gathering`.

    Parameters
    ----------
    what
        The messages and how they are combined.
    topology
        All edges.
    dtype
        The dtype of the messages.

    Raises
    ------
    UnsupportedModel
        If the layer reads what edges have not, or takes the largest of messages by what they have where some
        edges join the same two vertices; or if a vertex has more edges than the layer has slots for.
    """

    reads_messages_back = True

    def __init__(self, what: SagaSum, topology: Topology, dtype: np.dtype[Any]) -> None:
        degrees = topology.in_degrees
        if what.program.edge_reads and what.program.accumulate == "max" and _has_parallel_edges(topology):
            raise UnsupportedModel(
                f"{type(what.layer).__name__} takes the maximum of messages that read weights or features of "
                "edges, which works only without repeated edges, but this graph has some: remove them with "
                "hyrt data convert --unique"
            )
        if slots := what.program.slots:
            check_slots(what.layer, slots, degrees + what.loops, np.arange(len(degrees)))
        self.what = what
        self.topology = topology
        self.parameters = tuple(what.parameters)
        """The parameters that edges read."""
        self._fixed = what.fixed_rows(degrees, degrees, topology, dtype)
        self._scale: Array | None = None
        if what.program.accumulate == "mean":
            self._scale = dtype.type(1) / np.maximum(degrees + int(what.loops), 1).astype(dtype)

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        take = None if over.memory is None else over.memory.take
        return self.what.forward(self._edges(over.at), messages, self._fixed, out, over.workers, take)

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        assert not over.accumulate, "messages of both ends are separate matrices"
        return self.what.backward(
            *(self._edges(over.at), lambda: self._by_source(over.at), messages, self._fixed),
            *(kept, grad, out, over.workers),
        )

    def _edges(self, at: Destinations | None) -> Edges:
        return Edges(
            indptr=self.topology.indptr,
            columns=self.topology.indices,
            rows=None if at is None else at.vertices,
            row_scale=self._scale,
            loop_scale=self._scale,
            loops=self.topology.num_vertices if self.what.loops else 0,
        )

    def _by_source(self, at: Destinations | None) -> Edges:
        transposed = self.topology.transposed
        return Edges(
            indptr=transposed.indptr,
            columns=transposed.indices,
            positions=None if at is None else at.positions,
            numbers=self.topology.transposed_edges if self.what.program.edge_reads else None,
            row_scale=self._scale,
            loop_scale=self._scale,
            loops=self.topology.num_vertices if self.what.loops else 0,
        )


def _has_parallel_edges(topology: Topology) -> bool:
    """Return whether several edges join the same two vertices; the winner of a maximum is stored as its
    source only.
    """
    equal = topology.indices[1:] == topology.indices[:-1]
    starts = topology.indptr[1:-1]
    equal[starts[(starts > 0) & (starts < topology.num_edges)] - 1] = False
    return bool(equal.any())
