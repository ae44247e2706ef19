"""Autograd function for aggregation over tensor blocks with hyrt's CUDA kernels."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators.autograd import once_differentiable
from hyrt.nn.tensor_operators.tensor_block import TensorBlock
from hyrt.nn.tensor_operators.tensor_ops import aggregate_tensors, tensor_scales
from hyrt_devices.cuda.launch import ROWS, Argument, KernelLauncher, KernelProgram


class _AggregateOnDevice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, block: TensorBlock, aggregation: Aggregation, program: KernelProgram
    ) -> torch.Tensor:
        x = x.detach().contiguous()
        width = x.shape[1]
        out = x.new_empty(block.num_dst, aggregation.width(width))
        sum_at, self_at = (width, 0) if aggregation.self_path == "concat" else (0, -1)
        shape = [np.int32(n) for n in (block.num_dst, width, out.shape[1], sum_at, self_at)]
        winners = None
        factors: list[torch.Tensor | None] = []
        if aggregation.reduce == "max":
            winners = torch.empty(block.num_dst, width, dtype=torch.int32, device=x.device)
            arguments: list[Argument] = [block.indptr, block.columns, x, out, winners, *shape]
            program.launch("aggregate_max", block.num_dst, ROWS, arguments)
        else:
            row, source, self_loop, edge = tensor_scales(aggregation, block, x.dtype)
            factors = [row, source, edge, self_loop]
            arguments = [block.indptr, block.columns, x, *factors, out, *shape]
            program.launch("aggregate", block.num_dst, ROWS, arguments)
        ctx.block, ctx.program, ctx.factors, ctx.winners = block, program, factors, winners
        ctx.shape, ctx.at = x.shape, (sum_at, self_at)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        block: TensorBlock = ctx.block
        transposed = block.transposed()
        grad = grad.detach().contiguous()
        num_src, width = ctx.shape
        out = grad.new_empty(num_src, width)
        shape = [np.int32(n) for n in (block.num_dst, num_src, width, grad.shape[1], *ctx.at)]
        edges = [transposed.indptr, transposed.rows, transposed.edges]
        if ctx.winners is not None:
            arguments = [*edges, grad, ctx.winners, out, *shape]
            ctx.program.launch("aggregate_max_backward", num_src, ROWS, arguments)
        else:
            arguments = [*edges, grad, *ctx.factors, out, *shape]
            ctx.program.launch("aggregate_backward", num_src, ROWS, arguments)
        return out, None, None, None


class TorchAggregation:
    """`TensorBlock.aggregate` for devices that can run hyrt's kernels."""

    def __init__(self, launcher: KernelLauncher) -> None:
        self._program = KernelProgram(launcher, "aggregate")

    def __call__(self, block: TensorBlock, x: torch.Tensor, aggregation: Aggregation) -> torch.Tensor:
        """Aggregate like `aggregate_tensors`, the fallback for unsupported dtypes."""
        compiled = (torch.float32, torch.int32, torch.int32)
        if (x.dtype, block.indptr.dtype, block.columns.dtype) != compiled:
            return aggregate_tensors(block, x, aggregation)
        out = _AggregateOnDevice.apply(x, block, aggregation, self._program)  # type: ignore[no-untyped-call]
        return cast(torch.Tensor, out)
