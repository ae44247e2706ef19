"""Differentiable gather over a sampled block, including the linear maps that compute its messages.

The backward pass accumulates the gradients of all messages in one matrix. Separate autograd functions for the
linear maps would each allocate a gradient for all sources (zero-padded for destinations), only to add them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

import torch

from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.product import gradients_of_product, product_of_rows
from hyrt.nn.operators.result_memory import empty
from hyrt.nn.saga.blocks.block_gathering import Array, BlockGathering
from hyrt.nn.saga.end_products import EndProduct
from hyrt.nn.saga.gather import SagaSum
from hyrt.nn.saga.reading import attribute_of, number_of
from hyrt.sampling.block import Block

_Item = TypeVar("_Item")


class _GatherProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        what: SagaSum,
        block: Block,
        precision: torch.dtype,
        rows: torch.Tensor,
        *given: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        products = what.program.products
        assert products is not None
        x, messages = rows.detach(), []
        for product, (weight, bias) in zip(products, _pairs(given, products), strict=True):
            message = _rows_of_end(x, product, block)
            if weight is not None:
                bias_values = None if bias is None else bias.detach()
                message = product_of_rows(message, weight.detach(), bias_values, precision=precision)
            messages.append(message)
        ctx.gathering, out = BlockGathering.forward(what, block, messages, keeps=any(ctx.needs_input_grad))
        ctx.precision = precision
        ctx.save_for_backward(rows, *given[: 2 * len(products)])
        ctx.set_materialize_grads(False)
        head = x[: block.num_dst]
        if not rows.requires_grad:
            ctx.mark_non_differentiable(head)
        return out, head

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad: torch.Tensor | None, head_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gathering: BlockGathering = ctx.gathering
        products = gathering.what.program.products
        assert products is not None
        rows, *given = ctx.saved_tensors
        needs_rows, *needs = ctx.needs_input_grad[3:]
        needed = _pairs(needs, products)
        if grad is None:
            grad = rows.new_zeros(gathering.block.num_dst, gathering.what.program.gathered_width)
        outs, edge_grads = gathering.backward(grad, [needs_rows or any(pair) for pair in needed])
        x = rows.detach()
        x_grad, accumulates = _init_row_gradient(x, products, outs) if needs_rows else (None, False)
        parameter_grads: list[torch.Tensor | None] = []
        for product, (weight, _), (needs_weight, needs_bias), out in zip(
            products, _pairs(given, products), needed, outs, strict=True
        ):
            target = None if x_grad is None else _rows_of_end(x_grad, product, gathering.block)
            weight_grad = bias_grad = None
            if weight is not None and out is not None:
                weight_grad, bias_grad = gradients_of_product(
                    _rows_of_end(x, product, gathering.block),
                    weight.detach(),
                    torch.from_numpy(out),
                    x_grad=target,
                    adds=accumulates,
                    needs_weight=needs_weight,
                    needs_bias=needs_bias,
                    precision=ctx.precision,
                )
                accumulates = True
            elif target is not None and product.end == "destination":
                target += torch.from_numpy(out)
            parameter_grads += [weight_grad, bias_grad]
        if x_grad is not None and head_grad is not None:
            x_grad[: gathering.block.num_dst] += head_grad
        return (None, None, None, x_grad, *parameter_grads, *edge_grads)


def _pairs(values: Sequence[_Item], products: Sequence[EndProduct]) -> list[tuple[_Item, _Item]]:
    """Group a flat sequence into (weight, bias) pairs, one per product."""
    return [(values[2 * k], values[2 * k + 1]) for k in range(len(products))]


def _rows_of_end(rows: torch.Tensor, product: EndProduct, block: Block) -> torch.Tensor:
    """Return the rows of one end; destinations are the first sources."""
    return rows if product.end == "source" else rows[: block.num_dst]


def _init_row_gradient(
    x: torch.Tensor, products: Sequence[EndProduct], outs: Sequence[Array | None]
) -> tuple[torch.Tensor, bool]:
    """Return a matrix for the gradient of the rows, and whether products must accumulate into it.

    The gradient of unmultiplied source rows is used as the start value. Otherwise the first source product
    overwrites an uninitialized matrix, or zeros are used if there is no source product.
    """
    source_pairs = [
        (product, out) for product, out in zip(products, outs, strict=True) if product.end == "source"
    ]
    for product, out in source_pairs:
        if product.weight is None and out is not None:
            return torch.from_numpy(out), True
    return (empty(tuple(x.shape), x), False) if source_pairs else (torch.zeros_like(x), True)


def gather_products(
    what: SagaSum, block: Block, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the gathered rows [num_dst, width] of a block, and the rows of its destinations [num_dst, in].

    None if the messages are not linear maps of rows.

    Parameters
    ----------
    what
        The gather.
    block
        A relabelled block.
    rows
        [num_src, in], the source rows.
    """
    products, layer = what.program.products, what.layer
    if products is None:
        return None
    parameters = [
        None if name is None else attribute_of(layer, name)
        for product in products
        for name in (product.weight, product.bias)
    ]
    dtype = next((each.dtype for each in parameters if each is not None), None) or number_of(layer).dtype
    if rows.dtype != dtype or dtype not in (torch.float32, torch.float64):
        return None
    precision = torch.bfloat16 if getattr(layer, "low_precision", False) else dtype
    result = _GatherProducts.apply(what, block, precision, rows, *parameters, *what.parameters)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, torch.Tensor], result)
