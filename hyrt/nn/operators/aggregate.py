"""Aggregation over a block as an autograd function: the forward loop and its exact transpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.workers import Workers, current_workers
from hyrt.nn.operators import kernels
from hyrt.nn.operators.result_memory import empty, empty_array
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.tensor_operators.tensor_ops import aggregate_tensors
from hyrt.sampling.block import Block

Reduce = Literal["mean", "sum", "gcn", "max"]
SelfPath = Literal["none", "add", "concat"]

_GRAIN = 512
_NO_SUM_OF_MAX = "a maximum cannot be added to the own row: use self_path none or concat"

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """How a layer combines a destination's sources, in the words that kernel devices compile.

    Parameters
    ----------
    reduce
        `mean` over the sampled neighbours; `sum`, where each of k sampled neighbours out of d counts d / k times, so
        that the sum's expectation is the full one; `gcn`, the sum weighted by 1 / sqrt((d_i + 1)(d_j + 1)) with
        full-graph in-degrees d; `max`, elementwise.
    self_path
        The destination's own row: `none`, `add` (for gcn the self loop, weighted 1 / (d_i + 1); else times
        1 + epsilon), `concat` (own row first, then the aggregate: the layer's f_in is twice f).
    epsilon
        For `add` without gcn.

    Raises
    ------
    ValueError
        For another word.
    """

    reduce: Reduce
    self_path: SelfPath
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        for word, known in ((self.reduce, get_args(Reduce)), (self.self_path, get_args(SelfPath))):
            if word not in known:
                raise ValueError(f"no aggregation {word!r}: there are {', '.join(known)}")

    def width(self, features: int) -> int:
        """Columns of the result for `features` wide rows."""
        return 2 * features if self.self_path == "concat" else features


@dataclass(frozen=True, slots=True)
class Scales:
    """The factors of one block's weighted sum; see `kernels.aggregate`."""

    row: Array
    source: Array | None
    own: Array | None


def scales(aggregation: Aggregation, block: Block, dtype: np.dtype[Any]) -> Scales:
    """The factors that make the general weighted sum into `aggregation` on `block`.

    With edge weights (GraphSAINT), they already undo the sampling: a mean divides by the full degree, and a sum is
    not scaled up for neighbours left out.
    """
    one = dtype.type(1)
    counts = np.diff(block.indptr).astype(dtype)
    degrees = block.degrees.astype(dtype)
    if block.weights is None:
        upscale = degrees / np.maximum(counts, one)
    else:
        upscale = np.ones_like(degrees)
    own: Array | None = None
    source: Array | None = None
    if aggregation.reduce == "mean":
        row = one / np.maximum(counts if block.weights is None else degrees, one)
    elif aggregation.reduce == "gcn":
        row = upscale / np.sqrt(degrees + one)
        source = (
            block.source_scale()
            if block.source_scale is not None and dtype == np.float32
            else one / np.sqrt(block.source_degrees.astype(dtype) + one)
        )
    else:
        row = upscale
    if aggregation.self_path == "add":
        own = (
            one / (degrees + one)
            if aggregation.reduce == "gcn"
            else np.full(block.num_dst, 1 + aggregation.epsilon, dtype)
        )
    return Scales(row, source, own)


def _offsets(aggregation: Aggregation, width: int) -> tuple[int, int | None]:
    """Columns at which the aggregate and the own row start."""
    return (width, 0) if aggregation.self_path == "concat" else (0, None)


def aggregate_into(
    aggregation: Aggregation,
    block: Block,
    x: Array,
    out: Array,
    factors: Scales | None = None,
    workers: Workers | None = None,
    winners: Array | None = None,
) -> None:
    """Aggregate rows of x over a block into `out`, without a gradient.

    Parameters
    ----------
    aggregation
        What to compute.
    block
        With columns into x: a relabelled block with its sources' rows, or one read in place with the whole matrix.
    x
        [num_src, f] float32, float64, or the 16 bits of float16 as uint16.
    out
        [num_dst, aggregation.width(f)] float32 or float64.
    factors
        `scales(aggregation, block, out.dtype)`, where the caller has them.
    workers
        Who runs the chunks; the calling thread's team by default.
    winners
        [num_dst, f] int32, for max: receives the edge that won each element.

    Raises
    ------
    ValueError
        If x has not one row a source, `out` has not the shape of the result, or a maximum is to be added to the own
        row.
    """
    if x.ndim != 2 or len(x) != block.num_src:
        raise ValueError(
            f"layer {block.layer}: x has shape {tuple(x.shape)}, the block has {block.num_src} sources: "
            "give one row of features a source"
        )
    if out.shape != (block.num_dst, aggregation.width(x.shape[1])):
        raise ValueError(
            f"layer {block.layer}: out has shape {out.shape}, "
            f"the result {(block.num_dst, aggregation.width(x.shape[1]))}"
        )
    if aggregation.reduce == "max" and aggregation.self_path == "add":
        raise ValueError(_NO_SUM_OF_MAX)
    team = workers or current_workers()
    sum_at, self_at = _offsets(aggregation, x.shape[1])
    own_rows = block.destinations if block.in_place else None
    if aggregation.reduce == "max":

        def work(start: int, stop: int) -> None:
            kernels.aggregate_max(
                block.indptr, block.columns, own_rows, x, out, winners, sum_at, self_at, start, stop
            )

    else:
        s = factors or scales(aggregation, block, out.dtype)

        def work(start: int, stop: int) -> None:
            kernels.aggregate(
                block.indptr,
                block.columns,
                own_rows,
                x,
                s.row,
                s.source,
                block.weights,
                s.own,
                out,
                sum_at,
                self_at,
                start,
                stop,
            )

    team.run(work, block.num_dst, _GRAIN)


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, aggregation: Aggregation, block: Block) -> torch.Tensor:
        x = x.detach().contiguous()
        out = empty((block.num_dst, aggregation.width(x.shape[1])), x)
        rows, result = x.numpy(), out.numpy()
        winners = None
        factors = None
        if aggregation.reduce == "max":
            if ctx.needs_input_grad[0]:
                winners = empty_array((block.num_dst, x.shape[1]), np.int32)
        else:
            factors = scales(aggregation, block, result.dtype)
        aggregate_into(aggregation, block, rows, result, factors, winners=winners)
        ctx.aggregation, ctx.block, ctx.factors, ctx.winners = aggregation, block, factors, winners
        ctx.shape = x.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        block: Block = ctx.block
        turned = block.transposed()
        grad = grad.detach().contiguous()
        out = empty(tuple(ctx.shape), grad)
        g, result = grad.numpy(), out.numpy()
        sum_at, self_at = _offsets(ctx.aggregation, ctx.shape[1])
        factors, winners = ctx.factors, ctx.winners

        def work(start: int, stop: int) -> None:
            if winners is not None:
                kernels.aggregate_max_backward(
                    turned.indptr,
                    turned.rows,
                    turned.edges,
                    block.num_dst,
                    g,
                    winners,
                    result,
                    sum_at,
                    self_at,
                    start,
                    stop,
                )
            else:
                kernels.aggregate_backward(
                    turned.indptr,
                    turned.rows,
                    turned.edges,
                    block.num_dst,
                    g,
                    factors.row,
                    factors.source,
                    block.weights,
                    factors.own,
                    result,
                    sum_at,
                    self_at,
                    start,
                    stop,
                )

        current_workers().run(work, len(out), 2 * _GRAIN)
        return out, None, None


def aggregate(block: Block | TensorBlock, x: torch.Tensor, aggregation: Aggregation | Reduce) -> torch.Tensor:
    """Aggregate source rows over a block.

    Parameters
    ----------
    block
        A relabelled block; on a device, a tensor block.
    x
        [num_src, f] float32 or float64, one row a source, where the block is.
    aggregation
        A full description, or the name of a reduction without a self path.

    Returns
    -------
    [num_dst, width], differentiable with respect to x. For max, the gradient of a tie goes to its first edge.

    Raises
    ------
    ValueError
        If x has not one row a source or is not float32 or float64, or if a maximum is to be added to the own row.
    """
    what = Aggregation(aggregation, "none") if isinstance(aggregation, str) else aggregation
    if x.ndim != 2 or len(x) != block.num_src:
        raise ValueError(
            f"layer {block.layer}: x has shape {tuple(x.shape)}, the block has {block.num_src} sources: "
            "give one row of features a source"
        )
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"layer {block.layer}: x is {x.dtype}: rows are torch.float32 or torch.float64")
    if isinstance(block, TensorBlock):
        if what.reduce == "max" and what.self_path == "add":
            raise ValueError(_NO_SUM_OF_MAX)
        return (block.aggregate or aggregate_tensors)(block, x, what)
    return cast(torch.Tensor, _Aggregate.apply(x, what, block))  # type: ignore[no-untyped-call]
