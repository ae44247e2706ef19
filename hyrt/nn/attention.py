"""Graph attention over a block, reordered so that features are combined before they are multiplied.

GAT (Velickovic et al., ICLR 2018) computes, per head, sum_j alpha_ij W x_j with alpha_ij the softmax over i's
neighbours (and i itself) of LeakyReLU(a_src . W x_j + a_dst . W x_i). Both are linear in W: with u = W' a the scores
are x . u, and the sum is W (sum_j alpha_ij x_j). So only destinations are multiplied by W, not the far more numerous
sources. The values are those of the usual order up to rounding.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.nn import kernels
from hyrt.nn.memory import empty_array
from hyrt.sampling.block import Block
from hyrt.workers import current_workers

_GRAIN = 256


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor | NDArray[Any],
        u_src: torch.Tensor,
        u_dst: torch.Tensor,
        block: Block,
        slope: float,
    ) -> torch.Tensor:
        heads, width = u_src.shape
        rows = _rows(x)
        dtype = u_src.detach().numpy().dtype
        num, edges = block.num_dst, block.num_edges
        out = empty_array((heads, num, width), dtype)
        kept = [empty_array((size, heads), dtype) for size in (edges, edges, num, num)]
        own_rows = block.destinations if block.in_place else None
        to_source, to_dst = u_src.detach().contiguous().numpy(), u_dst.detach().contiguous().numpy()
        current_workers().run(
            lambda start, stop: kernels.attend(
                block.indptr,
                block.columns,
                own_rows,
                rows,
                to_source,
                to_dst,
                dtype.type(slope),
                *kept,
                out,
                start,
                stop,
            ),
            num,
            _GRAIN,
        )
        ctx.block, ctx.rows, ctx.kept, ctx.u = block, rows, kept, (to_source, to_dst)
        ctx.shape = tuple(x.shape)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        block: Block = ctx.block
        alpha, derivative, own_alpha, own_derivative = ctx.kept
        to_source, to_dst = ctx.u
        g = grad.detach().contiguous().numpy()
        num, edges = block.num_dst, block.num_edges
        heads, width = to_source.shape
        chunks = max(1, -(-num // _GRAIN))
        u_src_parts = np.zeros((chunks, heads, width), g.dtype)
        u_dst_parts = np.zeros((chunks, heads, width), g.dtype)
        d_score = empty_array((edges, heads), g.dtype)
        own_d_score, d_offset = np.empty((num, heads), g.dtype), np.empty((num, heads), g.dtype)
        own_rows = block.destinations if block.in_place else None
        current_workers().run(
            lambda start, stop: kernels.attend_backward_scores(
                block.indptr,
                block.columns,
                own_rows,
                ctx.rows,
                g,
                alpha,
                derivative,
                own_alpha,
                own_derivative,
                u_src_parts[start // _GRAIN],
                u_dst_parts[start // _GRAIN],
                d_score,
                own_d_score,
                d_offset,
                start,
                stop,
            ),
            num,
            _GRAIN,
        )
        x_grad = None
        if ctx.needs_input_grad[0]:
            turned = block.transposed()
            x_grad = empty_array(ctx.rows.shape, g.dtype)
            current_workers().run(
                lambda start, stop: kernels.attend_backward_rows(
                    turned.indptr,
                    turned.rows,
                    turned.edges,
                    num,
                    g,
                    alpha,
                    own_alpha,
                    d_score,
                    own_d_score,
                    d_offset,
                    to_source,
                    to_dst,
                    x_grad,
                    start,
                    stop,
                ),
                len(x_grad),
                2 * _GRAIN,
            )
        return (
            None if x_grad is None else torch.from_numpy(x_grad).view(ctx.shape),
            torch.from_numpy(u_src_parts.sum(0)),
            torch.from_numpy(u_dst_parts.sum(0)),
            None,
            None,
        )


def _rows(x: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    """[n, S, f] view for the kernels."""
    rows: NDArray[Any] = x.detach().contiguous().numpy() if isinstance(x, torch.Tensor) else x
    return rows[:, None, :] if rows.ndim == 2 else rows


def attend(
    block: Block,
    x: torch.Tensor | NDArray[Any],
    u_src: torch.Tensor,
    u_dst: torch.Tensor,
    negative_slope: float = 0.2,
) -> torch.Tensor:
    """Sums of source rows weighted by attention, a self loop included.

    Parameters
    ----------
    block
        Relabelled, or read in place with x the whole feature matrix.
    x
        [num_src, f], or [num_src, H, f] with a slice for each head. An array (float32, float64, or the 16 bits of
        float16 as uint16) takes no gradient.
    u_src, u_dst
        [H, f]: the score of edge j -> i under head h is LeakyReLU(x_j . u_src[h] + x_i . u_dst[h]).
    negative_slope
        Of the LeakyReLU.

    Returns
    -------
    [H, num_dst, f], differentiable with respect to x, u_src and u_dst.
    """
    return cast(torch.Tensor, _Attend.apply(x, u_src, u_dst, block, negative_slope))  # type: ignore[no-untyped-call]
