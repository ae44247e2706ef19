"""Halo exchange for ranks that compute their block of the graph in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import Arrival, WayBack
from hyrt.distributed.full_graph.product_times import ProductClock
from hyrt.distributed.full_graph.spread_edges import GRADIENTS, ROWS, SpreadEdges
from hyrt.quantities import one_line

Array = NDArray[Any]


@dataclass(frozen=True)
class ChunkTravel:
    """Exchanges halo rows between layers; a `hyrt.fullgraph.chunks.travelling_rows.TravellingRows`.

    Used by the propagation thread only.
    """

    spread: SpreadEdges
    """Edges of this rank."""
    num_vertices: int
    """Number of vertices in the whole graph."""

    __repr__ = one_line

    @property
    def vertices(self) -> Array:
        """[n + h] ids of the local and then the remote vertices."""
        return self.spread.edges.vertices

    @cached_property
    def waves(self) -> Sequence[int]:
        """Number of remote rows that each exchange round receives."""
        return [stop - start for start, stop in pairwise(self.spread.edges.wave_starts)]

    @property
    def is_replicated(self) -> bool:
        """Whether other ranks compute the same rows (1.5D)."""
        return self.spread.replicas is not None

    @property
    def multiplies_own(self) -> bool:
        """Whether this rank has the edges between its local vertices.

        With replication, only one rank of a block has these edges.
        """
        return self.spread.edges.grid.multiplies_own

    def add_up(self, sums: Array) -> None:
        """Sum the gathered rows over the ranks that compute the same block (1.5D)."""
        self.spread.add_columns(sums)

    def share(self, gradients: Array) -> None:
        """Replace gradients of local rows by the gradients of the rank that multiplies with these rows."""
        shared = self.spread.from_multiplying(gradients)
        if shared is not gradients:
            gradients[:] = shared

    def begin(self, matrix: Array) -> _InboundChunkRows:
        """Start to fill the remote rows of a matrix [n + h, w]."""
        clock = self.spread.times.product()
        return _InboundChunkRows(clock, self.spread.exchange.begin(matrix, ROWS))

    def begin_back(self, matrix: Array) -> _OutboundChunkGradients:
        """Start to return gradients of the remote rows of a matrix [n + h, w] to their owners."""
        clock = self.spread.times.product()
        return _OutboundChunkGradients(clock, self.spread.exchange.begin_back(matrix, GRADIENTS))


@dataclass(frozen=True, slots=True)
class _InboundChunkRows:
    """Handle of received rows; see `hyrt.fullgraph.chunks.travelling_rows.ComingRows`."""

    clock: ProductClock
    arrivals: Sequence[Arrival]

    @property
    def arrived(self) -> bool:
        return all(arrival.ended_at is not None for arrival in self.arrivals)

    def wait(self) -> None:
        for arrival in self.arrivals:
            self.clock.wait(arrival.wait)
        self.clock.end(self.arrivals)


@dataclass(frozen=True, slots=True)
class _OutboundChunkGradients:
    """Handle of returned gradients; see `hyrt.fullgraph.chunks.travelling_rows.ReturningRows`."""

    clock: ProductClock
    gradients: WayBack

    def send(self, wave: int) -> None:
        self.gradients.send(wave)

    def add(self, out: Array) -> None:
        self.clock.wait(lambda: self.gradients.add(out))
        self.clock.end([self.gradients])
