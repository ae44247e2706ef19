"""How the built-in layers gather, as loops over edges.

For devices that run loops and leave vertices to the host, which has faster operators on its own cores.
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
    """a_i = r_i sum_j c_j x_j over the edges j -> i; the factors r_i are those of `Edges`."""

    source_scale: Array | None
    """[sources] float32, the factors c_j; None where each is 1."""
    has_loops: bool
    """Whether destinations have an edge from themselves besides their own."""

    __repr__ = one_line

    def forward(self, edges: Edges, x: Array, out: Array, workers: Workers | None) -> None:
        """Gather [m, w] of [sources, w] rows, over edges by destination; `out` is overwritten."""
        loop, _ = _sum_loops(x.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, edges, [x, *self._scale()], (out,), None, workers)

    def backward(self, by_source: Edges, grad: Array, out: Array, workers: Workers | None) -> None:
        """Take the gradient [m, w] of what was gathered to the rows; `out` is overwritten."""
        _, loop = _sum_loops(grad.shape[1], self.source_scale is not None, self.has_loops)
        run_loop(loop, by_source, [*self._scale(), grad], (out,), None, workers)

    def _scale(self) -> list[Array]:
        return [] if self.source_scale is None else [self.source_scale[:, None]]


@cache
def _sum_loops(width: int, is_scaled: bool, has_loops: bool) -> tuple[EdgeLoop, EdgeLoop]:
    """The sum, and over the transpose its gradient."""
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
    """The largest of each column over the edges of a destination, and over the transpose its gradient."""
    builder = FormBuilder(1, width)
    forward = EdgeLoop(builder.form([builder.operand("source", "row")]), "destination", "max", False)
    builder = FormBuilder(1, width)
    given = builder.form([builder.operand("gathered", "row")])
    return forward, EdgeLoop(given, "source", "sum", False, masked=True, by_chunk=(False,))


@cache
def attention_gather(heads: int, width: int, slope: float, dropped: tuple[int, float] | None) -> FusedGather:
    """GAT's softmax-weighted sum, with an edge from each vertex to itself.

    Its operands are the rows [sources, heads * width], the scores [sources, heads] and [destinations, heads];
    where weights are dropped, also the keys of both ends, as `edge_keys` has them.

    Parameters
    ----------
    heads, width
        The number of heads, and the columns of one.
    slope
        The slope of LeakyReLU below zero.
    dropped
        The threshold and the scale of an `AttentionMask`; None where nothing is dropped.
    """
    builder = FormBuilder(heads, width)
    message = builder.operand("source", "row")
    raw = builder.add(builder.operand("source", "column"), builder.operand("destination", "column"))
    low = builder.multiply(raw, builder.constant(slope, "column"))
    score = builder.where_positive(raw, raw, low)
    if dropped is not None:
        threshold, scale = dropped
        keys = builder.operand("source", "key"), builder.operand("destination", "key")
        kept = builder.multiply(builder.drawn(*keys, threshold), builder.constant(scale, "column"))
        message = builder.multiply(builder.spread(kept), message)
    return FusedGather(builder.form([score, message]), "attention", has_loops=True)


def looped_attention(heads: int, width: int, slope: float, mask: AttentionMask | None) -> FusedGather:
    """`attention_gather` with what a mask drops."""
    dropped = None if mask is None else (int(mask.threshold), float(mask.scale))
    return attention_gather(heads, width, slope, dropped)


def edge_keys(mask: AttentionMask, heads: int, sources: Array, destinations: Array) -> list[Array]:
    """The keys of both ends, [n, 1] uint64 each: what they draw are the weights that a mask keeps.

    Parameters
    ----------
    mask
        The mask.
    heads
        The number of heads.
    sources, destinations
        [n] integers, the numbers by which it knows the vertices of either end.
    """
    groups = np.uint64(-(-heads // HEADS_OF_DRAW))
    # The number of an edge's first draw; modulo 2^64, as all of this is.
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
    """Take the gradient of what was gathered to the rows and to both scores.

    Parameters
    ----------
    gather
        `looped_attention`.
    edges, by_source
        The edges by destination, and by source.
    operands
        Those of `gather`.
    kept
        What it has kept, [m, heads], and what was gathered [m, heads * width].
    grad
        [m, heads * width].
    outs
        The gradients of the rows, of the sources' scores and of the destinations'; overwritten.
    workers
        The team of threads; the calling thread's by default.
    """
    denominators, gathered = kept
    means = np.empty_like(denominators)
    gather.means(grad, gathered, means, workers)
    given = [*operands, denominators, means, grad]
    rows, of_sources, of_destinations = outs
    if edges.rows is not None:
        of_destinations.fill(0)
    gather.to_destinations(edges, given, [of_destinations], None, workers)
    gather.to_sources(by_source, given, [rows, of_sources], None, workers)
