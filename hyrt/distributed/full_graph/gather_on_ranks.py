"""Gatherings that need the rows of all sources at once: attention, maxima, functions of both ends."""

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
    """Any gathering over the edges of all ranks; a `hyrt.fullgraph.gathering.Gathering`.

    The rows that edges read come first; then the rank gathers as if the graph ended with them. Backward, the
    gradients of remote rows are sent where the rows are. Where ranks share a block (1.5D), what is gathered
    has to be a sum, and each adds its part of the edges to it.

    Parameters
    ----------
    spread
        The edges.
    inner
        Gathers along the edges of this rank, whose sources are all there.
    of_sources
        For each message, whether it is read at the source of an edge.
    """

    def __init__(self, spread: SpreadEdges, inner: Gathering, of_sources: Sequence[bool]) -> None:
        self._spread = spread
        self._inner = inner
        self._travel = [number for number, is_read in enumerate(of_sources) if is_read]
        if isinstance(inner, MeetsGradient):
            # Looked for: see `hyrt.fullgraph.gathering.MeetsGradient`.
            self.meet = self._meet
            self.unread = inner.unread

    @property
    def reads_messages_back(self) -> bool:
        """Whether `backward` reads the messages."""
        return self._inner.reads_messages_back

    @property
    def parameters(self) -> tuple[torch.nn.Parameter, ...]:
        """Parameters of the layer that edges read."""
        return self._inner.parameters

    def forward(self, messages: Arrays, out: Array, over: GatheringPass) -> Arrays:
        spread = self._spread
        given = tuple(spread.with_room(message) for message in messages)
        clock = spread.times.product()
        arrivals: list[Arrival] = []
        for slot, number in enumerate(self._travel):
            arrivals += spread.exchange.begin(given[number], ROWS, slot)
        for arrival in arrivals:
            clock.wait(arrival.wait)
        kept = self._inner.forward(given, out, self._own(over))
        clock.end(arrivals)
        spread.add_columns(out)
        return kept

    def backward(
        self, messages: Arrays, kept: Arrays, grad: Array, out: Arrays, over: GatheringPass
    ) -> Sequence[torch.Tensor]:
        spread, num = self._spread, self._spread.edges.num_own
        if spread.replicas is not None and over.accumulate:
            # What is there is at every rank of the block, and is not added up.
            found = tuple(np.empty_like(matrix) for matrix in out)
            gradients = self.backward(messages, kept, grad, found, replace(over, accumulate=False))
            for matrix, more in zip(out, found, strict=True):
                np.add(matrix[:num], more[:num], out=matrix[:num])
            return gradients
        if over.accumulate:
            # What other vertices' rows were is there.
            for matrix in out:
                matrix[num:] = 0
        clock = spread.times.product()
        of_parameters = self._inner.backward(messages, kept, grad, out, self._own(over))
        backs = []
        for slot, number in enumerate(self._travel):
            backs.append(spread.exchange.begin_back(out[number], GRADIENTS, slot))
            for wave in range(spread.edges.grid.num_waves):
                backs[-1].send(wave)
        for number, back in zip(self._travel, backs, strict=True):
            clock.wait(partial(back.add, out[number][:num]))
        clock.end(backs)
        return self._of_all_columns(out, of_parameters)

    def _own(self, over: GatheringPass) -> GatheringPass:
        """Of all rows, those of other ranks gather nothing."""
        return over if over.at is not None else replace(over, at=self._spread.own)

    def _of_all_columns(
        self, out: tuple[Array, ...], of_parameters: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Complete the gradients of own rows and of parameters, of which each column has its edges' part."""
        spread, num = self._spread, self._spread.edges.num_own
        if spread.replicas is None:
            return of_parameters
        for number, matrix in enumerate(out):
            own = matrix[:num]
            if number in self._travel:
                own[:] = spread.from_multiplying(own)
            else:
                spread.add_columns(own)
        return [spread.sum_of_columns(each) for each in of_parameters]

    def _meet(
        self, messages: tuple[Array, ...], kept: tuple[Array, ...], at: Destinations | None, start: int,
        gathered: Array, grad: Array,
    ) -> None:  # fmt: skip
        assert isinstance(self._inner, MeetsGradient)
        self._inner.meet(messages, kept, at or self._spread.own, start, gathered, grad)
