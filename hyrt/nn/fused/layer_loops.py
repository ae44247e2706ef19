"""Gathers of the built-in layers as loops over edges.

For devices that run loops and leave vertices to the host. On its own cores, the host uses faster operators.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.generator import GOLDEN, vertex_streams
from hyrt.machine.workers import Workers
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.form import FormBuilder
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.fused.loop_runner import run_loop
from hyrt.nn.operators.attention_mask import HEADS_OF_DRAW, AttentionMask
from hyrt.quantities import one_line

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class LoopedSum:
    """Gather a_i = r_i sum_j c_j x_j over the edges j -> i, with the factors r_i from `Edges`."""

    source_scale: Array | None
    """[num_src] float32, the factors c_j; None if all are 1."""
    has_loops: bool
    """Whether destinations have a self-loop in addition to their edges."""

    __repr__ = one_line

    def forward(self, edges: Edges, x: Array, out: Array, workers: Workers | None) -> None:
        """Gather [m, w] from [num_src, w] rows over edges by destination; overwrites `out`."""
        loop, _ = _sum_loops(x.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, edges, [x, *self._scale()], (out,), None, workers)

    def backward(self, by_source: Edges, grad: Array, out: Array, workers: Workers | None) -> None:
        """Backpropagate the gradient [m, w] of the gathered rows to the input rows; overwrites `out`."""
        _, loop = _sum_loops(grad.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, by_source, [*self._scale(), grad], (out,), None, workers)

    def _scale(self) -> list[Array]:
        return [] if self.source_scale is None else [self.source_scale[:, None]]


@cache
def _sum_loops(width: int, is_scaled: bool, has_loops: bool) -> tuple[EdgeLoop, EdgeLoop]:
    """Return the loop of the sum, and the loop of its gradient over the transpose."""
    builder = FormBuilder(1, width)
    value = builder.operand("source", "row")
    if is_scaled:
        scale = builder.operand("source", "column", takes_gradient=False)
        value = builder.multiply(builder.spread(scale), value)
    forward = EdgeLoop(builder.form([value]), "destination", "sum", has_loops)
    builder = FormBuilder(1, width)
    factor = builder.operand("source", "column") if is_scaled else None
    value = builder.operand("gathered", "row")
    if factor is not None:
        value = builder.multiply(builder.spread(factor), value)
    return forward, EdgeLoop(builder.form([value]), "source", "sum", has_loops, by_chunk=(False,))


@cache
def largest_loops(width: int) -> tuple[EdgeLoop, EdgeLoop]:
    """Return the loop of the column-wise maximum, and the loop of its gradient over the transpose."""
    builder = FormBuilder(1, width)
    forward = EdgeLoop(builder.form([builder.operand("source", "row")]), "destination", "max", False)
    builder = FormBuilder(1, width)
    gradient = builder.form([builder.operand("gathered", "row")])
    return forward, EdgeLoop(gradient, "source", "sum", False, masked=True, by_chunk=(False,))


@cache
def attention_gather(heads: int, width: int, slope: float, dropped: tuple[int, float] | None) -> FusedGather:
    """Return GAT's softmax-weighted sum, with a self-loop at each vertex.

    Its operands are the rows [num_src, heads * width], the scores [num_src, heads] and [num_dst, heads]; with
    dropout also the keys of both ends, from `edge_keys`.

    Parameters
    ----------
    heads, width
        Number of heads, and the number of columns per head.
    slope
        Slope of LeakyReLU below zero.
    dropped
        Threshold and scale of an `AttentionMask`; None for no dropout.
    """
    builder = FormBuilder(heads, width)
    message = builder.operand("source", "row")
    raw = builder.add(builder.operand("source", "column"), builder.operand("destination", "column"))
    low = builder.multiply(raw, builder.constant(slope, "column"))
    score = builder.where_positive(raw, raw, low)
    if dropped is not None:
        threshold, scale = dropped
        keys = builder.operand("source", "key"), builder.operand("destination", "key")
        mask = builder.multiply(builder.drawn(*keys, threshold), builder.constant(scale, "column"))
        message = builder.multiply(builder.spread(mask), message)
    return FusedGather(builder.form([score, message]), "attention", has_loops=True)


def looped_attention(heads: int, width: int, slope: float, mask: AttentionMask | None) -> FusedGather:
    """Return `attention_gather` with the dropout of a mask."""
    dropped = None if mask is None else (int(mask.threshold), float(mask.scale))
    return attention_gather(heads, width, slope, dropped)


def edge_keys(mask: AttentionMask, heads: int, sources: Array, destinations: Array) -> list[Array]:
    """Compute the keys of both ends, [n, 1] uint64 each, from which loops compute the mask.

    Parameters
    ----------
    mask
        The mask.
    heads
        Number of heads.
    sources, destinations
        [n] integers, vertex ids of either end in the mask.
    """
    groups = np.uint64(-(-heads // HEADS_OF_DRAW))
    # Index of an edge's first random number. All arithmetic is modulo 2^64.
    first = sources.astype(np.uint64) * groups + np.uint64(1)
    return [(first * GOLDEN)[:, None], vertex_streams(mask.key, destinations)[:, None]]


def run_attention_back(
    gather: FusedGather,
    edges: Edges,
    by_source: Edges,
    operands: list[Array],
    kept: tuple[Array, Array],
    grad: Array,
    outs: tuple[Array, Array, Array],
    workers: Workers | None,
) -> None:
    """Backpropagate the gradient of the gathered rows to the rows and to both scores.

    Parameters
    ----------
    gather
        `looped_attention`.
    edges, by_source
        Edges by destination, and by source.
    operands
        Operands of `gather`.
    kept
        The state [m, heads] that `gather` saved, and the gathered rows [m, heads * width].
    grad
        Gradient of the gathered rows, [m, heads * width].
    outs
        Gradients of the rows, of the source scores and of the destination scores; overwritten.
    workers
        Thread team; the calling thread's by default.
    """
    denominators, gathered = kept
    means = np.empty_like(denominators)
    gather.means(grad, gathered, means, workers)
    inputs = [*operands, denominators, means, grad]
    rows, source_scores, destination_scores = outs
    if edges.rows is not None:
        destination_scores.fill(0)
    gather.to_destinations(edges, inputs, [destination_scores], None, workers)
    gather.to_sources(by_source, inputs, [rows, source_scores], None, workers)
