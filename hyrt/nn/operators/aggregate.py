"""Aggregation of float or quantized rows over a block, with the exact transpose as backward pass."""

# mypy: disable-error-code="no-untyped-def,call-arg"

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import check_flag, check_type, show
from hyrt.errors import ArgumentError, UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation, Reduce
from hyrt.nn.operators import kernels
from hyrt.nn.operators.autograd import empty, empty_array, once_differentiable
from hyrt.nn.operators.kernels import prefetch_ahead
from hyrt.nn.operators.tensor_ops import TensorBlock, aggregate_tensors
from hyrt.runtime.intrinsics import value
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.workers import Workers, current_workers
from hyrt.sampling.block import Block

GRAIN = 512
# uint16 arrays hold the bits of float16 values, and int16 arrays those of bfloat16 values.
_ROW_DTYPES = (np.float32, np.float64, np.uint16, np.int16)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors of a weighted sum over the edges of a block.

    The result of destination i is row[i] times the sum of edge[e] source[j] x[j] over its edges e from
    sources j, plus self_loop[i] x[i].
    """

    row: Array
    """Factor per destination, [num_dst]."""
    source: Array | None
    """Factor per source, [num_src]; None if all are 1."""
    self_loop: Array | None
    """Factor of each destination's own row (the self-loop), [num_dst]; None if that row is not added."""
    edge: Array | None = None
    """Factor per edge, [E]; None if all are 1."""

    __repr__ = short_repr


def compute_scales(aggregation: Aggregation, block: Block, dtype: np.dtype[Any]) -> Scales:
    """Return the factors that express an aggregation over `block` as a weighted sum.

    If the edges of a block have factors (GraphSAINT), these already correct for the sampling: a mean divides
    by the full degree, and a sum is not scaled up for unsampled neighbours. Edge weights multiply the
    factors, and sums of edge weights replace degrees in means and in GCN's normalization. In both cases,
    sums, means and GCN sums are unbiased, and exact if all neighbours are present.
    """
    check_type("aggregation", aggregation, Aggregation, "pass a hyrt.nn.architecture.Aggregation")
    if not isinstance(dtype, np.dtype) or dtype.kind != "f":
        raise ArgumentError(
            f"dtype is {show(dtype)}: use numpy.dtype(numpy.float32) or numpy.dtype(numpy.float64)"
        )
    _ = check_type("block", block, Block, "pass a hyrt.sampling.block.Block").checked
    one = dtype.type(1)
    counts = np.diff(block.indptr).astype(dtype)
    degrees = block.degrees.astype(dtype)
    if block.weights is None:
        upscale = degrees / np.maximum(counts, one)
    else:
        upscale = np.ones_like(degrees)
    edge, sums = block.weights, block.weighted_degrees
    if not aggregation.weighted or sums is None:
        sums = None
    else:
        edge, degrees = block.edge_factors, sums.astype(dtype)
    self_loop: Array | None = None
    source: Array | None = None
    if aggregation.reduce == "mean":
        if sums is not None:
            row = upscale / np.where(degrees > 0, degrees, one)
        else:
            row = one / np.maximum(counts if block.weights is None else degrees, one)
    elif aggregation.reduce == "gcn":
        row = upscale / np.sqrt(degrees + one)
        source_degrees = block.source_degrees if sums is None else block.source_weighted_degrees
        assert source_degrees is not None
        source = (
            block.source_scale()
            if block.source_scale is not None and dtype == np.float32 and aggregation.weighted
            else one / np.sqrt(source_degrees.astype(dtype) + one)
        )
    else:
        row = upscale
    if aggregation.self_path == "add":
        self_loop = (
            one / (degrees + one)
            if aggregation.reduce == "gcn"
            else np.full(block.num_dst, 1 + aggregation.epsilon, dtype)
        )
    return Scales(row, source, self_loop, edge)


def aggregate_into(
    aggregation: Aggregation,
    block: Block,
    x: Array,
    out: Array,
    factors: Scales | None = None,
    workers: Workers | None = None,
    winners: Array | None = None,
    *,
    accumulate: bool = False,
) -> None:
    """Aggregate the source rows `x` of a block into `out` without recording a gradient.

    `x` [num_src, f] is float32, float64, float16 bits as uint16, or bfloat16 bits as int16; if the block is
    read in place, it is the whole feature matrix. `out` [num_dst, aggregation.width(f)] is float32 or
    float64. If the block has only part of its destinations' edges, pass `factors` that were computed from all
    edges. For `max`, the integers `winners` [num_dst, f] receive the argmax edges. If `accumulate`, sums are
    added to `out`. Raises ValueError if shapes do not match, or if `accumulate` is used with `max`.
    """
    check_type("aggregation", aggregation, Aggregation, "pass a hyrt.nn.architecture.Aggregation")
    check_flag("accumulate", accumulate)
    check_rows(block, x)
    check_weights(aggregation, block)
    x, width = np.ascontiguousarray(x), x.shape[1]
    is_result = isinstance(out, np.ndarray) and out.dtype in (np.float32, np.float64)
    if not is_result or not out.flags.c_contiguous or not out.flags.writeable:
        raise ArgumentError(f"out is {show(out)}: pass a writable, contiguous array of float32 or float64")
    if out.shape != (block.num_dst, aggregation.width(width)):
        raise ValueError(
            f"in layer {block.layer}, out has shape {out.shape}: pass an array of shape "
            f"{(block.num_dst, aggregation.width(width))}"
        )
    self_rows = block.destinations if block.in_place and aggregation.self_path != "none" else None
    edges = (block.indptr, block.columns, self_rows, x)
    columns = aggregation.columns(width)
    if aggregation.reduce == "max":
        if accumulate:
            raise ValueError("a maximum cannot be accumulated: use a sum, or remove accumulate")

        def work(start: int, stop: int) -> None:
            kernels.aggregate_max(*edges, out, winners, *columns, start, stop)

    else:
        s = factors or compute_scales(aggregation, block, out.dtype)
        # Numba specializes the kernel by the type of this flag: None or bool.
        onto = True if accumulate else None

        def work(start: int, stop: int) -> None:
            kernels.aggregate(*edges, s.row, s.source, s.edge, s.self_loop, out, *columns, onto, start, stop)

    (workers or current_workers()).run_rows(work, block.num_dst, GRAIN)


def check_rows(
    block: Block | TensorBlock, x: torch.Tensor | Array, dtypes: tuple[Any, ...] = _ROW_DTYPES
) -> None:
    """Raise an error unless `x` has one row per source and the arrays of the block are consistent."""
    if isinstance(block, Block):
        _ = block.checked
    elif not isinstance(block, TensorBlock):
        raise ArgumentError(f"block is {show(block)}: pass a hyrt.sampling.block.Block")
    is_rows = isinstance(x, torch.Tensor) or (isinstance(x, np.ndarray) and x.dtype in dtypes)
    if not is_rows:
        raise ArgumentError(f"in layer {block.layer}, x is {show(x)}: pass rows of float32 or float64")
    if x.ndim != 2 or len(x) != block.num_src:
        raise ValueError(
            f"in layer {block.layer}, x has shape {tuple(x.shape)}, but the block has {block.num_src} "
            "sources: pass one row of features per source"
        )


def check_weights(aggregation: Aggregation, block: Block | TensorBlock) -> None:
    """Raise UnsupportedModelError for a maximum over weighted edges."""
    if aggregation.reduce == "max" and aggregation.weighted and block.edge_weights is not None:
        raise UnsupportedModelError(
            f"in layer {block.layer}, a maximum would ignore the edge weights: use a mean or a sum, or "
            "Aggregation(..., weighted=False) in a custom module"
        )


class _Aggregate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor | Array,
        onto: torch.Tensor | None,
        aggregation: Aggregation,
        block: Block,
    ) -> torch.Tensor:
        rows: Array = (
            x.detach().contiguous().numpy() if isinstance(x, torch.Tensor) else np.ascontiguousarray(x)
        )
        if onto is None:
            dtype = np.float64 if rows.dtype == np.float64 else np.float32
            out = torch.from_numpy(empty_array((block.num_dst, aggregation.width(rows.shape[1])), dtype))
        else:
            out = onto
            ctx.mark_dirty(onto)
        result = out.detach().numpy()
        winners = factors = None
        if aggregation.reduce != "max":
            factors = compute_scales(aggregation, block, result.dtype)
        elif ctx.needs_input_grad[0]:
            winners = empty_array((block.num_dst, rows.shape[1]), block.indptr.dtype)
        aggregate_into(
            aggregation, block, rows, result, factors, winners=winners, accumulate=onto is not None
        )
        ctx.aggregation, ctx.block, ctx.factors, ctx.winners = aggregation, block, factors, winners
        ctx.shape = rows.shape
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needs_x, needs_onto = ctx.needs_input_grad[:2]
        onto_grad = grad if needs_onto else None
        if not needs_x:
            return None, onto_grad, None, None
        block: Block = ctx.block
        transposed = block.transposed()
        grad_rows = grad.detach().contiguous()
        out = empty(tuple(ctx.shape), grad_rows)
        result = out.numpy()
        edges = (transposed.indptr, transposed.rows, transposed.edges, block.num_dst, grad_rows.numpy())
        columns: tuple[int, int | None] = ctx.aggregation.columns(ctx.shape[1])
        factors, winners = ctx.factors, ctx.winners

        def work(start: int, stop: int) -> None:
            if winners is not None:
                kernels.aggregate_max_backward(*edges, winners, result, *columns, start, stop)
            else:
                scale = (factors.row, factors.source, factors.edge, factors.self_loop)
                kernels.aggregate_backward(*edges, *scale, result, *columns, start, stop)

        current_workers().run_rows(work, len(out), 2 * GRAIN)
        return out, onto_grad, None, None


def aggregate(
    block: Block | TensorBlock,
    x: torch.Tensor | Array,
    aggregation: Aggregation | Reduce,
    *,
    accumulate_into: torch.Tensor | None = None,
) -> torch.Tensor:
    """Aggregate source rows over a block.

    Parameters
    ----------
    block
        Block in host memory, or tensor block on a device.
    x
        Source rows [num_src, f] float32 or float64 on the block's device; the whole feature matrix if the
        block is read in place. An array may also hold float16 bits as uint16 or bfloat16 bits as int16. An
        array receives no gradient, and the result is float32 unless the array is float64.
    aggregation
        Aggregation, or the name of a reduction without a self path.
    accumulate_into
        Tensor [num_dst, width] to which the result is added. In host memory, it is overwritten: use the
        returned tensor.

    Returns
    -------
    Rows [num_dst, width], differentiable with respect to x and `accumulate_into`. For `max`, the first edge
    of a tie gets the gradient.

    Raises
    ------
    ValueError
        If shapes or dtypes do not match, or if `accumulate_into` is used with `max`.
    """
    description = Aggregation(aggregation, "none") if isinstance(aggregation, str) else aggregation
    check_type(
        "aggregation",
        description,
        Aggregation,
        "choose one of sum, mean, gcn and max, or pass a hyrt.nn.architecture.Aggregation",
    )
    check_rows(block, x)
    if isinstance(x, torch.Tensor) and x.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"in layer {block.layer}, x has dtype {x.dtype}: pass rows of torch.float32 or torch.float64"
        )
    check_weights(description, block)
    if isinstance(block, TensorBlock):
        assert isinstance(x, torch.Tensor)
        result = (block.aggregate or aggregate_tensors)(block, x, description)
        return result if accumulate_into is None else accumulate_into + result
    return cast(torch.Tensor, _Aggregate.apply(x, accumulate_into, description, block))  # type: ignore[no-untyped-call]


_compile = nb.njit(
    nogil=True,
    cache=True,
    error_model="numpy",
    boundscheck=False,
    fastmath={"contract", "reassoc", "nsz"},
)


@nb.njit(inline="always", cache=True)
def _factor(e, column, code_scales, source_scale, weights):
    """Return the factor that multiplies the quantized codes of an edge's source."""
    factor = np.float32(1)
    if code_scales is not None:
        factor *= code_scales[column]
    if source_scale is not None:
        factor *= source_scale[column]
    if weights is not None:
        factor *= np.float32(weights[e])
    return factor


@_compile
def aggregate_codes(
    indptr, columns, self_rows, x, code_scales, column_scales, row_scale, source_scale, weights, self_scale,
    out, sum_at, self_at, start, stop,
):  # fmt: skip
    """Aggregate dequantized rows code_scales[j] * x[j] * column_scales; scales may be None."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, code_scales, flat, width, i, start, stop)
        total = out[i, sum_at : sum_at + width]
        for k in range(width):
            total[k] = 0
        e = first
        while e + 4 <= end:
            p, q, r, s = columns[e], columns[e + 1], columns[e + 2], columns[e + 3]
            a, b, c, d = x[p], x[q], x[r], x[s]
            fa = _factor(e, p, code_scales, source_scale, weights)
            fb = _factor(e + 1, q, code_scales, source_scale, weights)
            fc = _factor(e + 2, r, code_scales, source_scale, weights)
            fd = _factor(e + 3, s, code_scales, source_scale, weights)
            for k in range(width):
                total[k] += (fa * value(a[k]) + fb * value(b[k])) + (fc * value(c[k]) + fd * value(d[k]))
            e += 4
        while e < end:
            a = x[columns[e]]
            fa = _factor(e, columns[e], code_scales, source_scale, weights)
            for k in range(width):
                total[k] += fa * value(a[k])
            e += 1
        scale = row_scale[i]
        for k in range(width):
            total[k] *= scale
        j = i if self_rows is None else self_rows[i]
        self_row = x[j]
        code_scale = np.float32(1)
        if code_scales is not None:
            code_scale = code_scales[j]
        if self_scale is not None:
            self_factor = self_scale[i] * code_scale
            for k in range(width):
                total[k] += self_factor * value(self_row[k])
        if column_scales is not None:
            for k in range(width):
                total[k] *= column_scales[k]
        if self_at is not None:
            self_out = out[i, self_at : self_at + width]
            for k in range(width):
                self_out[k] = code_scale * value(self_row[k])
            if column_scales is not None:
                for k in range(width):
                    self_out[k] *= column_scales[k]


@_compile
def aggregate_codes_max(
    indptr, columns, self_rows, x, code_scales, column_scales, out, sum_at, self_at, start, stop
):
    """Compute the maximum of dequantized rows without argmax edges; see `kernels.aggregate_max`."""
    width = x.shape[1]
    flat = x.reshape(x.size)
    for i in range(start, stop):
        first, end = indptr[i], indptr[i + 1]
        prefetch_ahead(indptr, columns, self_rows, code_scales, flat, width, i, start, stop)
        best = out[i, sum_at : sum_at + width]
        for k in range(width):
            best[k] = 0
        for e in range(first, end):
            a = x[columns[e]]
            factor = _factor(e, columns[e], code_scales, None, None)
            if e == first:
                for k in range(width):
                    best[k] = factor * value(a[k])
            else:
                for k in range(width):
                    best[k] = max(best[k], factor * value(a[k]))
        # Column scales are positive, so the largest code of a column is also the largest value.
        if column_scales is not None:
            for k in range(width):
                best[k] *= column_scales[k]
        if self_at is not None:
            j = i if self_rows is None else self_rows[i]
            self_row = x[j]
            code_scale = np.float32(1)
            if code_scales is not None:
                code_scale = code_scales[j]
            self_out = out[i, self_at : self_at + width]
            for k in range(width):
                self_out[k] = code_scale * value(self_row[k])
            if column_scales is not None:
                for k in range(width):
                    self_out[k] *= column_scales[k]


def aggregate_quantized_into(
    aggregation: Aggregation, block: Block, x: QuantizedRows, out: NDArray[np.float32], workers: Workers
) -> None:
    """Aggregate quantized rows of all vertices in place into `out` float32; see `aggregate_into`."""
    matrix = x.matrix
    if matrix is not None:
        aggregate_into(aggregation, block, matrix, out, workers=workers)
        return
    check_rows(block, x.codes, (x.codes.dtype,))
    check_weights(aggregation, block)
    self_rows = block.destinations if block.in_place and aggregation.self_path != "none" else None
    edges = (block.indptr, block.columns, self_rows, x.codes, x.row_scales, x.column_scales)
    at = aggregation.columns(x.codes.shape[1])
    if aggregation.reduce == "max":

        def work(start: int, stop: int) -> None:
            aggregate_codes_max(*edges, out, *at, start, stop)

    else:
        s = compute_scales(aggregation, block, out.dtype)

        def work(start: int, stop: int) -> None:
            aggregate_codes(*edges, s.row, s.source, s.edge, s.self_loop, out, *at, start, stop)

    workers.run_rows(work, block.num_dst, GRAIN)
