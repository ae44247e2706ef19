"""Gather operations that run as compiled edge loops: built-in layers on devices, and user-defined layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.fullgraph.plan import DestinationSubset, DropoutKey, GatherContext
from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.graph.topology import Topology
from hyrt.nn.fused.edge_loop import Edges
from hyrt.nn.fused.fused_gather import (
    FusedGather,
    SumLoops,
    edge_keys,
    masked_attention_gather,
    max_loops,
    run_attention_backward,
)
from hyrt.nn.fused.loop_backend import run_loop
from hyrt.nn.layer import AttentionSum
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.message_passing.program import check_slots
from hyrt.nn.operators.attention_dropout import AttentionDropout

Array = NDArray[Any]
Arrays = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class GraphEdges:
    """All edges of a graph in both directions, with the scales of the destinations."""

    topology: Topology
    has_loops: bool = False
    """Whether every vertex has a self-loop in addition to its edges."""
    row_scale: Array | None = None
    loop_scale: Array | None = None
    """Scale of the self-loops; `loop_scale` and `row_scale` are as in `Edges`."""
    factors: Array | None = None
    """Edge factors in the order of destinations, [E]; None if all are one."""

    __repr__ = short_repr

    def by_destination(self, destinations: DestinationSubset | None) -> Edges:
        """Return the edges into all vertices or into a subset, grouped by destination."""
        edges = self._edges(self.topology)
        return edges if destinations is None else replace(edges, rows=destinations.vertices)

    def by_source(self, destinations: DestinationSubset | None) -> Edges:
        """Return the same edges, grouped by source."""
        edges = self._edges(self.topology.transposed)
        if self.factors is not None:
            edges = replace(edges, numbers=self.topology.transposed_edges)
        return edges if destinations is None else replace(edges, positions=destinations.positions)

    def _edges(self, topology: Topology) -> Edges:
        return Edges(
            indptr=topology.indptr,
            columns=topology.indices,
            factors=self.factors,
            row_scale=self.row_scale,
            loop_scale=self.loop_scale,
            loops=self.topology.num_vertices if self.has_loops else 0,
        )


@dataclass(frozen=True, slots=True)
class LoopSumGatherOp:
    """Sums of source rows with a scale per end: see `hyrt.fullgraph.gather_ops.LinearGatherOp`."""

    edges: GraphEdges
    sum: SumLoops
    reads_messages_in_backward: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    @classmethod
    def from_scales(
        cls,
        topology: Topology,
        row_scale: Array | None,
        source_scale: Array | None,
        self_scale: Array | None,
        weights: Array | None = None,
    ) -> LoopSumGatherOp:
        """Build a sum with scales [V] of destinations, sources and self-loops, and edge weights [E].

        A self-loop is an edge, which is multiplied by the scale of its source, so its scale is divided by it.
        """
        loop_scale = self_scale
        if self_scale is not None and source_scale is not None:
            loop_scale = self_scale / source_scale
        edges = GraphEdges(topology, self_scale is not None, row_scale, loop_scale, weights)
        return cls(edges, SumLoops(source_scale, self_scale is not None))

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        edges, rows = self.edges.by_destination(context.destinations), loop_rows(messages[0])
        self.sum.forward(edges, rows, dense := _dense(out), context.workers)
        _copy_to_output(dense, out)
        return ()

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        result = np.empty_like(out[0]) if context.accumulate else out[0]
        self.sum.backward(self.edges.by_source(context.destinations), grad, result, context.workers)
        if context.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


@dataclass(frozen=True, slots=True)
class LoopMaxGatherOp:
    """Column-wise maximum over source rows: see `hyrt.fullgraph.gather_ops.MaxGatherOp`."""

    edges: GraphEdges
    reads_messages_in_backward: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        winners = None if context.memory is None else context.memory.take(out.shape, np.int32)
        rows, dense = loop_rows(messages[0]), _dense(out)
        loop, _ = max_loops(rows.shape[1])
        run_loop(
            loop,
            self.edges.by_destination(context.destinations),
            [rows],
            (dense, winners),
            None,
            context.workers,
        )
        _copy_to_output(dense, out)
        return () if winners is None else (winners,)

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        result = np.empty_like(out[0]) if context.accumulate else out[0]
        _, loop = max_loops(grad.shape[1])
        run_loop(
            loop, self.edges.by_source(context.destinations), [grad], (result,), saved[0], context.workers
        )
        if context.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


@dataclass(frozen=True, slots=True)
class LoopAttentionGatherOp:
    """Sums of source rows weighted by attention: see `hyrt.fullgraph.gather_ops.AttentionGatherOp`.

    The softmax keeps a running maximum from chunk to chunk, so it is exact for any number of chunks.
    """

    edges: GraphEdges
    attention: AttentionSum
    layer: int
    """Number of the layer, 1..L."""
    vertices: Array | None = None
    """Vertex ids that key the dropout masks, [V]; row indices by default."""
    reads_messages_in_backward: bool = True
    parameters: tuple[torch.nn.Parameter, ...] = ()

    __repr__ = short_repr

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        gather, operands = self._loops(messages, context.masks)
        saved: Arrays = ()
        memory, edges = context.memory, self.edges.by_destination(context.destinations)
        if memory is not None:
            saved = (
                memory.take((len(out), self.attention.heads), out.dtype),
                memory.take(out.shape, out.dtype),
            )
        gather.forward(edges, operands, out, saved[0] if saved else None, context.workers)
        if saved:
            # Keep a copy: the gradient overwrites the gathered rows, and the backward pass needs both.
            np.copyto(saved[1], out)
        return saved

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        assert not context.accumulate, "attention messages are separate matrices"
        gather, operands = self._loops(messages, context.masks)
        denominators, gathered = saved
        rows, of_sources, of_destinations = out
        run_attention_backward(
            gather,
            self.edges.by_destination(context.destinations),
            self.edges.by_source(context.destinations),
            operands,
            (denominators, gathered),
            grad,
            (rows, of_sources, of_destinations),
            context.workers,
        )
        return ()

    def _loops(
        self, messages: tuple[Array, ...], masks: DropoutKey | None
    ) -> tuple[FusedGather, list[Array]]:
        attention, mask = self.attention, None
        if masks is not None and attention.dropout:
            mask = AttentionDropout.from_rate(attention.dropout, masks.seed, masks.step, self.layer)
        gather = masked_attention_gather(
            attention.heads, messages[0].shape[1] // attention.heads, attention.slope, mask
        )
        operands = list(messages)
        if mask is not None:
            names = np.arange(len(messages[0])) if self.vertices is None else self.vertices
            operands += edge_keys(mask, attention.heads, names, names)
        return gather, operands


def loop_rows(rows: Array) -> Array:
    """Return rows in the form that loops read: C-contiguous float32, in place if possible."""
    return np.ascontiguousarray(to_numpy_dtype(rows), np.float32)


def _dense(out: Array) -> Array:
    """Return `out`, or a C-contiguous matrix of the same shape if it is a slice of columns."""
    return out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)


def _copy_to_output(dense: Array, out: Array) -> None:
    if dense is not out:
        np.copyto(out, dense)


class SagaGatherOp:
    """`hyrt.fullgraph.gather_ops.GatherOp` for messages that read both ends of the edges.

    Raises UnsupportedModelError if the layer reads edge data that the graph lacks, if it takes the maximum of
    edge-dependent messages in a graph with parallel edges, or if a vertex has more edges than the layer has
    slots.
    """

    reads_messages_in_backward = True

    def __init__(self, gather: SagaGather, topology: Topology, dtype: np.dtype[Any]) -> None:
        degrees = topology.in_degrees
        if (
            gather.program.edge_fields
            and gather.program.accumulate == "max"
            and _has_parallel_edges(topology)
        ):
            raise UnsupportedModelError(
                f"{type(gather.layer).__name__} takes the maximum of messages that read edge weights or edge "
                "features, which requires a graph without repeated edges: remove them with hyrt data convert "
                "--unique"
            )
        if slots := gather.program.slots:
            check_slots(gather.layer, slots, degrees + gather.loops, np.arange(len(degrees)))
        self.gather = gather
        self.topology = topology
        self.parameters = tuple(gather.parameters)
        self._fixed = gather.fixed_rows(degrees, degrees, topology, dtype)
        self._scale: Array | None = None
        if gather.program.accumulate == "mean":
            self._scale = dtype.type(1) / np.maximum(degrees + int(gather.loops), 1).astype(dtype)

    def forward(self, messages: Arrays, out: Array, context: GatherContext) -> Arrays:
        take = None if context.memory is None else context.memory.take
        return self.gather.forward(
            self._edges(context.destinations), messages, self._fixed, out, context.workers, take
        )

    def backward(
        self, messages: Arrays, saved: Arrays, grad: Array, out: Arrays, context: GatherContext
    ) -> Sequence[torch.Tensor]:
        assert not context.accumulate, "messages of both ends are separate matrices"
        return self.gather.backward(
            *(
                self._edges(context.destinations),
                lambda: self._by_source(context.destinations),
                messages,
                self._fixed,
            ),
            *(saved, grad, out, context.workers),
        )

    def _edges(self, at: DestinationSubset | None) -> Edges:
        return Edges(
            indptr=self.topology.indptr,
            columns=self.topology.indices,
            rows=None if at is None else at.vertices,
            row_scale=self._scale,
            loop_scale=self._scale,
            loops=self.topology.num_vertices if self.gather.loops else 0,
        )

    def _by_source(self, at: DestinationSubset | None) -> Edges:
        transposed = self.topology.transposed
        return Edges(
            indptr=transposed.indptr,
            columns=transposed.indices,
            positions=None if at is None else at.positions,
            numbers=self.topology.transposed_edges if self.gather.program.edge_fields else None,
            row_scale=self._scale,
            loop_scale=self._scale,
            loops=self.topology.num_vertices if self.gather.loops else 0,
        )


def _has_parallel_edges(topology: Topology) -> bool:
    """Return whether parallel edges exist. A maximum stores only its source, not the edge."""
    equal = topology.indices[1:] == topology.indices[:-1]
    starts = topology.indptr[1:-1]
    equal[starts[(starts > 0) & (starts < topology.num_edges)] - 1] = False
    return bool(equal.any())
