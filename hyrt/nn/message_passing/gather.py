"""Gather of a layer's messages over any edges: in fused loops, or with torch in chunks of edges.  Edge values
exist for one chunk at a time, and the backward pass recomputes and differentiates each chunk. Sums are
accumulated in chunk order, independently of the order in which chunks are finished.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import nn

from hyrt.errors import UnsupportedModelError
from hyrt.formatting import short_repr
from hyrt.nn.full_graph.traversal import split_by_edges
from hyrt.nn.fused.edge_loop import Edges, End
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.message_passing.program import EdgeInput, EdgeProgram, combine
from hyrt.nn.operators.tensor_ops import DerivedEdges, TensorBlock
from hyrt.runtime.workers import Workers, current_workers, use_workers

Array = NDArray[Any]

CHUNK_EDGES = 1 << 14
"""Edges per chunk: enough to make torch's call overhead negligible. One destination may have more."""


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Edges of a range of destinations. Each destination's self-loop is its first edge."""

    rows: Array
    """Destinations [n]."""
    indptr: Array
    """Start of the edges of each destination, [n + 1]."""
    sources: Array
    """Source of each edge, [e]."""
    owners: Array
    """Index in `rows` of each edge's destination, [e]."""
    numbers: Array
    """Id of each edge, [e]; -1 for self-loops."""

    def edge_indices(self, num_edges: int) -> Array:
        """Return the index [e] of each edge in arrays of edge values, in which self-loops are last."""
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
    """Return the factors [e, 1] of messages in sums; None if all are 1."""
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
    """Gather at destinations, as in `FusedGather.forward`, from values of both endpoints and of edges."""
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
    """Add the gradients of both endpoints' values to `outs`; return the gradients of `parameters`.

    `grad` [m, width] is the gradient of the gathered rows. `outs` has one matrix per operand that is not
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
    """Run `work` for all chunks in parallel, and run the callbacks that it returns in chunk order."""
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


class EdgesWithValues(Protocol):
    """Edges with optional types, weights and features: those of a topology or of a block."""

    @property
    def indptr(self) -> Any:
        """Return the start of the incoming edges of each vertex, [n + 1]."""
        ...

    @property
    def edge_types(self) -> Any:
        """Return the edge types [E], or None."""
        ...

    @property
    def edge_weights(self) -> Any:
        """Return the edge weights [E], or None."""
        ...

    @property
    def edge_rows(self) -> Any:
        """Return the values of `edge.data` [E, d], or None."""
        ...


def read_edge_columns(program: EdgeProgram, layer: nn.Module, edges: EdgesWithValues) -> dict[str, Any]:
    """Return the edge values that a layer reads by name: types and weights [E], data [E, d].

    Raises UnsupportedModelError if values are missing, a type is out of range, or a width differs.
    """
    result: dict[str, Any] = {}
    for name in program.edge_fields:
        values = {"type": edges.edge_types, "weight": edges.edge_weights, "data": edges.edge_rows}[name]
        if values is None:
            raise missing_types_error(layer) if name == "type" else _missing_values_error(layer, name)
        if name == "type" and isinstance(values, np.ndarray):
            check_edge_types(layer, values)
        columns = int(getattr(layer, "edge_features", 0))
        if name == "data" and values.shape[1] != columns:
            raise UnsupportedModelError(
                f"{type(layer).__name__} has edge_features={columns}, but the edges have {values.shape[1]} "
                f"features: create the layer with edge_features={values.shape[1]}"
            )
        result[name] = values
    return result


def _missing_values_error(layer: nn.Module, name: str) -> UnsupportedModelError:
    noun, key, value = (
        ("weights", "edge_weight", "number") if name == "weight" else ("features", "edge_features", "row")
    )
    return UnsupportedModelError(
        f"{type(layer).__name__} reads edge.{name}, but the edges have no {noun}: add the key {key} to the "
        f"dataset, with one {value} per edge"
    )


def self_loop_rows(name: str, values: Array, indptr: Array) -> Array:
    """Return the values [n, ...] of n self-loops: weight 1, and the mean of the edge data of the vertex.

    `values` [E, ...] are those of the other edges by destination, and `indptr` is [n + 1].
    """
    counts = np.diff(indptr)
    if name == "weight":
        return np.ones((len(counts), 1), values.dtype)
    means = np.zeros((len(counts), values.shape[1]), values.dtype)
    nonempty = np.flatnonzero(counts)
    if len(nonempty):
        sums = np.add.reduceat(values, indptr[nonempty], axis=0, dtype=np.float64)
        means[nonempty] = sums / counts[nonempty, None]
    return means


def check_edge_types(layer: nn.Module, types: Array | None) -> Array:
    """Return the edge types [E]; raise UnsupportedModelError if they are missing or out of range."""
    if types is None:
        raise missing_types_error(layer)
    num_types, highest = int(getattr(layer, "edge_types", 0)), int(types.max(initial=0))
    if highest >= num_types:
        raise UnsupportedModelError(
            f"{type(layer).__name__} has edge_types={num_types}, but edge {int(np.argmax(types))} has type "
            f"{highest}: create the layer with edge_types={highest + 1}"
        )
    return types


def missing_types_error(layer: nn.Module) -> UnsupportedModelError:
    """Return the error for a layer that reads the types of edges that have none."""
    return UnsupportedModelError(
        f"{type(layer).__name__} reads edge.type, but the edges have no types: add the key edge_type to the "
        "dataset, with one number per edge"
    )


_Item = TypeVar("_Item")
AllocateArray = Callable[[tuple[int, ...], DTypeLike], Array]
"""Function that allocates an uninitialized array."""


@dataclass(frozen=True, slots=True)
class SagaGather:
    """Gather of a `SagaLayer`: its messages and their reduction.

    Messages are the values that vertices send as sources, then the values that they send as destinations,
    both in the order of `EdgeProgram.inputs_from`.
    """

    program: EdgeProgram
    layer: nn.Module
    """Layer whose parameters the edge computation reads."""
    loops: bool
    """Whether vertices have a self-loop in addition to their edges."""

    __repr__ = short_repr

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the edge computation reads and that require gradients."""
        names = self.program.edge_parameters
        if not names:
            return []
        # A shared parameter has several names, any of which the edge computation may use.
        read = {
            id(parameter): parameter
            for name, parameter in self.layer.named_parameters(remove_duplicate=False)
            if parameter.requires_grad and any(name == n or name.startswith(f"{n}.") for n in names)
        }
        return list(read.values())

    @property
    def ends(self) -> list[str]:
        """Return the endpoint that sends each message."""
        return [value.end for end in ("source", "destination") for value in self.program.inputs_from(end)]

    @property
    def message_widths(self) -> tuple[int, ...]:
        """Return the width of each message."""
        ends = ("source", "destination")
        return tuple(value.width for end in ends for value in self.program.inputs_from(end))  # type: ignore[arg-type]

    def fixed_rows(
        self, sources: Array, destinations: Array, edges: EdgesWithValues, dtype: DTypeLike
    ) -> list[Array]:
        """Compute the inputs without gradient from in-degrees and edge values, as C-contiguous matrices.

        `sources` and `destinations` are the in-degrees of both endpoints. Matrices of edge values have one
        row per edge by destination, then one row per self-loop if there are any.
        """
        matrices: list[Array] = []
        for end, degrees in (("source", sources), ("destination", destinations)):
            if self.program.inputs_from(end, fixed=True):  # type: ignore[arg-type]
                column = torch.from_numpy(np.ascontiguousarray(degrees, dtype)[:, None])
                rows = self.program.degree_values(self.layer, column, end)  # type: ignore[arg-type]
                matrices += [np.ascontiguousarray(values.numpy(), dtype) for values in rows]
        if not self.program.edge_fields:
            return matrices
        columns = {}
        for name, values in read_edge_columns(self.program, self.layer, edges).items():
            rows_of_edges = values.astype(dtype, copy=False).reshape(len(values), -1)
            if self.loops:
                loop_values = self_loop_rows(name, rows_of_edges, edges.indptr)
                rows_of_edges = np.concatenate([rows_of_edges, loop_values])
            columns[name] = torch.from_numpy(np.ascontiguousarray(rows_of_edges))
        matrices += [
            np.ascontiguousarray(rows.numpy(), dtype)
            for rows in self.program.edge_input_values(self.layer, columns)
        ]
        return matrices

    def forward(
        self,
        edges: Edges,
        messages: Sequence[Array],
        fixed: Sequence[Array],
        out: Array,
        workers: Workers | None,
        allocate: AllocateArray | None,
    ) -> tuple[Array, ...]:
        """Gather at destinations into `out` [m, width]; return further matrices that `backward` needs.

        `messages` has one C-contiguous matrix per message, and `fixed` is the result of `fixed_rows`.
        `allocate` creates the returned matrices; it is None if there is no backward pass. If `workers` is
        None, the team of the calling thread is used.
        """
        program, fused = self.program, self.program.fused
        if fused is None:
            operands = self._operands(messages, fixed, None)
            gather_in_chunks(program, self.layer, edges, operands, out, workers)
            return ()
        shared: list[torch.Tensor] = []
        if program.inputs_from("shared"):
            with torch.no_grad():
                shared = program.shared_values(self.layer)
        operands = self._operands(messages, fixed, shared)
        saved: tuple[Array, ...] = ()
        if allocate is not None and fused.combine == "max":
            saved = (allocate(out.shape, np.int32),)
        if allocate is not None and fused.combine == "attention":
            saved = (allocate((len(out), fused.form.heads), out.dtype), allocate(out.shape, out.dtype))
        fused.forward(edges, operands, out, saved[0] if saved else None, workers)
        if len(saved) == 2:
            # The caller may overwrite `out` with its gradient, but `backward` needs both.
            np.copyto(saved[1], out)
        return saved

    def backward(
        self,
        edges: Edges,
        by_source: Callable[[], Edges],
        messages: Sequence[Array],
        fixed: Sequence[Array],
        saved: Sequence[Array],
        grad: Array,
        outs: Sequence[Array | None],
        workers: Workers | None,
    ) -> list[torch.Tensor]:
        """Write the gradients of the messages to `outs`; return the gradients of `parameters`.

        `by_source` returns the same edges sorted by source, and `grad` is [m, width], C-contiguous. Gradients
        in `outs` are overwritten; None for messages whose gradients are not needed.
        """
        program, fused, parameters = self.program, self.program.fused, self.parameters
        ends = self.ends
        if fused is None:
            message_grads = [
                np.zeros_like(message) if out is None else out
                for out, message in zip(outs, messages, strict=True)
            ]
            for out in message_grads:
                out.fill(0)
            operands = self._operands(messages, fixed, None)
            ordered = self._in_program_order(message_grads)
            return gather_chunks_backward(
                program, self.layer, edges, operands, grad, ordered, parameters, workers
            )
        shared: list[torch.Tensor] = []
        if program.inputs_from("shared"):
            with torch.enable_grad():
                shared = program.shared_values(self.layer)
        operands = self._operands(messages, fixed, [value.detach() for value in shared])
        winners = None
        if fused.combine == "max":
            (winners,) = saved
        if fused.combine == "attention":
            means = np.empty_like(saved[0])
            fused.output_gradient_products(grad, saved[1], means, workers)
            operands += [saved[0], means]
        operands.append(grad)
        fused = self._select_gradients(fused, outs)
        pairs_of_ends = [(out, end) for out, end in zip(outs, ends, strict=True) if out is not None]
        to_destinations = [out for out, end in pairs_of_ends if end == "destination"]
        if edges.rows is not None:
            for out in to_destinations:
                out.fill(0)
        to_sources = [out for out, end in pairs_of_ends if end == "source"]
        if fused.uses_both_loop(edges, workers):
            ends_of_edges = to_destinations, to_sources
            shared_grads = fused.backward_to_both_ends(edges, operands, *ends_of_edges, winners, workers)
        else:
            shared_grads = fused.backward_to_destinations(edges, operands, to_destinations, winners, workers)
            if to_sources:
                fused.backward_to_sources(by_source(), operands, to_sources, winners, workers)
        if not parameters:
            return []
        gradients = [torch.from_numpy(gradient)[None] for gradient in shared_grads]
        # Shared constants do not require a gradient.
        pairs = [(value, g) for value, g in zip(shared, gradients, strict=True) if value.requires_grad]
        parameter_grads = torch.autograd.grad(
            [value for value, _ in pairs], parameters, [g for _, g in pairs], allow_unused=True
        )
        return [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(parameters, parameter_grads, strict=True)
        ]

    def _select_gradients(self, fused: FusedGather, outs: Sequence[Array | None]) -> FusedGather:
        """Return loops without the gradients of the messages whose item in `outs` is None."""
        flags = [out is not None for out in outs]
        if all(flags):
            return fused
        message_flags = iter(self._in_program_order(flags))
        ends = ("source", "destination")
        return fused.with_gradients(
            tuple(
                next(message_flags) if value.end in ends and not value.is_fixed else True
                for value in self.program.inputs
            )
        )

    def _in_program_order(self, messages: Sequence[_Item]) -> list[_Item]:
        """Reorder one item per message to the order of the program's inputs."""
        by_end = {end: iter(self._select_end(messages, end)) for end in ("source", "destination")}
        return [
            next(by_end[value.end])
            for value in self.program.inputs
            if value.end in by_end and not value.is_fixed
        ]

    def _select_end(self, messages: Sequence[_Item], end: str) -> list[_Item]:
        return [item for item, item_end in zip(messages, self.ends, strict=True) if item_end == end]

    def _operands(
        self, messages: Sequence[Array], fixed: Sequence[Array], shared: Sequence[torch.Tensor] | None
    ) -> list[Array]:
        """Return all inputs of the edges in program order, without shared inputs if `shared` is None."""
        rows = iter(self._in_program_order(messages))
        ends: tuple[End, ...] = ("source", "destination", "edge")
        counts = [len(self.program.inputs_from(end, fixed=True)) for end in ends]
        borders = [0, *accumulate(counts)]
        fixed_by_end = {
            end: iter(fixed[slice(*bounds)]) for end, bounds in zip(ends, pairwise(borders), strict=True)
        }
        shared_rows = iter([np.ascontiguousarray(value.detach().numpy()) for value in shared or ()])
        operands = []
        for value in self.program.inputs:
            if value.end == "shared":
                if shared is not None:
                    operands.append(next(shared_rows))
            elif value.is_fixed:
                operands.append(next(fixed_by_end[value.end]))
            else:
                operands.append(next(rows))
        return operands
