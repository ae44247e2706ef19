"""The gathering of a layer's messages over any edges: fused, or in chunks of edges."""

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
_Each = TypeVar("_Each")
Take = Callable[[tuple[int, ...], DTypeLike], Array]
"""Gives an uninitialised array."""


@dataclass(frozen=True, slots=True)
class SagaSum:
    """How the messages of a `SagaLayer` are combined.

    Messages are what vertices give as sources and then what they give as destinations, as
    `EdgeProgram.of_end` lists them.
    """

    program: EdgeProgram
    layer: nn.Module
    """Whose parameters edges read."""
    loops: bool
    """Whether vertices have an edge from themselves besides their own."""

    __repr__ = one_line

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that edges read and that take a gradient."""
        names = self.program.edge_parameters
        if not names:
            return []
        # A parameter may have several names, of which edges read any.
        read = {
            id(each): each
            for name, each in self.layer.named_parameters(remove_duplicate=False)
            if each.requires_grad and any(name == n or name.startswith(f"{n}.") for n in names)
        }
        return list(read.values())

    @property
    def ends(self) -> list[str]:
        """The end of each message."""
        return [each.end for end in ("source", "destination") for each in self.program.of_end(end)]

    @property
    def message_widths(self) -> tuple[int, ...]:
        """Columns of the messages."""
        ends = ("source", "destination")
        return tuple(each.width for end in ends for each in self.program.of_end(end))  # type: ignore[arg-type]

    def fixed_rows(
        self, sources: Array, destinations: Array, edges: EdgesWithValues, dtype: DTypeLike
    ) -> list[Array]:
        """What is given of in-degrees, and of what edges have of their own: C-contiguous matrices.

        Those of edges have a row for each edge by destination, and where vertices have an edge from
        themselves, one for each of these after them.

        Parameters
        ----------
        sources, destinations
            In-degrees of both ends.
        edges
            The edges by destination: a block or a topology.
        dtype
            The matrices' numbers.

        Raises
        ------
        UnsupportedModel
            If the layer reads what the edges have not, or a type that it does not know.
        """
        found: list[Array] = []
        for end, degrees in (("source", sources), ("destination", destinations)):
            if self.program.of_end(end, fixed=True):  # type: ignore[arg-type]
                column = torch.from_numpy(np.ascontiguousarray(degrees, dtype)[:, None])
                rows = self.program.degree_rows(self.layer, column, end)  # type: ignore[arg-type]
                found += [np.ascontiguousarray(each.numpy(), dtype) for each in rows]
        if not self.program.edge_reads:
            return found
        columns = {}
        for name, values in edge_columns(self.program, self.layer, edges).items():
            own = values.astype(dtype, copy=False).reshape(len(values), -1)
            if self.loops:
                own = np.concatenate([own, loop_rows(name, own, edges.indptr)])
            columns[name] = torch.from_numpy(np.ascontiguousarray(own))
        found += [
            np.ascontiguousarray(each.numpy(), dtype) for each in self.program.edge_rows(self.layer, columns)
        ]
        return found

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
            By destination.
        messages
            A C-contiguous matrix for each message.
        fixed
            What `fixed_rows` has given.
        out
            [m, width]; overwritten.
        workers
            The team of threads; the calling thread's by default.
        take
            Where matrices are taken from for what `backward` needs besides; None where there is no backward.

        Returns
        -------
        Those matrices.
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
        kept: tuple[Array, ...] = ()
        if take is not None and fused.combine == "max":
            kept = (take(out.shape, np.int32),)
        if take is not None and fused.combine == "attention":
            kept = (take((len(out), fused.form.heads), out.dtype), take(out.shape, out.dtype))
        fused.forward(edges, operands, out, kept[0] if kept else None, workers)
        if len(kept) == 2:
            # The gradient may take the place of what was gathered, and both are needed at once.
            np.copyto(kept[1], out)
        return kept

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
        """Take the gradient of what was gathered back to the messages.

        Parameters
        ----------
        edges, messages, fixed, kept, workers
            What `forward` was given and has returned.
        by_source
            Gives the same edges by source.
        grad
            [m, width] C-contiguous.
        outs
            The gradients of the messages; overwritten. None where one is not wanted.

        Returns
        -------
        The gradients of `parameters`.
        """
        program, fused, parameters = self.program, self.program.fused, self.parameters
        ends = self.ends
        if fused is None:
            given = [
                np.zeros_like(message) if out is None else out
                for out, message in zip(outs, messages, strict=True)
            ]
            for out in given:
                out.fill(0)
            operands = self._operands(messages, fixed, None)
            ordered = self._in_given_order(given)
            return gather_back_in_chunks(
                program, self.layer, edges, operands, grad, ordered, parameters, workers
            )
        shared: list[torch.Tensor] = []
        if program.of_end("shared"):
            with torch.enable_grad():
                shared = program.shared(self.layer)
        operands = self._operands(messages, fixed, [each.detach() for each in shared])
        winners = None
        if fused.combine == "max":
            (winners,) = kept
        if fused.combine == "attention":
            means = np.empty_like(kept[0])
            fused.means(grad, kept[1], means, workers)
            operands += [kept[0], means]
        operands.append(grad)
        fused = self._wanted(fused, outs)
        pairs_of_ends = [(out, end) for out, end in zip(outs, ends, strict=True) if out is not None]
        to_destinations = [out for out, end in pairs_of_ends if end == "destination"]
        if edges.rows is not None:
            for out in to_destinations:
                out.fill(0)
        to_sources = [out for out, end in pairs_of_ends if end == "source"]
        if fused.goes_both_ways(edges, workers):
            ends_of_edges = to_destinations, to_sources
            of_shared = fused.to_both_ends(edges, operands, *ends_of_edges, winners, workers)
        else:
            of_shared = fused.to_destinations(edges, operands, to_destinations, winners, workers)
            if to_sources:
                fused.to_sources(by_source(), operands, to_sources, winners, workers)
        if not parameters:
            return []
        along = [torch.from_numpy(each)[None] for each in of_shared]
        # Constants that edges share take no gradient.
        pairs = [(value, g) for value, g in zip(shared, along, strict=True) if value.requires_grad]
        found = torch.autograd.grad(
            [value for value, _ in pairs], parameters, [g for _, g in pairs], allow_unused=True
        )
        return [
            torch.zeros_like(each) if term is None else term
            for each, term in zip(parameters, found, strict=True)
        ]

    def _wanted(self, fused: FusedGather, outs: Sequence[Array | None]) -> FusedGather:
        """The loops without the gradients of the messages that are not wanted."""
        flags = [out is not None for out in outs]
        if all(flags):
            return fused
        of_messages = iter(self._in_given_order(flags))
        ends = ("source", "destination")
        return fused.taking(
            tuple(
                next(of_messages) if each.end in ends and not each.is_fixed else True
                for each in self.program.given
            )
        )

    def _in_given_order(self, messages: Sequence[_Each]) -> list[_Each]:
        """Messages, or what there is of each, in the order of the program's values."""
        by_end = {end: iter(self._part(messages, end)) for end in ("source", "destination")}
        return [
            next(by_end[each.end]) for each in self.program.given if each.end in by_end and not each.is_fixed
        ]

    def _part(self, messages: Sequence[_Each], end: str) -> list[_Each]:
        return [each for each, its_end in zip(messages, self.ends, strict=True) if its_end == end]

    def _operands(
        self, messages: Sequence[Array], fixed: Sequence[Array], shared: Sequence[torch.Tensor] | None
    ) -> list[Array]:
        """All values that an edge is given, in the program's order; without the shared ones where None."""
        rows = iter(self._in_given_order(messages))
        ends: tuple[End, ...] = ("source", "destination", "edge")
        counts = [len(self.program.of_end(end, fixed=True)) for end in ends]
        borders = [0, *accumulate(counts)]
        of_end = {end: iter(fixed[slice(*part)]) for end, part in zip(ends, pairwise(borders), strict=True)}
        of_all = iter([np.ascontiguousarray(each.detach().numpy()) for each in shared or ()])
        found = []
        for each in self.program.given:
            if each.end == "shared":
                if shared is not None:
                    found.append(next(of_all))
            elif each.is_fixed:
                found.append(next(of_end[each.end]))
            else:
                found.append(next(rows))
        return found
