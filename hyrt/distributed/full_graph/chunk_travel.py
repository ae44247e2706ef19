"""How rows of other ranks come to a rank that computes its block of a graph in chunks."""

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
    """Exchanges rows between layers; a `hyrt.fullgraph.chunks.travelling_rows.TravellingRows`.

    It belongs to the thread that propagates.
    """

    spread: SpreadEdges
    """The edges of this rank."""
    num_vertices: int
    """Those of the graph."""

    __repr__ = one_line

    @property
    def vertices(self) -> Array:
        """[n + h] the numbers of own vertices, and of remote ones."""
        return self.spread.edges.vertices

    @cached_property
    def waves(self) -> Sequence[int]:
        """How many rows each exchange brings."""
        return [stop - start for start, stop in pairwise(self.spread.edges.wave_starts)]

    @property
    def is_replicated(self) -> bool:
        """Whether other ranks compute the same rows (1.5D)."""
        return self.spread.replicas is not None

    @property
    def multiplies_own(self) -> bool:
        """Whether the edges from own rows are here; of ranks that compute the same rows, they are at one."""
        return self.spread.edges.grid.multiplies_own

    def add_up(self, sums: Array) -> None:
        """Add up what ranks that compute the same rows have gathered."""
        self.spread.add_columns(sums)

    def share(self, gradients: Array) -> None:
        """Replace gradients of own rows by those of the rank that multiplies with them."""
        found = self.spread.from_multiplying(gradients)
        if found is not gradients:
            gradients[:] = found

    def begin(self, matrix: Array) -> _Coming:
        """Begin to fill the remote rows of a matrix [n + h, w]."""
        clock = self.spread.times.product()
        return _Coming(clock, self.spread.exchange.begin(matrix, ROWS))

    def begin_back(self, matrix: Array) -> _GoingBack:
        """The way of the remote rows of a matrix [n + h, w] to the ranks that have them."""
        clock = self.spread.times.product()
        return _GoingBack(clock, self.spread.exchange.begin_back(matrix, GRADIENTS))


@dataclass(frozen=True, slots=True)
class _Coming:
    """See `hyrt.fullgraph.chunks.travelling_rows.ComingRows`."""

    clock: ProductClock
    arrivals: Sequence[Arrival]

    @property
    def arrived(self) -> bool:
        return all(each.ended_at is not None for each in self.arrivals)

    def wait(self) -> None:
        for each in self.arrivals:
            self.clock.wait(each.wait)
        self.clock.end(self.arrivals)


@dataclass(frozen=True, slots=True)
class _GoingBack:
    """See `hyrt.fullgraph.chunks.travelling_rows.ReturningRows`."""

    clock: ProductClock
    way: WayBack

    def send(self, wave: int) -> None:
        self.way.send(wave)

    def add(self, out: Array) -> None:
        self.clock.wait(lambda: self.way.add(out))
        self.clock.end([self.way])
