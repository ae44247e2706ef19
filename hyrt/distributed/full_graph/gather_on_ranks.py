"""Distributed gather operations that need all source rows at once: attention, maximum, edge functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import Arrival
from hyrt.distributed.full_graph.spread_edges import GRADIENTS, ROWS, SpreadEdges
from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.gathering import Arrays, Gathering, MeetsGradient

Array = NDArray[Any]


class GatherOnRanks:
    """Runs any gather operation on the edges of all ranks; a `hyrt.fullgraph.gathering.Gathering`.

    The halo rows are exchanged first; then the rank gathers over its local edges. In the backward pass, the
    gradients of remote rows are sent to their owners. If ranks share a block (1.5D), the operation must be a
    sum,
    and each of them adds the part of its edges.

    Parameters
    ----------
    spread
        The edges.
    inner
        Gathers over the edges of this rank.
    of_sources
        For each message, whether edges read it at their source.
    """

    def __init__(self, spread: SpreadEdges, inner: Gathering, of_sources: Sequence[bool]) -> None:
        self._spread = spread
        self._inner = inner
        self._exchanged = [number for number, is_read in enumerate(of_sources) if is_read]
        if isinstance(inner, MeetsGradient):
            # Set only if supported: see `hyrt.fullgraph.gathering.MeetsGradient`.
            self.meet = self._save_for_backward
            self.unread = inner.unread

    @property
    def reads_messages_back(self) -> bool:
        """Whether `backward` reads the messages."""
        return self._inner.reads_messages_back

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Layer parameters that the edge functions read."""
        return self._inner.parameters

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        spread = self._spread
        inputs = tuple(spread.with_room(message) for message in messages)
        clock = spread.times.product()
        arrivals: list[Arrival] = []
        for slot, number in enumerate(self._exchanged):
            arrivals += spread.exchange.begin(inputs[number], ROWS, slot)
        for arrival in arrivals:
            clock.wait(arrival.wait)
        saved = self._inner.forward(inputs, out, self._localize(over))
        clock.end(arrivals)
        spread.add_columns(out)
        return saved

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        spread, num = self._spread, self._spread.edges.num_own
        if spread.replicas is not None and over.accumulate:
            # The existing values are replicated at all ranks of the block and must not be summed again.
            added = tuple(np.empty_like(matrix) for matrix in out)
            gradients = self.backward(messages, kept, grad, added, replace(over, accumulate=False))
            for matrix, more in zip(out, added, strict=True):
                np.add(matrix[:num], more[:num], out=matrix[:num])
            return gradients
        if over.accumulate:
            # The buffer still contains rows of the remote vertices.
            for matrix in out:
                matrix[num:] = 0
        clock = spread.times.product()
        parameter_gradients = self._inner.backward(messages, kept, grad, out, self._localize(over))
        pending = []
        for slot, number in enumerate(self._exchanged):
            pending.append(spread.exchange.begin_back(out[number], GRADIENTS, slot))
            for wave in range(spread.edges.grid.num_waves):
                pending[-1].send(wave)
        for number, handle in zip(self._exchanged, pending, strict=True):
            clock.wait(partial(handle.add, out[number][:num]))
        clock.end(pending)
        return self._sum_columns(out, parameter_gradients)

    def _localize(self, context: GatheringPass) -> GatheringPass:
        """Restrict a gather over all rows to the local vertices: remote rows have no incoming edges here."""
        return context if context.at is not None else replace(context, at=self._spread.own)

    def _sum_columns(
        self, out: tuple[Array, ...], parameter_gradients: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Sum the gradients of local rows and of parameters over the grid columns.

        Each column has computed the gradients for its part of the edges.
        """
        spread, num = self._spread, self._spread.edges.num_own
        if spread.replicas is None:
            return parameter_gradients
        for number, matrix in enumerate(out):
            local = matrix[:num]
            if number in self._exchanged:
                local[:] = spread.from_multiplying(local)
            else:
                spread.add_columns(local)
        return [spread.sum_of_columns(gradient) for gradient in parameter_gradients]

    def _save_for_backward(
        self, messages: tuple[Array, ...], saved: tuple[Array, ...], destinations: Destinations | None,
        start: int, gathered: Array, grad: Array,
    ) -> None:  # fmt: skip
        assert isinstance(self._inner, MeetsGradient)
        self._inner.meet(messages, saved, destinations or self._spread.own, start, gathered, grad)
