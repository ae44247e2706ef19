"""Gather with `apply_edge` computed by torch in chunks of edges, if it cannot be fused.

Edge values exist for one chunk only; the backward pass recomputes and differentiates each chunk. Sums are
accumulated in chunk order, whichever chunk is finished first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hyrt.nn.full_graph.traversal import split_by_edges
from hyrt.nn.fused.edge_loop import Edges
from hyrt.nn.message_passing.program import EdgeInput, EdgeProgram, combine
from hyrt.nn.tensor_operators.tensor_block import DerivedEdges, TensorBlock
from hyrt.runtime.workers import Workers, current_workers, use_workers

Array = NDArray[Any]

CHUNK_EDGES = 1 << 14
"""Edges per chunk, enough to make the call overhead of torch negligible; one destination may have more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Edges of a range of destinations, starting with their self-loops."""

    rows: Array
    """[n] destinations."""
    indptr: Array
    """[n + 1] start of each destination's edges."""
    sources: Array
    """[e] source of each edge."""
    owners: Array
    """[e] index in `rows` of each edge's destination."""
    numbers: Array
    """[e] id of each edge, -1 for self-loops."""

    def edge_indices(self, num_edges: int) -> Array:
        """Return [e], the index of each edge in arrays of edge values, in which self-loops come last."""
        return np.where(self.numbers < 0, num_edges + self.rows[self.owners], self.numbers)


def _chunk(edges: Edges, start: int, stop: int) -> _Chunk:
    rows = np.arange(start, stop) if edges.rows is None else edges.rows[start:stop].astype(np.int64)
    begin = edges.indptr[rows].astype(np.int64)
    loops = (rows < edges.loops).astype(np.int64)
    counts = edges.indptr[rows + 1] - begin + loops
    indptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    owners = np.repeat(np.arange(len(rows)), counts)
    numbers = np.arange(indptr[-1]) - (indptr[:-1] - begin + loops)[owners]
    is_loop = numbers < begin[owners]
    sources = np.where(
        is_loop, rows[owners], edges.columns[np.where(is_loop, 0, numbers)] if len(edges.columns) else 0
    )
    return _Chunk(rows, indptr, sources.astype(np.int64), owners, np.where(is_loop, -1, numbers))


def _factors(edges: Edges, chunk: _Chunk, dtype: Any) -> Array | None:
    """Return [e, 1], the factors of messages for sums; None if all are 1."""
    if edges.row_scale is None and edges.factors is None and edges.loop_scale is None:
        return None
    is_loop, factors = chunk.numbers < 0, np.ones(len(chunk.numbers), dtype)
    rows = chunk.rows[chunk.owners]
    if edges.row_scale is not None:
        factors *= np.where(is_loop, 1, edges.row_scale[rows])
    if edges.factors is not None:
        factors *= np.where(is_loop, 1, edges.factors[np.maximum(chunk.numbers, 0)])
    if edges.loop_scale is not None:
        factors *= np.where(is_loop, edges.loop_scale[rows], 1)
    return factors[:, None]


def _compute(
    program: EdgeProgram, layer: nn.Module, edges: Edges, chunk: _Chunk, leaves: Sequence[torch.Tensor],
    inputs: Sequence[EdgeInput],
) -> torch.Tensor:  # fmt: skip
    values = {value.node: leaf.view(-1, *value.shape) for value, leaf in zip(inputs, leaves, strict=True)}
    factors = _factors(edges, chunk, leaves[0].detach().numpy().dtype)
    owners, sources = torch.from_numpy(chunk.owners), torch.from_numpy(chunk.sources)
    empty = owners[:0]
    block = TensorBlock(
        indptr=torch.from_numpy(chunk.indptr),
        columns=sources,
        sources=empty,
        num_dst=len(chunk.rows),
        degrees=empty,
        source_degrees=empty,
        layer=0,
        derived=DerivedEdges(rows=owners),
    )
    edge_factors = None if factors is None else torch.from_numpy(factors)
    messages = program.edge_values(layer, values)
    return combine(program.accumulate, messages, block, edge_factors, program.slots)


def _leaves(
    edges: Edges, chunk: _Chunk, operands: Sequence[Array], inputs: Sequence[EdgeInput]
) -> list[torch.Tensor]:
    rows = {
        "source": chunk.sources,
        "destination": chunk.rows[chunk.owners],
        "edge": chunk.edge_indices(len(edges.columns)),
    }
    return [torch.from_numpy(x[rows[value.end]]) for x, value in zip(operands, inputs, strict=True)]


def gather_in_chunks(
    program: EdgeProgram,
    layer: nn.Module,
    edges: Edges,
    operands: Sequence[Array],
    out: Array,
    workers: Workers | None,
) -> None:
    """Gather at destinations; see `FusedGather.forward`. Operands are values of both ends and of edges."""
    inputs = [value for value in program.inputs if value.end != "shared"]

    def work(chunk: _Chunk, out_rows: slice) -> Callable[[], None]:
        with torch.no_grad():
            leaves = _leaves(edges, chunk, operands, inputs)
            out[out_rows] = _compute(program, layer, edges, chunk, leaves, inputs).numpy()
        return lambda: None

    _in_order(edges, work, workers)


def gather_chunks_backward(
    program: EdgeProgram,
    layer: nn.Module,
    edges: Edges,
    operands: Sequence[Array],
    grad: Array,
    outs: Sequence[Array],
    parameters: Sequence[nn.Parameter],
    workers: Workers | None,
) -> list[torch.Tensor]:
    """Add the gradients of both ends' values to `outs`, and return the gradients of `parameters`.

    `grad` is [m, width], the gradient of the gathered rows, and `outs` has one matrix per operand that is not
    fixed.
    """
    inputs = [value for value in program.inputs if value.end != "shared"]
    totals = [torch.zeros_like(parameter) for parameter in parameters]

    def work(chunk: _Chunk, out_rows: slice) -> Callable[[], None]:
        with torch.enable_grad():
            leaves = _leaves(edges, chunk, operands, inputs)
            pairs = list(zip(leaves, inputs, strict=True))
            rows = [leaf.requires_grad_(not value.is_fixed) for leaf, value in pairs]
            variables = [leaf for leaf, value in zip(rows, inputs, strict=True) if not value.is_fixed]
            result = _compute(program, layer, edges, chunk, leaves, inputs)
            terms = torch.autograd.grad(
                result, [*variables, *parameters], torch.from_numpy(grad[out_rows]), allow_unused=True
            )

        def commit() -> None:
            ends = [value.end for value in inputs if not value.is_fixed]
            for out, end, term in zip(outs, ends, terms, strict=False):
                if term is not None:
                    indices = chunk.sources if end == "source" else chunk.rows[chunk.owners]
                    torch.from_numpy(out).index_add_(0, torch.from_numpy(indices), term)
            for total, term in zip(totals, terms[len(ends) :], strict=True):
                if term is not None:
                    total.add_(term)

        return commit

    _in_order(edges, work, workers)
    return totals


def _in_order(
    edges: Edges, work: Callable[[_Chunk, slice], Callable[[], None]], workers: Workers | None
) -> None:
    """Run `work` for all chunks in parallel, and the callbacks that it returns in chunk order."""
    borders = split_by_edges(edges.indptr, edges.rows, CHUNK_EDGES).tolist()
    lock, pending, num_done = threading.Lock(), {}, [0]
    single = Workers(1, "edges")

    def ranges(first: int, last: int) -> None:
        for k in range(first, last):
            with use_workers(single):
                commit = work(_chunk(edges, borders[k], borders[k + 1]), slice(borders[k], borders[k + 1]))
            with lock:
                pending[k] = commit
                while (next_commit := pending.pop(num_done[0], None)) is not None:
                    num_done[0] += 1
                    next_commit()

    (workers or current_workers()).run(ranges, len(borders) - 1, 1)
