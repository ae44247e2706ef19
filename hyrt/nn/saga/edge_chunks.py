"""Edges computed by torch, some at a time: what `apply_edge` does where it is no form.

Values of edges exist for one chunk only. The backward pass computes a chunk again and differentiates it. What
chunks add to a sum is added in the order of the chunks, whichever is ready first.
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

from hyrt.machine.workers import Workers, current_workers, working
from hyrt.nn.fused.edges import Edges
from hyrt.nn.saga.combining import combine
from hyrt.nn.saga.program import EdgeProgram, Given
from hyrt.nn.tensor_operators.tensor_block import Derived, TensorBlock
from hyrt.nn.whole_graph.edge_ranges import edge_ranges

Array = NDArray[Any]

CHUNK_EDGES = 1 << 14
"""Edges of a chunk: enough that calls of torch cost little beside the work. One destination may have more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some destinations' edges, a destination's edge from itself first."""

    rows: Array
    """[n] the destinations."""
    indptr: Array
    """[n + 1] where each one's edges start."""
    sources: Array
    """[e] the source of each edge."""
    owners: Array
    """[e] which of the destinations each edge goes to."""
    numbers: Array
    """[e] the number of each edge, -1 of one from the destination itself."""

    def places(self, num_edges: int) -> Array:
        """[e] where each edge is among rows of edges, of which those from vertices to themselves are last."""
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
    """[e, 1] what the messages of a sum are multiplied by."""
    if edges.row_scale is None and edges.factors is None and edges.loop_scale is None:
        return None
    is_loop, found = chunk.numbers < 0, np.ones(len(chunk.numbers), dtype)
    rows = chunk.rows[chunk.owners]
    if edges.row_scale is not None:
        found *= np.where(is_loop, 1, edges.row_scale[rows])
    if edges.factors is not None:
        found *= np.where(is_loop, 1, edges.factors[np.maximum(chunk.numbers, 0)])
    if edges.loop_scale is not None:
        found *= np.where(is_loop, edges.loop_scale[rows], 1)
    return found[:, None]


def _compute(
    program: EdgeProgram, layer: nn.Module, edges: Edges, chunk: _Chunk, leaves: Sequence[torch.Tensor],
    given: Sequence[Given],
) -> torch.Tensor:  # fmt: skip
    values = {each.node: leaf.view(-1, *each.shape) for each, leaf in zip(given, leaves, strict=True)}
    factors = _factors(edges, chunk, leaves[0].detach().numpy().dtype)
    owners, sources = torch.from_numpy(chunk.owners), torch.from_numpy(chunk.sources)
    none = owners[:0]
    block = TensorBlock(
        indptr=torch.from_numpy(chunk.indptr),
        columns=sources,
        sources=none,
        num_dst=len(chunk.rows),
        degrees=none,
        source_degrees=none,
        layer=0,
        derived=Derived(rows=owners),
    )
    along = None if factors is None else torch.from_numpy(factors)
    return combine(program.accumulate, program.edge_values(layer, values), block, along, program.slots)


def _leaves(
    edges: Edges, chunk: _Chunk, operands: Sequence[Array], given: Sequence[Given]
) -> list[torch.Tensor]:
    rows = {
        "source": chunk.sources,
        "destination": chunk.rows[chunk.owners],
        "edge": chunk.places(len(edges.columns)),
    }
    return [torch.from_numpy(x[rows[each.end]]) for x, each in zip(operands, given, strict=True)]


def gather_in_chunks(
    program: EdgeProgram,
    layer: nn.Module,
    edges: Edges,
    operands: Sequence[Array],
    out: Array,
    workers: Workers | None,
) -> None:
    """Gather at destinations; see `FusedGather.forward`. Operands are those of both ends and of edges."""
    given = [each for each in program.given if each.end != "shared"]

    def work(chunk: _Chunk, place: slice) -> Callable[[], None]:
        with torch.no_grad():
            leaves = _leaves(edges, chunk, operands, given)
            out[place] = _compute(program, layer, edges, chunk, leaves, given).numpy()
        return lambda: None

    _in_order(edges, work, workers)


def gather_back_in_chunks(
    program: EdgeProgram,
    layer: nn.Module,
    edges: Edges,
    operands: Sequence[Array],
    grad: Array,
    outs: Sequence[Array],
    parameters: Sequence[nn.Parameter],
    workers: Workers | None,
) -> list[torch.Tensor]:
    """The gradients of what both ends give, which are added to `outs`, and those of parameters.

    Parameters
    ----------
    program, layer, edges, operands, workers
        The same as for `gather_in_chunks`.
    grad
        [m, width] the gradient of what was gathered.
    outs
        One matrix for each operand that is not fixed.
    parameters
        The parameters in question.
    """
    given = [each for each in program.given if each.end != "shared"]
    totals = [torch.zeros_like(each) for each in parameters]

    def work(chunk: _Chunk, place: slice) -> Callable[[], None]:
        with torch.enable_grad():
            leaves = _leaves(edges, chunk, operands, given)
            rows = [leaf.requires_grad_(not each.is_fixed) for leaf, each in zip(leaves, given, strict=True)]
            wanted = [leaf for leaf, each in zip(rows, given, strict=True) if not each.is_fixed]
            result = _compute(program, layer, edges, chunk, leaves, given)
            found = torch.autograd.grad(
                result, [*wanted, *parameters], torch.from_numpy(grad[place]), allow_unused=True
            )

        def commit() -> None:
            ends = [each.end for each in given if not each.is_fixed]
            for out, end, term in zip(outs, ends, found, strict=False):
                if term is not None:
                    at = chunk.sources if end == "source" else chunk.rows[chunk.owners]
                    torch.from_numpy(out).index_add_(0, torch.from_numpy(at), term)
            for total, term in zip(totals, found[len(ends) :], strict=True):
                if term is not None:
                    total.add_(term)

        return commit

    _in_order(edges, work, workers)
    return totals


def _in_order(
    edges: Edges, work: Callable[[_Chunk, slice], Callable[[], None]], workers: Workers | None
) -> None:
    """Do `work` for chunks of edges, and what it returns in the order of the chunks."""
    borders = edge_ranges(edges.indptr, edges.rows, CHUNK_EDGES).tolist()
    lock, waiting, done = threading.Lock(), {}, [0]
    alone = Workers(1, "edges")

    def ranges(first: int, last: int) -> None:
        for k in range(first, last):
            with working(alone):
                commit = work(_chunk(edges, borders[k], borders[k + 1]), slice(borders[k], borders[k + 1]))
            with lock:
                waiting[k] = commit
                while (ready := waiting.pop(done[0], None)) is not None:
                    done[0] += 1
                    ready()

    (workers or current_workers()).run(ranges, len(borders) - 1, 1)
