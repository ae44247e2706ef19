"""Differentiable gather of a layer over a sampled block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError
from hyrt.graph.narrow.narrow_rows import as_numbers
from hyrt.nn.inputs import Aggregated, DividedRows, InPlace, Multiplied, Rows
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.saga.blocks.block_gathering import BlockGathering
from hyrt.nn.saga.blocks.product_gathering import gather_products
from hyrt.nn.saga.combining import check_slots
from hyrt.nn.saga.gather import SagaSum
from hyrt.nn.typed.typed_input import TypedInPlace, TypedInput, TypedSources
from hyrt.sampling.block import Block

Array = NDArray[Any]


def relabelled(block: Block, x: Rows, dtype: torch.dtype) -> tuple[Block, torch.Tensor | SparseRows]:
    """Return a block with local source indices, and its source rows; gathers the rows of `InPlace` features.

    Raises
    ------
    TypeError
        If the source rows are not available: aggregated, multiplied, sharded by columns, or of several types.
    """
    if isinstance(x, Aggregated | Multiplied | DividedRows | TypedInput | TypedInPlace | TypedSources):
        raise TypeError("the rows of the sources are needed here, not their aggregate or product")
    if not isinstance(x, InPlace):
        return block.checked, x
    columns = np.asarray(block.columns)
    others = np.setdiff1d(columns, block.destinations)
    sources = np.concatenate([block.destinations, others]).astype(block.destinations.dtype)
    order = np.argsort(sources, kind="stable")
    local_columns = order[np.searchsorted(sources[order], columns)].astype(np.int32)
    rows = x.values[sources]
    values = as_numbers(rows)
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
        kept=None,
        _transposed=None,
        relations=None,
    ).trusted()
    return relabelled_block, torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, what: SagaSum, block: Block, *given: torch.Tensor) -> torch.Tensor:
        messages = given[: len(what.message_widths)]
        ctx.gathering, out = BlockGathering.forward(what, block, messages, keeps=any(ctx.needs_input_grad))
        return out

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        gathering: BlockGathering = ctx.gathering
        needed = ctx.needs_input_grad[2 : 2 + len(gathering.messages)]
        outs, parameter_grads = gathering.backward(grad, needed)
        message_grads = (None if out is None else torch.from_numpy(out) for out in outs)
        return (None, None, *message_grads, *parameter_grads)


def gather_over_block(
    what: SagaSum, block: Block, rows: torch.Tensor | SparseRows
) -> tuple[torch.Tensor, torch.Tensor | SparseRows]:
    """Return the gathered rows [num_dst, width] of a block, and the rows of its destinations [num_dst, in].

    Parameters
    ----------
    what
        The gather.
    block
        A relabelled block.
    rows
        [num_src, in], the source rows.

    Raises
    ------
    ValueError
        If the number of rows is not the number of sources.
    UnsupportedModel
        If a destination has more edges than the layer has slots for.
    """
    if not isinstance(rows, SparseRows | torch.Tensor):
        raise ArgumentError(
            f"layer {block.layer}: x is {show(rows)}: give rows of floats, one for each source"
        )
    if isinstance(rows, torch.Tensor):
        width = what.layer.in_features
        if rows.ndim != 2 or rows.shape[1] != width or not rows.is_floating_point():
            raise ArgumentError(f"layer {block.layer}: x is {show(rows)}: give floats [sources, {width}]")
    if len(rows) != block.num_src:
        raise ValueError(
            f"layer {block.layer}: x has {len(rows)} rows, but the block has {block.num_src} sources: give "
            "one row of features per source"
        )
    if slots := what.program.slots:
        check_slots(what.layer, slots, np.diff(block.indptr) + what.loops, block.destinations)
    if isinstance(rows, torch.Tensor):
        result = gather_products(what, block, rows)
        if result is not None:
            return result
    head = rows.head(block.num_dst) if isinstance(rows, SparseRows) else rows[: block.num_dst]
    messages: Sequence[torch.Tensor] = [
        *what.program.rows(what.layer, rows, "source"),
        *what.program.rows(what.layer, head, "destination"),
    ]
    gathered = _Gather.apply(what, block, *messages, *what.parameters)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, gathered), head
