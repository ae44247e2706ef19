"""A layer's gathering over a sampled block together with the products that its messages are, differentiable.

What comes back along all messages is added up in one matrix, product by product. Products by themselves would
each make a matrix of all sources, those of destinations filled up with zeros, only to be added.
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

_Each = TypeVar("_Each")


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
        for each, (weight, bias) in zip(products, _pairs(given, products), strict=True):
            own = _of_end(x, each, block)
            if weight is not None:
                added = None if bias is None else bias.detach()
                own = product_of_rows(own, weight.detach(), added, precision=precision)
            messages.append(own)
        ctx.gathering, out = BlockGathering.forward(what, block, messages, keeps=any(ctx.needs_input_grad))
        ctx.precision = precision
        ctx.save_for_backward(rows, *given[: 2 * len(products)])
        ctx.set_materialize_grads(False)
        own = x[: block.num_dst]
        if not rows.requires_grad:
            ctx.mark_non_differentiable(own)
        return out, own

    @staticmethod
    @first_derivative
    def backward(
        ctx: Any, grad: torch.Tensor | None, grad_own: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gathering: BlockGathering = ctx.gathering
        products = gathering.what.program.products
        assert products is not None
        rows, *given = ctx.saved_tensors
        needs_rows, *needs = ctx.needs_input_grad[3:]
        needed = _pairs(needs, products)
        if grad is None:
            grad = rows.new_zeros(gathering.block.num_dst, gathering.what.program.gathered_width)
        outs, of_edges = gathering.backward(grad, [needs_rows or any(pair) for pair in needed])
        x = rows.detach()
        x_grad, is_there = _begun(x, products, outs) if needs_rows else (None, False)
        found: list[torch.Tensor | None] = []
        for each, (weight, _), (needs_weight, needs_bias), out in zip(
            products, _pairs(given, products), needed, outs, strict=True
        ):
            into = None if x_grad is None else _of_end(x_grad, each, gathering.block)
            of_weight = of_bias = None
            if weight is not None and out is not None:
                of_weight, of_bias = gradients_of_product(
                    _of_end(x, each, gathering.block),
                    weight.detach(),
                    torch.from_numpy(out),
                    x_grad=into,
                    adds=is_there,
                    needs_weight=needs_weight,
                    needs_bias=needs_bias,
                    precision=ctx.precision,
                )
                is_there = True
            elif into is not None and each.end == "destination":
                into += torch.from_numpy(out)
            found += [of_weight, of_bias]
        if x_grad is not None and grad_own is not None:
            x_grad[: gathering.block.num_dst] += grad_own
        return (None, None, None, x_grad, *found, *of_edges)


def _pairs(given: Sequence[_Each], products: Sequence[EndProduct]) -> list[tuple[_Each, _Each]]:
    """What there is of the weight and of the bias of each product."""
    return [(given[2 * k], given[2 * k + 1]) for k in range(len(products))]


def _of_end(rows: torch.Tensor, product: EndProduct, block: Block) -> torch.Tensor:
    """The rows of one end: destinations are the first sources."""
    return rows if product.end == "source" else rows[: block.num_dst]


def _begun(
    x: torch.Tensor, products: Sequence[EndProduct], outs: Sequence[Array | None]
) -> tuple[torch.Tensor, bool]:
    """A matrix for the gradient of the rows, and whether there is something in it to be added to.

    What comes back to the sources' own rows is there already. Without it, the first product overwrites all.
    """
    of_sources = [(each, out) for each, out in zip(products, outs, strict=True) if each.end == "source"]
    for each, out in of_sources:
        if each.weight is None and out is not None:
            return torch.from_numpy(out), True
    return (empty(tuple(x.shape), x), False) if of_sources else (torch.zeros_like(x), True)


def gather_products(
    what: SagaSum, block: Block, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """What the destinations of a block gather, [num_dst, width], and their own rows, [num_dst, in].

    None where messages are no products of rows.

    Parameters
    ----------
    what
        The messages and how they are combined.
    block
        A relabelled block.
    rows
        [num_src, in] the rows of its sources.
    """
    products, layer = what.program.products, what.layer
    if products is None:
        return None
    given = [
        None if name is None else attribute_of(layer, name)
        for each in products
        for name in (each.weight, each.bias)
    ]
    dtype = next((each.dtype for each in given if each is not None), None) or number_of(layer).dtype
    if rows.dtype != dtype or dtype not in (torch.float32, torch.float64):
        return None
    precision = torch.bfloat16 if getattr(layer, "low_precision", False) else dtype
    found = _GatherProducts.apply(what, block, precision, rows, *given, *what.parameters)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, torch.Tensor], found)
