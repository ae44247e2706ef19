"""Graph attention over a block that multiplies destinations by W instead of the far more numerous sources.

For each head, GAT (Velickovic et al., ICLR 2018) computes sum_j alpha_ij W x_j, where alpha_ij is the softmax
of LeakyReLU(a_src . W x_j + a_dst . W x_i) over the neighbours of i and i itself. With u = W' a, the scores
are x . u and the result is W (sum_j alpha_ij x_j), equal up to rounding.
"""

# mypy: disable-error-code="call-arg"
from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError
from hyrt.nn.operators import kernels
from hyrt.nn.operators.attention_dropout import AttentionDropout, attention_dropout_factors
from hyrt.nn.operators.autograd import empty_array, once_differentiable
from hyrt.nn.operators.tensor_ops import TensorBlock, attend_tensors
from hyrt.runtime.workers import current_workers
from hyrt.sampling.block import Block

GRAIN = 256


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor | NDArray[Any],
        u_src: torch.Tensor,
        u_dst: torch.Tensor,
        block: Block,
        slope: float,
        mask: AttentionDropout | None,
    ) -> torch.Tensor:
        heads, width = u_src.shape
        rows = _rows(x)
        dtype = u_src.detach().numpy().dtype
        num, edges = block.num_dst, block.num_edges
        out = empty_array((heads, num, width), dtype)
        # Arrays for attention weights and LeakyReLU slopes of edges and of self-loops.
        saved = tuple(empty_array((n, heads), dtype) for n in (edges, edges, num, num))
        block_rows = (block.indptr, block.columns, block.destinations if block.in_place else None, rows)
        factors = (None, None) if mask is None else attention_dropout_factors(mask, block, heads, dtype)
        u = u_src.detach().contiguous().numpy(), u_dst.detach().contiguous().numpy()

        def work(start: int, stop: int) -> None:
            kernels.attend(*block_rows, *u, dtype.type(slope), *saved, out, *factors, start, stop)

        current_workers().run(work, num, GRAIN)
        ctx.block, ctx.block_rows, ctx.u, ctx.saved, ctx.shape = block, block_rows, u, saved, tuple(x.shape)
        ctx.factors = factors
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        block: Block = ctx.block
        g = grad.detach().contiguous().numpy()
        num, edges = block.num_dst, block.num_edges
        heads, width = ctx.u[0].shape
        chunks = max(1, -(-num // GRAIN))
        u_src_parts, u_dst_parts = (np.zeros((chunks, heads, width), g.dtype) for _ in range(2))
        # Gradients of edge scores, of self-loop scores, and of the score term of each destination.
        d_scores = tuple(empty_array((n, heads), g.dtype) for n in (edges, num, num))

        def by_scores(start: int, stop: int) -> None:
            parts = (u_src_parts[start // GRAIN], u_dst_parts[start // GRAIN])
            kernels.attend_backward_scores(
                *ctx.block_rows, g, *ctx.saved, *parts, *d_scores, *ctx.factors, start, stop
            )

        current_workers().run(by_scores, num, GRAIN)
        x_grad = None
        if ctx.needs_input_grad[0]:
            transposed = block.transposed()
            edge_arrays = (
                transposed.indptr,
                transposed.rows,
                transposed.edges,
                num,
                g,
                ctx.saved[0],
                ctx.saved[2],
                *d_scores,
            )
            rows_grad = empty_array(ctx.block_rows[3].shape, g.dtype)

            def by_rows(start: int, stop: int) -> None:
                kernels.attend_backward_rows(*edge_arrays, *ctx.u, rows_grad, *ctx.factors, start, stop)

            current_workers().run(by_rows, len(rows_grad), 2 * GRAIN)
            x_grad = torch.from_numpy(rows_grad).view(ctx.shape)
        u_grads = (torch.from_numpy(parts.sum(0)) for parts in (u_src_parts, u_dst_parts))
        return x_grad, *u_grads, None, None, None


def _rows(x: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """View rows as [n, S, f] for the kernels; S is 1, or the number of slices (one per head)."""
    rows: NDArray[Any] = (
        x.detach().contiguous().numpy() if isinstance(x, torch.Tensor) else np.ascontiguousarray(x)
    )
    return rows[:, None, :] if rows.ndim == 2 else rows


def _check(
    block: Block | TensorBlock, x: torch.Tensor | NDArray[Any], u_src: torch.Tensor, u_dst: torch.Tensor
) -> None:
    if isinstance(block, Block):
        _ = block.checked
    is_array = isinstance(x, np.ndarray) and x.dtype in (np.float32, np.float64, np.uint16, np.int16)
    if not (is_array or (isinstance(x, torch.Tensor) and x.is_floating_point())):
        raise ArgumentError(f"in layer {block.layer}, x is {show(x)}: pass rows of float32 or float64")
    for name, vector in (("u_src", u_src), ("u_dst", u_dst)):
        if not isinstance(vector, torch.Tensor) or vector.dtype not in (torch.float32, torch.float64):
            raise ArgumentError(f"{name} is {show(vector)}: pass a tensor of float32 or float64")
    where = f"in layer {block.layer}, x has shape {tuple(x.shape)}"
    if x.ndim not in (2, 3) or len(x) != block.num_src:
        raise ValueError(
            f"{where}, but the block has {block.num_src} sources: pass one row of features per source"
        )
    if u_src.ndim != 2 or u_src.shape != u_dst.shape:
        raise ValueError(
            f"in layer {block.layer}, u_src has shape {tuple(u_src.shape)} and u_dst has shape "
            f"{tuple(u_dst.shape)}: pass two tensors of the same shape [heads, f]"
        )
    heads, width = u_src.shape
    if x.shape[-1] != width or (x.ndim == 3 and x.shape[1] not in (1, heads)):
        raise ValueError(
            f"{where}, but there are {heads} heads of width {width}: pass [n, {width}] or [n, {heads}, "
            f"{width}]"
        )
    if isinstance(x, torch.Tensor) and not x.dtype == u_src.dtype == u_dst.dtype:
        raise ValueError(
            f"in layer {block.layer}, x is {x.dtype}, u_src {u_src.dtype} and u_dst {u_dst.dtype}: use the "
            "same dtype for all"
        )


def attend(
    block: Block | TensorBlock,
    x: torch.Tensor | NDArray[Any],
    u_src: torch.Tensor,
    u_dst: torch.Tensor,
    negative_slope: float = 0.2,
    mask: AttentionDropout | None = None,
) -> torch.Tensor:
    """Sum the source rows of a block and self-loops, weighted by attention, as [H, num_dst, f].

    `x` is [num_src, f], or [num_src, H, f] with one slice per head; if the block is read in place, it is the
    whole feature matrix. An array (float32, float64, float16 bits as uint16, or bfloat16 bits as int16)
    receives no gradient. For `u_src` and `u_dst` [H, f], the score of edge j -> i under head h is
    LeakyReLU(x_j . u_src[h] + x_i . u_dst[h]). `mask` applies dropout after the softmax. Raises ValueError if
    shapes or dtypes do not match.
    """
    _check(block, x, u_src, u_dst)
    if isinstance(block, TensorBlock):
        assert isinstance(x, torch.Tensor)
        return attend_tensors(block, x, u_src, u_dst, negative_slope, mask)
    arguments = (x, u_src, u_dst, block, negative_slope, mask)
    return cast(torch.Tensor, _Attend.apply(*arguments))  # type: ignore[no-untyped-call]
