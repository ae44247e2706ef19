"""Gather of a layer's messages over any edges, and the edge weights, types and features of a layer."""

from __future__ import annotations

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
from hyrt.nn.fused.edge_expr import End
from hyrt.nn.fused.edge_loop import Edges
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.message_passing.edge_chunks import gather_chunks_backward, gather_in_chunks
from hyrt.nn.message_passing.program import EdgeProgram
from hyrt.runtime.workers import Workers

Array = NDArray[Any]


class EdgesWithValues(Protocol):
    """Edges with optional types, weights and features: a topology or a block."""

    @property
    def indptr(self) -> Any:
        """Return [n + 1], the start of each vertex's incoming edges."""
        ...

    @property
    def edge_types(self) -> Any:
        """Return [E] or None."""
        ...

    @property
    def edge_weights(self) -> Any:
        """Return [E] or None."""
        ...

    @property
    def edge_rows(self) -> Any:
        """Return [E, d] or None: the values of `edge.data`."""
        ...


def read_edge_columns(program: EdgeProgram, layer: nn.Module, edges: EdgesWithValues) -> dict[str, Any]:
    """Return the edge values that a layer reads, by name: [E] types and weights, [E, d] data.

    Raises UnsupportedModelError if a value is missing, a type is out of range, or a width differs.
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
                f"{type(layer).__name__} takes {columns} features of an edge, but edges have "
                f"{values.shape[1]}: give the layer edge_features={values.shape[1]}"
            )
        result[name] = values
    return result


def _missing_values_error(layer: nn.Module, name: str) -> UnsupportedModelError:
    description, key = (
        ("weights", "edge_weight, one number") if name == "weight" else ("features", "edge_features, a row")
    )
    return UnsupportedModelError(
        f"{type(layer).__name__} reads edge.{name}, but the edges have no {description}: give the dataset "
        f"the key {key} for each edge"
    )


def self_loop_rows(name: str, values: Array, indptr: Array) -> Array:
    """Return the values of n self-loops, [n, ...]: weight 1, and the mean of the vertex's edge data.

    `values` [E, ...] belong to the other edges by destination, and `indptr` is [n + 1].
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
            f"{type(layer).__name__} knows {num_types} types of edges, from 0 on, but edge "
            f"{int(np.argmax(types))} has type {highest}: give the layer edge_types={highest + 1}"
        )
    return types


def missing_types_error(layer: nn.Module) -> UnsupportedModelError:
    """Return the error for a layer that reads edge types if the edges have none."""
    return UnsupportedModelError(
        f"{type(layer).__name__} reads edge.type, but the edges have no types: give the dataset the key "
        "edge_type, one number for each edge"
    )


_Item = TypeVar("_Item")
AllocateArray = Callable[[tuple[int, ...], DTypeLike], Array]
"""Function that allocates an uninitialized array."""


@dataclass(frozen=True, slots=True)
class SagaGather:
    """Gather of a `SagaLayer`: its messages and their reduction.

    Messages are the values that vertices send as sources, followed by the values that they send as
    destinations, in the order of `EdgeProgram.inputs_from`.
    """

    program: EdgeProgram
    layer: nn.Module
    """Layer with the parameters that the edge computation reads."""
    loops: bool
    """Whether vertices have a self-loop in addition to their edges."""

    __repr__ = short_repr

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the edge computation reads and that require a gradient."""
        names = self.program.edge_parameters
        if not names:
            return []
        # A shared parameter has several names, and the edge computation may read it by any of these.
        read = {
            id(parameter): parameter
            for name, parameter in self.layer.named_parameters(remove_duplicate=False)
            if parameter.requires_grad and any(name == n or name.startswith(f"{n}.") for n in names)
        }
        return list(read.values())

    @property
    def ends(self) -> list[str]:
        """Return the end of each message."""
        return [value.end for end in ("source", "destination") for value in self.program.inputs_from(end)]

    @property
    def message_widths(self) -> tuple[int, ...]:
        """Return the width of each message."""
        ends = ("source", "destination")
        return tuple(value.width for end in ends for value in self.program.inputs_from(end))  # type: ignore[arg-type]

    def fixed_rows(
        self, sources: Array, destinations: Array, edges: EdgesWithValues, dtype: DTypeLike
    ) -> list[Array]:
        """Compute the inputs without gradient, from in-degrees and edge values, as C-contiguous matrices.

        `sources` and `destinations` are the in-degrees of both ends. Matrices of edges have one row per edge
        by destination, followed by one row per self-loop if there are self-loops.
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
        """Gather at destinations into `out` [m, width]; return the matrices that `backward` needs in
        addition.

        `messages` has one C-contiguous matrix per message, and `fixed` is the result of `fixed_rows`.
        `allocate` creates the returned matrices; None if there is no backward pass. None for `workers`
        selects the calling thread's team.
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
            # The caller may overwrite `out` with its gradient, but backward needs both.
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
        """Backpropagate the gradient of the gathered rows to `outs`; return the gradients of `parameters`.

        `by_source` returns the same edges by source, and `grad` is [m, width], C-contiguous. Gradients in
        `outs` are overwritten; None for messages whose gradient is not needed.
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
        # Shared constants require no gradient.
        pairs = [(value, g) for value, g in zip(shared, gradients, strict=True) if value.requires_grad]
        parameter_grads = torch.autograd.grad(
            [value for value, _ in pairs], parameters, [g for _, g in pairs], allow_unused=True
        )
        return [
            torch.zeros_like(parameter) if gradient is None else gradient
            for parameter, gradient in zip(parameters, parameter_grads, strict=True)
        ]

    def _select_gradients(self, fused: FusedGather, outs: Sequence[Array | None]) -> FusedGather:
        """Return the loops without the gradients of messages whose `outs` is None."""
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
        """Sort one item per message into the order of the program's inputs."""
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
        """Return all inputs of an edge in the program's order, without shared inputs if `shared` is None."""
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
