"""Gather of a layer's messages over any edges: fused, or in chunks of edges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import nn

from hyrt.machine.workers import Workers
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.form import End
from hyrt.nn.fused.fused_gather import FusedGather
from hyrt.nn.saga.edge_chunks import gather_back_in_chunks, gather_in_chunks
from hyrt.nn.saga.edge_columns import EdgesWithValues, edge_columns, loop_rows
from hyrt.nn.saga.program import EdgeProgram
from hyrt.quantities import one_line

Array = NDArray[Any]
_Item = TypeVar("_Item")
Take = Callable[[tuple[int, ...], DTypeLike], Array]
"""Function that allocates an uninitialized array."""


@dataclass(frozen=True, slots=True)
class SagaSum:
    """Gather of a `SagaLayer`: its messages and their reduction.

    Messages are the values that vertices send as sources, followed by the values that they send as
    destinations, in the order of `EdgeProgram.of_end`.
    """

    program: EdgeProgram
    layer: nn.Module
    """Layer with the parameters that the edge computation reads."""
    loops: bool
    """Whether vertices have a self-loop in addition to their edges."""

    __repr__ = one_line

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters that the edge computation reads and that require a gradient."""
        names = self.program.edge_parameters
        if not names:
            return []
        # A shared parameter has several names, and the edge computation may read it by any of them.
        read = {
            id(parameter): parameter
            for name, parameter in self.layer.named_parameters(remove_duplicate=False)
            if parameter.requires_grad and any(name == n or name.startswith(f"{n}.") for n in names)
        }
        return list(read.values())

    @property
    def ends(self) -> list[str]:
        """Return the end of each message."""
        return [value.end for end in ("source", "destination") for value in self.program.of_end(end)]

    @property
    def message_widths(self) -> tuple[int, ...]:
        """Return the width of each message."""
        ends = ("source", "destination")
        return tuple(value.width for end in ends for value in self.program.of_end(end))  # type: ignore[arg-type]

    def fixed_rows(
        self, sources: Array, destinations: Array, edges: EdgesWithValues, dtype: DTypeLike
    ) -> list[Array]:
        """Compute the inputs without gradient, from in-degrees and edge values, as C-contiguous matrices.

        Matrices of edges have one row per edge by destination, followed by one row per self-loop if there are
        self-loops.

        Parameters
        ----------
        sources, destinations
            In-degrees of both ends.
        edges
            Edges by destination: a block or a topology.
        dtype
            Dtype of the matrices.

        Raises
        ------
        UnsupportedModel
            If the edges lack a value that the layer reads, or have a type that is out of range.
        """
        matrices: list[Array] = []
        for end, degrees in (("source", sources), ("destination", destinations)):
            if self.program.of_end(end, fixed=True):  # type: ignore[arg-type]
                column = torch.from_numpy(np.ascontiguousarray(degrees, dtype)[:, None])
                rows = self.program.degree_rows(self.layer, column, end)  # type: ignore[arg-type]
                matrices += [np.ascontiguousarray(values.numpy(), dtype) for values in rows]
        if not self.program.edge_reads:
            return matrices
        columns = {}
        for name, values in edge_columns(self.program, self.layer, edges).items():
            rows_of_edges = values.astype(dtype, copy=False).reshape(len(values), -1)
            if self.loops:
                loop_values = loop_rows(name, rows_of_edges, edges.indptr)
                rows_of_edges = np.concatenate([rows_of_edges, loop_values])
            columns[name] = torch.from_numpy(np.ascontiguousarray(rows_of_edges))
        matrices += [
            np.ascontiguousarray(rows.numpy(), dtype) for rows in self.program.edge_rows(self.layer, columns)
        ]
        return matrices

    def forward(
        self,
        edges: Edges,
        messages: Sequence[Array],
        fixed: Sequence[Array],
        out: Array,
        workers: Workers | None,
        take: Take | None,
    ) -> tuple[Array, ...]:
        """Gather at destinations.

        Parameters
        ----------
        edges
            Edges by destination.
        messages
            One C-contiguous matrix per message.
        fixed
            The result of `fixed_rows`.
        out
            [m, width], the gathered rows; overwritten.
        workers
            Thread team; the calling thread's by default.
        take
            Allocator of the matrices that `backward` needs in addition; None if there is no backward pass.

        Returns
        -------
        These matrices.
        """
        program, fused = self.program, self.program.fused
        if fused is None:
            operands = self._operands(messages, fixed, None)
            gather_in_chunks(program, self.layer, edges, operands, out, workers)
            return ()
        shared: list[torch.Tensor] = []
        if program.of_end("shared"):
            with torch.no_grad():
                shared = program.shared(self.layer)
        operands = self._operands(messages, fixed, shared)
        saved: tuple[Array, ...] = ()
        if take is not None and fused.combine == "max":
            saved = (take(out.shape, np.int32),)
        if take is not None and fused.combine == "attention":
            saved = (take((len(out), fused.form.heads), out.dtype), take(out.shape, out.dtype))
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
        kept: Sequence[Array],
        grad: Array,
        outs: Sequence[Array | None],
        workers: Workers | None,
    ) -> list[torch.Tensor]:
        """Backpropagate the gradient of the gathered rows to the messages.

        Parameters
        ----------
        edges, messages, fixed, kept, workers
            Arguments and result of `forward`.
        by_source
            Function that returns the same edges by source.
        grad
            [m, width], C-contiguous gradient of the gathered rows.
        outs
            Gradients of the messages; overwritten. None for a gradient that is not needed.

        Returns
        -------
        Gradients of `parameters`.
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
            return gather_back_in_chunks(
                program, self.layer, edges, operands, grad, ordered, parameters, workers
            )
        shared: list[torch.Tensor] = []
        if program.of_end("shared"):
            with torch.enable_grad():
                shared = program.shared(self.layer)
        operands = self._operands(messages, fixed, [value.detach() for value in shared])
        winners = None
        if fused.combine == "max":
            (winners,) = kept
        if fused.combine == "attention":
            means = np.empty_like(kept[0])
            fused.means(grad, kept[1], means, workers)
            operands += [kept[0], means]
        operands.append(grad)
        fused = self._select_gradients(fused, outs)
        pairs_of_ends = [(out, end) for out, end in zip(outs, ends, strict=True) if out is not None]
        to_destinations = [out for out, end in pairs_of_ends if end == "destination"]
        if edges.rows is not None:
            for out in to_destinations:
                out.fill(0)
        to_sources = [out for out, end in pairs_of_ends if end == "source"]
        if fused.goes_both_ways(edges, workers):
            ends_of_edges = to_destinations, to_sources
            shared_grads = fused.to_both_ends(edges, operands, *ends_of_edges, winners, workers)
        else:
            shared_grads = fused.to_destinations(edges, operands, to_destinations, winners, workers)
            if to_sources:
                fused.to_sources(by_source(), operands, to_sources, winners, workers)
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
        return fused.taking(
            tuple(
                next(message_flags) if value.end in ends and not value.is_fixed else True
                for value in self.program.given
            )
        )

    def _in_program_order(self, messages: Sequence[_Item]) -> list[_Item]:
        """Sort one item per message into the order of the program's inputs."""
        by_end = {end: iter(self._select_end(messages, end)) for end in ("source", "destination")}
        return [
            next(by_end[value.end])
            for value in self.program.given
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
        counts = [len(self.program.of_end(end, fixed=True)) for end in ends]
        borders = [0, *accumulate(counts)]
        fixed_by_end = {
            end: iter(fixed[slice(*bounds)]) for end, bounds in zip(ends, pairwise(borders), strict=True)
        }
        shared_rows = iter([np.ascontiguousarray(value.detach().numpy()) for value in shared or ()])
        operands = []
        for value in self.program.given:
            if value.end == "shared":
                if shared is not None:
                    operands.append(next(shared_rows))
            elif value.is_fixed:
                operands.append(next(fixed_by_end[value.end]))
            else:
                operands.append(next(rows))
        return operands
