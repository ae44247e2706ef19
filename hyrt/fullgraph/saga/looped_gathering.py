"""Gathers of the built-in layers over a full graph on a device that runs edge loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.row_stage import Masks
from hyrt.graph.narrow.narrow_rows import as_numbers
from hyrt.graph.topology import Topology
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.fused.layer_loops import (
    LoopedSum,
    edge_keys,
    largest_loops,
    looped_attention,
    run_attention_back,
)
from hyrt.nn.fused.loop_runner import run_loop
from hyrt.nn.layer_parts import AttentionSum
from hyrt.nn.operators.attention_mask import AttentionMask
from hyrt.quantities import one_line

Array = NDArray[Any]
Arrays = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class WholeEdges:
    """All edges of a graph in both directions, with the scales of destinations."""

    topology: Topology
    has_loops: bool = False
    """Whether every vertex has a self loop in addition to its edges."""
    row_scale: Array | None = None
    loop_scale: Array | None = None
    """`row_scale` and `loop_scale`: see `Edges`."""
    factors: Array | None = None
    """[E] edge factors by destination; None if all are one."""

    __repr__ = one_line

    def by_destination(self, at: Destinations | None) -> Edges:
        """Return the edges into all vertices, or into a subset."""
        edges = self._edges(self.topology)
        return edges if at is None else replace(edges, rows=at.vertices)

    def by_source(self, at: Destinations | None) -> Edges:
        """Return the same edges by source."""
        edges = self._edges(self.topology.transposed)
        if self.factors is not None:
            edges = replace(edges, numbers=self.topology.transposed_edges)
        return edges if at is None else replace(edges, positions=at.positions)

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
class LoopedSumGathering:
    """Sums of source rows with a scale per end; see `hyrt.fullgraph.gathering.LinearGathering`."""

    edges: WholeEdges
    sum: LoopedSum
    reads_messages_back: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    @classmethod
    def of(
        cls,
        topology: Topology,
        row_scale: Array | None,
        source_scale: Array | None,
        own: Array | None,
        weights: Array | None = None,
    ) -> LoopedSumGathering:
        """Build a sum with scales [V] of destinations, of sources and of self loops, and factors [E] of
        edges.

        A self loop is an edge, so its scale is divided by the scale of the source.
        """
        loop_scale = own
        if own is not None and source_scale is not None:
            loop_scale = own / source_scale
        edges = WholeEdges(topology, own is not None, row_scale, loop_scale, weights)
        return cls(edges, LoopedSum(source_scale, own is not None))

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        edges, rows = self.edges.by_destination(over.at), loop_rows(messages[0])
        self.sum.forward(edges, rows, dense := _dense(out), over.workers)
        _copy_back(dense, out)
        return ()

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        result = np.empty_like(out[0]) if over.accumulate else out[0]
        self.sum.backward(self.edges.by_source(over.at), grad, result, over.workers)
        if over.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


@dataclass(frozen=True, slots=True)
class LoopedMaximumGathering:
    """Column-wise maximum over source rows; see `hyrt.fullgraph.gathering.MaximumGathering`."""

    edges: WholeEdges
    reads_messages_back: bool = False
    parameters: tuple[torch.nn.Parameter, ...] = ()

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        winners = None if over.memory is None else over.memory.take(out.shape, np.int32)
        rows, dense = loop_rows(messages[0]), _dense(out)
        loop, _ = largest_loops(rows.shape[1])
        run_loop(loop, self.edges.by_destination(over.at), [rows], (dense, winners), None, over.workers)
        _copy_back(dense, out)
        return () if winners is None else (winners,)

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        result = np.empty_like(out[0]) if over.accumulate else out[0]
        _, loop = largest_loops(grad.shape[1])
        run_loop(loop, self.edges.by_source(over.at), [grad], (result,), kept[0], over.workers)
        if over.accumulate:
            np.add(out[0], result, out=out[0])
        return ()


@dataclass(frozen=True, slots=True)
class LoopedAttentionGathering:
    """Sums of source rows weighted by attention; see `hyrt.fullgraph.gathering.AttentionGathering`.

    The softmax is accumulated from chunk to chunk with its largest score so far, so that it is exact for any
    number of chunks.
    """

    edges: WholeEdges
    what: AttentionSum
    layer: int
    """1..L."""
    vertices: Array | None = None
    """[V] vertex ids that key the dropout masks; row numbers by default."""
    reads_messages_back: bool = True
    parameters: tuple[torch.nn.Parameter, ...] = ()

    __repr__ = one_line

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        gather, operands = self._loops(messages, over.masks)
        kept: Arrays = ()
        memory, edges = over.memory, self.edges.by_destination(over.at)
        if memory is not None:
            kept = memory.take((len(out), self.what.heads), out.dtype), memory.take(out.shape, out.dtype)
        gather.forward(edges, operands, out, kept[0] if kept else None, over.workers)
        if kept:
            # The gradient overwrites the gathered rows, and the backward pass needs both.
            np.copyto(kept[1], out)
        return kept

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        assert not over.accumulate, "attention messages are separate matrices"
        gather, operands = self._loops(messages, over.masks)
        denominators, gathered = kept
        rows, of_sources, of_destinations = out
        run_attention_back(
            gather,
            self.edges.by_destination(over.at),
            self.edges.by_source(over.at),
            operands,
            (denominators, gathered),
            grad,
            (rows, of_sources, of_destinations),
            over.workers,
        )
        return ()

    def _loops(self, messages: tuple[Array, ...], masks: Masks | None) -> tuple[FusedGather, list[Array]]:
        """Return the loops and their operands."""
        what, mask = self.what, None
        if masks is not None and what.dropout:
            mask = AttentionMask.of(what.dropout, masks.seed, masks.step, self.layer)
        gather = looped_attention(what.heads, messages[0].shape[1] // what.heads, what.slope, mask)
        operands = list(messages)
        if mask is not None:
            names = np.arange(len(messages[0])) if self.vertices is None else self.vertices
            operands += edge_keys(mask, what.heads, names, names)
        return gather, operands


def loop_rows(rows: Array) -> Array:
    """Return rows as loops read them: C-contiguous float32, in place if possible."""
    return np.ascontiguousarray(as_numbers(rows), np.float32)


def _dense(out: Array) -> Array:
    """Return a matrix, or a C-contiguous one of its shape if it is a slice of columns."""
    return out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)


def _copy_back(dense: Array, out: Array) -> None:
    if dense is not out:
        np.copyto(out, dense)
