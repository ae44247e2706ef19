"""A layer's gathering over a sampled block, differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import as_numbers
from hyrt.machine.workers import current_workers
from hyrt.nn.fused.edges import Edges
from hyrt.nn.inputs import Aggregated, DividedRows, InPlace, Multiplied, Rows
from hyrt.nn.operators.first_derivative import first_derivative
from hyrt.nn.operators.result_memory import empty_array
from hyrt.nn.operators.sparse import SparseRows
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
        return block, x
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
    )
    return own, torch.from_numpy(np.ascontiguousarray(values)).to(dtype)


def edges_of_block(what: SagaSum, block: Block, dtype: np.dtype[Any]) -> Edges:
    """The edges of a relabelled block by destination, with the factors of the accumulator.

    A sum counts each of k sampled neighbours out of d as d / k, so that its expectation is that of all. Where
    edges have weights, these undo the sampling, and a mean divides by d. A maximum and a softmax know no
    factors.
    """
    weighted = block.weights is not None
    counts = (block.degrees if weighted else np.diff(block.indptr)).astype(dtype)
    one, scale, loop_scale = dtype.type(1), None, None
    accumulate = what.program.accumulate
    if accumulate == "sum" and not np.array_equal(counts, block.degrees):
        scale = block.degrees.astype(dtype) / np.maximum(counts, one)
    if accumulate == "mean":
        scale = one / np.maximum(counts + what.loops, one)
        loop_scale = scale if what.loops else None
    return Edges(
        indptr=block.indptr,
        columns=block.columns,
        by_number=True,
        factors=block.weights if accumulate in ("sum", "mean") else None,
        row_scale=scale,
        loop_scale=loop_scale,
        loops=block.num_dst if what.loops else 0,
    )


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, what: SagaSum, block: Block, *given: torch.Tensor) -> torch.Tensor:
        count = len(what.message_widths)
        messages = [np.ascontiguousarray(each.detach().numpy()) for each in given[:count]]
        dtype = messages[0].dtype if messages else np.dtype(np.float32)
        edges = edges_of_block(what, block, dtype)
        fixed = what.fixed_rows(block.source_degrees, block.degrees, block, dtype)
        out = empty_array((block.num_dst, what.program.gathered_width), dtype)
        take = empty_array if any(ctx.needs_input_grad) else None
        kept = what.forward(edges, messages, fixed, out, current_workers(), take)
        ctx.known = (what, block, edges, messages, fixed, kept)
        return torch.from_numpy(out)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        what, block, edges, messages, fixed, kept = ctx.known
        # Features take none: half of what a first layer's loops compute is left out.
        wanted = ctx.needs_input_grad[2:]
        outs = [
            empty_array(each.shape, each.dtype) if is_wanted else None
            for each, is_wanted in zip(messages, wanted, strict=False)
        ]
        along = np.ascontiguousarray(grad.detach().numpy())

        def by_source() -> Edges:
            assert isinstance(edges, Edges)
            turned = block.transposed()
            # `replace` takes as long as a loop over a small block.
            return Edges(
                indptr=turned.indptr,
                columns=turned.rows,
                numbers=turned.edges,
                by_number=edges.by_number,
                factors=edges.factors,
                row_scale=edges.row_scale,
                loop_scale=edges.loop_scale,
                loops=edges.loops,
            )

        found = what.backward(edges, by_source, messages, fixed, kept, along, outs, current_workers())
        return (None, None, *(None if each is None else torch.from_numpy(each) for each in outs), *found)


def gather_over_block(what: SagaSum, block: Block, rows: torch.Tensor | SparseRows) -> torch.Tensor:
    """[num_dst, width] what the destinations of a block gather.

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
    if len(rows) != block.num_src:
        raise ValueError(
            f"layer {block.layer}: x has {len(rows)} rows, but the block has {block.num_src} sources: give "
            "one row of features per source"
        )
    if slots := what.program.slots:
        check_slots(what.layer, slots, np.diff(block.indptr) + what.loops, block.destinations)
    head = rows.head(block.num_dst) if isinstance(rows, SparseRows) else rows[: block.num_dst]
    messages: Sequence[torch.Tensor] = [
        *what.program.rows(what.layer, rows, "source"),
        *what.program.rows(what.layer, head, "destination"),
    ]
    return cast(
        torch.Tensor,
        _Gather.apply(what, block, *messages, *what.parameters),  # type: ignore[no-untyped-call]
    )
