"""A layer's gathering over a sampled block, differentiable."""

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
    """A block with rows of its own sources, and those rows; of a block that is read in place, a new one.

    Raises
    ------
    TypeError
        If the sources' rows are not there any more: aggregated, multiplied, or divided.
    """
    if isinstance(x, Aggregated | Multiplied | DividedRows | TypedInput | TypedInPlace | TypedSources):
        raise TypeError("the rows of the sources are needed here, not their aggregate or product")
    if not isinstance(x, InPlace):
        return block.checked, x
    columns = np.asarray(block.columns)
    others = np.setdiff1d(columns, block.destinations)
    sources = np.concatenate([block.destinations, others]).astype(block.destinations.dtype)
    order = np.argsort(sources, kind="stable")
    places = order[np.searchsorted(sources[order], columns)].astype(np.int32)
    rows = x.values[sources]
    values = as_numbers(rows)
    own = replace(
        block,
        columns=places,
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
    return own, torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


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
        wanted = ctx.needs_input_grad[2 : 2 + len(gathering.messages)]
        outs, found = gathering.backward(grad, wanted)
        return (None, None, *(None if each is None else torch.from_numpy(each) for each in outs), *found)


def gather_over_block(
    what: SagaSum, block: Block, rows: torch.Tensor | SparseRows
) -> tuple[torch.Tensor, torch.Tensor | SparseRows]:
    """What the destinations of a block gather, [num_dst, width], and their own rows, [num_dst, in].

    Parameters
    ----------
    what
        The messages and how they are combined.
    block
        A relabelled block.
    rows
        [num_src, in] the rows of its sources.

    Raises
    ------
    ValueError
        If there is not one row a source.
    UnsupportedModel
        If a destination has more edges than the layer has slots for.
    """
    if not isinstance(rows, SparseRows | torch.Tensor):
        raise ArgumentError(
            f"layer {block.layer}: x is {show(rows)}: give rows of floats, one for each source"
        )
    if isinstance(rows, torch.Tensor):
        wanted = what.layer.in_features
        if rows.ndim != 2 or rows.shape[1] != wanted or not rows.is_floating_point():
            raise ArgumentError(f"layer {block.layer}: x is {show(rows)}: give floats [sources, {wanted}]")
    if len(rows) != block.num_src:
        raise ValueError(
            f"layer {block.layer}: x has {len(rows)} rows, but the block has {block.num_src} sources: give "
            "one row of features per source"
        )
    if slots := what.program.slots:
        check_slots(what.layer, slots, np.diff(block.indptr) + what.loops, block.destinations)
    if isinstance(rows, torch.Tensor):
        found = gather_products(what, block, rows)
        if found is not None:
            return found
    head = rows.head(block.num_dst) if isinstance(rows, SparseRows) else rows[: block.num_dst]
    messages: Sequence[torch.Tensor] = [
        *what.program.rows(what.layer, rows, "source"),
        *what.program.rows(what.layer, head, "destination"),
    ]
    gathered = _Gather.apply(what, block, *messages, *what.parameters)  # type: ignore[no-untyped-call]
    return cast(torch.Tensor, gathered), head
