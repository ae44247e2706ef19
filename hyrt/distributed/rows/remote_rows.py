"""Remote feature rows on this rank: rows of the steps in flight and cached rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from numpy.typing import NDArray

from hyrt.distributed.rows.remote_vertices import RemoteVertices, WantedRows
from hyrt.flow.channel import ChannelClosed
from hyrt.machine.workers import Workers


class _HasBytes(Protocol):
    @property
    def nbytes(self) -> int: ...


Rows = TypeVar("Rows", bound=_HasBytes)


class CacheCounts(NamedTuple):
    """Size and hit counters of a cache of remote rows."""

    rows: int
    """Number of cached rows."""
    num_bytes: int
    """Size of the cached rows in bytes."""
    hits: int
    """Number of remote rows needed by steps that were cached."""
    lookups: int
    """Number of remote rows needed by steps; a vertex counts once per step."""


class RemoteRows(Generic[Rows]):
    """Fetches the remote rows of each step, and holds them until the step releases them.

    `fetch` is called by the thread that reads the rows. Every rank must fetch the same steps in the same
    order,
    even if it needs no rows, because other ranks may need its rows.

    Parameters
    ----------
    vertices
        Plans which rows are exchanged between which ranks.
    bring
        Exchanges the rows that all ranks have requested; returns the rows that this rank requested.
    let_go
        Called with rows that are no longer needed.
    """

    def __init__(
        self,
        vertices: RemoteVertices,
        bring: Callable[[WantedRows, Workers], Rows],
        let_go: Callable[[Rows], None] = lambda rows: None,
    ) -> None:
        self._vertices = vertices
        self._exchange = bring
        self._release_rows = let_go
        self._in_flight: dict[int, tuple[NDArray[Any], Rows]] = {}
        self.fetched: Rows | None = None
        """Rows of the step that was fetched last, in the order of its locations."""
        self.cached: Rows | None = None
        """Cached rows."""
        self._cached_rows = self._cached_bytes = 0

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        """Fetch the rows of a step; see `hyrt.graph.row_source.FetchedRows.fetch`."""
        step_rows = self._in_flight.get(step)
        if step_rows is None:
            plan = self._vertices.ask(ids)
            step_rows = self._in_flight[step] = (plan.wanted, self._exchange(plan, workers))
        requested, self.fetched = step_rows
        self._vertices.addresses.point_at(requested)

    def release(self, step: int) -> None:
        """Release the rows of a step; see `hyrt.graph.row_source.FetchedRows.release`."""
        step_rows = self._in_flight.pop(step, None)
        if step_rows is not None:
            self._release_rows(step_rows[1])

    def end(self) -> None:
        """Stop fetching; see `hyrt.graph.row_source.FetchedRows.end`."""
        self._vertices.group.give_up(ChannelClosed("no more rows are fetched"))

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Fetch the rows of distinct remote vertices and cache them for the whole run.

        Every rank must call this method at the same time, before the first step.
        """
        plan = self._vertices.ask_to_cache(vertices)
        self.cached = self._exchange(plan, workers)
        self._vertices.addresses.keep(plan.wanted)
        self._cached_rows, self._cached_bytes = len(plan.wanted), self.cached.nbytes

    def cache_counts(self) -> CacheCounts:
        """Return the size and hit counters of the cache."""
        vertices = self._vertices
        return CacheCounts(self._cached_rows, self._cached_bytes, vertices.hits, vertices.lookups)
