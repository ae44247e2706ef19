"""Differentiable gathers over a sampled block.

If messages are linear maps of vertex rows, one autograd function computes both the maps and the gather. It
can therefore accumulate the gradients of all messages in one matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError
from hyrt.formatting import short_repr
from hyrt.graph.quantized.rows import to_numpy_dtype
from hyrt.nn.fused.edge_loop import Edges
from hyrt.nn.hetero.inputs import HeteroInPlaceInput, HeteroInput, HeteroSources
from hyrt.nn.layer import AggregatedFeatures, ColumnShardedFeatures, InPlaceFeatures, MultipliedFeatures, Rows
from hyrt.nn.message_passing.gather import SagaGather
from hyrt.nn.message_passing.program import check_slots
from hyrt.nn.message_passing.tracing import EndpointLinear, get_tensor, reference_tensor
from hyrt.nn.operators.autograd import empty, empty_array, once_differentiable
from hyrt.nn.operators.linear import linear_backward, linear_forward
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.workers import current_workers
from hyrt.sampling.block import Block

Array = NDArray[Any]


def block_edges(gather: SagaGather, block: Block, dtype: np.dtype[Any]) -> Edges:
    """Return the edges of a relabelled block by destination, with the factors that the accumulator needs.

    In a sum, each of k sampled neighbours out of d has the factor d / k, so that the expected value is the
    sum over all neighbours. If the block has weights, these correct for the sampling, and a mean divides by
    d. A maximum and a softmax have no factors.
    """
    scale = loop_scale = None
    accumulate = gather.program.accumulate
    # Plain subtraction is used, because `np.diff` and `np.array_equal` take three times as long.
    counts = block.degrees if block.weights is not None else block.indptr[1:] - block.indptr[:-1]
    if accumulate == "sum" and (counts != block.degrees).any():
        scale = np.divide(block.degrees, np.maximum(counts, 1), dtype=dtype)
    if accumulate == "mean":
        scale = dtype.type(1) / np.maximum(counts + gather.loops, 1).astype(dtype)
        loop_scale = scale if gather.loops else None
    return Edges(
        indptr=block.indptr,
        columns=block.columns,
        by_number=True,
        factors=block.weights if accumulate in ("sum", "mean") else None,
        row_scale=scale,
        loop_scale=loop_scale,
        loops=block.num_dst if gather.loops else 0,
    )


@dataclass(frozen=True, slots=True)
class BlockGather:
    """Gather over a relabelled block with the state for its backward pass."""

    gather: SagaGather
    block: Block
    edges: Edges
    messages: list[Array]
    fixed: list[Array]
    saved: tuple[Array, ...]

    __repr__ = short_repr

    @classmethod
    def forward(
        cls, gather: SagaGather, block: Block, inputs: Sequence[torch.Tensor], *, keeps: bool
    ) -> tuple[BlockGather, torch.Tensor]:
        """Gather the messages of a block; return the saved state and the gathered rows [num_dst, width].

        `inputs` are the messages: first those of sources [num_src, w], then those of destinations [num_dst,
        w]. If `keeps`, the state for a backward pass is saved.
        """
        messages = [np.ascontiguousarray(message.detach().numpy()) for message in inputs]
        dtype = messages[0].dtype if messages else np.dtype(np.float32)
        edges = block_edges(gather, block, dtype)
        fixed = gather.fixed_rows(block.source_degrees, block.degrees, block, dtype)
        out = empty_array((block.num_dst, gather.program.gathered_width), dtype)
        allocate = empty_array if keeps else None
        saved = gather.forward(edges, messages, fixed, out, current_workers(), allocate)
        return cls(gather, block, edges, messages, fixed, saved), torch.from_numpy(out)

    def backward(
        self, grad: torch.Tensor, needs_gradient: Sequence[bool]
    ) -> tuple[list[Array | None], list[torch.Tensor]]:
        """Return the gradients of the messages (None if not needed) and of `SagaGather.parameters`.

        `grad` is [num_dst, width], and `needs_gradient` has one flag per message. Input features need no
        gradient, which halves the work of the backward loops in a first layer.
        """
        outs = [
            empty_array(message.shape, message.dtype) if is_required else None
            for message, is_required in zip(self.messages, needs_gradient, strict=True)
        ]
        gradient = np.ascontiguousarray(grad.detach().numpy())
        parameter_grads = self.gather.backward(
            *(self.edges, self._by_source, self.messages, self.fixed, self.saved),
            *(gradient, outs, current_workers()),
        )
        return outs, parameter_grads

    def _by_source(self) -> Edges:
        transposed_block, edges = self.block.transposed(), self.edges
        # Calling `replace` would take as long as the loop over a small block.
        return Edges(
            indptr=transposed_block.indptr,
            columns=transposed_block.rows,
            numbers=transposed_block.edges,
            by_number=edges.by_number,
            factors=edges.factors,
            row_scale=edges.row_scale,
            loop_scale=edges.loop_scale,
            loops=edges.loops,
        )


_Item = TypeVar("_Item")


class _GatherProducts(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gather: SagaGather,
        block: Block,
        precision: torch.dtype,
        rows: torch.Tensor,
        *inputs: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        products = gather.program.products
        assert products is not None
        x, messages = rows.detach(), []
        for product, (weight, bias) in zip(products, _pairs(inputs, products), strict=True):
            message = _rows_of_end(x, product, block)
            if weight is not None:
                bias_values = None if bias is None else bias.detach()
                message = linear_forward(message, weight.detach(), bias_values, precision=precision)
            messages.append(message)
        ctx.build_gather_op, out = BlockGather.forward(
            gather, block, messages, keeps=any(ctx.needs_input_grad)
        )
        ctx.precision = precision
        ctx.save_for_backward(rows, *inputs[: 2 * len(products)])
        ctx.set_materialize_grads(False)
        head = x[: block.num_dst]
        if not rows.requires_grad:
            ctx.mark_non_differentiable(head)
        return out, head

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: torch.Tensor | None, head_grad: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        gathering: BlockGather = ctx.build_gather_op
        products = gathering.gather.program.products
        assert products is not None
        rows, *parameters = ctx.saved_tensors
        needs_rows, *needs = ctx.needs_input_grad[3:]
        needed = _pairs(needs, products)
        if grad is None:
            grad = rows.new_zeros(gathering.block.num_dst, gathering.gather.program.gathered_width)
        outs, edge_grads = gathering.backward(grad, [needs_rows or any(pair) for pair in needed])
        x = rows.detach()
        x_grad, accumulates = _init_row_gradient(x, products, outs) if needs_rows else (None, False)
        parameter_grads: list[torch.Tensor | None] = []
        for product, (weight, _), (needs_weight, needs_bias), out in zip(
            products, _pairs(parameters, products), needed, outs, strict=True
        ):
            target = None if x_grad is None else _rows_of_end(x_grad, product, gathering.block)
            weight_grad = bias_grad = None
            if weight is not None and out is not None:
                weight_grad, bias_grad = linear_backward(
                    _rows_of_end(x, product, gathering.block),
                    weight.detach(),
                    torch.from_numpy(out),
                    x_grad=target,
                    accumulate=accumulates,
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


def _pairs(values: Sequence[_Item], products: Sequence[EndpointLinear]) -> list[tuple[_Item, _Item]]:
    """Group a flat sequence into (weight, bias) pairs, one per product."""
    return [(values[2 * k], values[2 * k + 1]) for k in range(len(products))]


def _rows_of_end(rows: torch.Tensor, product: EndpointLinear, block: Block) -> torch.Tensor:
    """Return the rows of one endpoint. Destinations are the first sources."""
    return rows if product.end == "source" else rows[: block.num_dst]


def _init_row_gradient(
    x: torch.Tensor, products: Sequence[EndpointLinear], outs: Sequence[Array | None]
) -> tuple[torch.Tensor, bool]:
    """Return a matrix for the gradient of the rows, and whether products must be added to it.

    It starts with the gradient of unmultiplied source rows. Without such rows, it is uninitialized and the
    first source product overwrites it. Without source products, it starts with zeros.
    """
    source_pairs = [
        (product, out) for product, out in zip(products, outs, strict=True) if product.end == "source"
    ]
    for product, out in source_pairs:
        if product.weight is None and out is not None:
            return torch.from_numpy(out), True
    return (empty(tuple(x.shape), x), False) if source_pairs else (torch.zeros_like(x), True)


def gather_linear(
    gather: SagaGather, block: Block, rows: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return gathered rows [num_dst, width] and destination rows [num_dst, in] of a relabelled block.

    `rows` are the source rows [num_src, in]. Returns None if the messages are not linear maps of rows.
    """
    products, layer = gather.program.products, gather.layer
    if products is None:
        return None
    parameters = [
        None if name is None else get_tensor(layer, name)
        for product in products
        for name in (product.weight, product.bias)
    ]
    dtype = (
        next((each.dtype for each in parameters if each is not None), None) or reference_tensor(layer).dtype
    )
    if rows.dtype != dtype or dtype not in (torch.float32, torch.float64):
        return None
    precision = torch.bfloat16 if getattr(layer, "low_precision", False) else dtype
    result = _GatherProducts.apply(gather, block, precision, rows, *parameters, *gather.parameters)  # type: ignore[no-untyped-call]
    return cast(tuple[torch.Tensor, torch.Tensor], result)


def relabel_block(block: Block, x: Rows, dtype: torch.dtype) -> tuple[Block, torch.Tensor | SparseRows]:
    """Return a block with local source indices and its source rows (from `InPlaceFeatures`: gathered).

    Raises TypeError if source rows are not available: for aggregated, multiplied or column-sharded rows, and
    for rows of several types.
    """
    if isinstance(
        x,
        AggregatedFeatures
        | MultipliedFeatures
        | ColumnShardedFeatures
        | HeteroInput
        | HeteroInPlaceInput
        | HeteroSources,
    ):
        raise TypeError("source rows are needed here, not their aggregate or product")
    if not isinstance(x, InPlaceFeatures):
        return block.checked, x
    columns = np.asarray(block.columns)
    others = np.setdiff1d(columns, block.destinations)
    sources = np.concatenate([block.destinations, others]).astype(block.destinations.dtype)
    order = np.argsort(sources, kind="stable")
    local_columns = order[np.searchsorted(sources[order], columns)].astype(np.int32)
    rows = x.values[sources]
    values = to_numpy_dtype(rows)
    relabelled_block = replace(
        block,
        columns=local_columns,
        sources=sources,
        num_src=len(sources),
        source_degrees=block.source_degrees[sources],
        source_scale=None,
        source_weighted_degrees=(
            None if block.source_weighted_degrees is None else block.source_weighted_degrees[sources]
        ),
        format_cache=None,
        _transposed=None,
        relations=None,
    ).trusted()
    return relabelled_block, torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gather: SagaGather, block: Block, *inputs: torch.Tensor) -> torch.Tensor:
        messages = inputs[: len(gather.message_widths)]
        ctx.build_gather_op, out = BlockGather.forward(
            gather, block, messages, keeps=any(ctx.needs_input_grad)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gathering: BlockGather = ctx.build_gather_op
        needed = ctx.needs_input_grad[2 : 2 + len(gathering.messages)]
        outs, parameter_grads = gathering.backward(grad, needed)
        message_grads = (None if out is None else torch.from_numpy(out) for out in outs)
        return (None, None, *message_grads, *parameter_grads)


def gather_block(
    gather: SagaGather, block: Block, rows: torch.Tensor | SparseRows
) -> tuple[torch.Tensor, torch.Tensor | SparseRows]:
    """Return gathered rows [num_dst, width] and destination rows [num_dst, in] of a relabelled block.

    `rows` are the source rows [num_src, in]. Raises UnsupportedModelError if a destination has more edges
    than the layer has slots.
    """
    if not isinstance(rows, SparseRows | torch.Tensor):
        raise ArgumentError(
            f"in layer {block.layer}, x is {show(rows)}: pass floating-point rows, one per source"
        )
    if isinstance(rows, torch.Tensor):
        width = gather.layer.in_features
        if rows.ndim != 2 or rows.shape[1] != width or not rows.is_floating_point():
            raise ArgumentError(
                f"in layer {block.layer}, x is {show(rows)}: pass floats of shape [sources, {width}]"
            )
    if len(rows) != block.num_src:
        raise ValueError(
            f"in layer {block.layer}, x has {len(rows)} rows, but the block has {block.num_src} sources: "
            "pass one row of features per source"
        )
    if slots := gather.program.slots:
        check_slots(gather.layer, slots, np.diff(block.indptr) + gather.loops, block.destinations)
    if isinstance(rows, torch.Tensor):
        result = gather_linear(gather, block, rows)
        if result is not None:
            return result
    head = rows.head(block.num_dst) if isinstance(rows, SparseRows) else rows[: block.num_dst]
    messages: Sequence[torch.Tensor] = [
        *gather.program.vertex_values(gather.layer, rows, "source"),
        *gather.program.vertex_values(gather.layer, head, "destination"),
    ]
    gathered = _Gather.apply(gather, block, *messages, *gather.parameters)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, gathered), head
