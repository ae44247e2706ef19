"""The rows of other ranks that are here: those of the steps under way, and those that are cached."""

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
    """What a cache of remote rows holds, and what it was good for so far."""

    rows: int
    """How many rows it holds."""
    num_bytes: int
    """Their size."""
    hits: int
    """How many of the remote rows that steps needed it had."""
    lookups: int
    """How many remote rows steps needed, each vertex once a step."""


class RemoteRows(Generic[Rows]):
    """Brings the rows that a step needs of other ranks, and keeps them until the step releases them.

    `fetch` is called by the thread that reads the rows. Every rank fetches the same steps in the same order,
    also those for which it needs nothing, because others may need its rows.

    Parameters
    ----------
    vertices
        Knows who has the rows of whom.
    bring
        Exchanges the rows that all ranks have asked for, and gives those that were wanted here.
    let_go
        Called with rows that are needed no more.
    """

    def __init__(
        self,
        vertices: RemoteVertices,
        bring: Callable[[WantedRows, Workers], Rows],
        let_go: Callable[[Rows], None] = lambda rows: None,
    ) -> None:
        self._vertices = vertices
        self._bring = bring
        self._let_go = let_go
        self._kept: dict[int, tuple[NDArray[Any], Rows]] = {}
        self.fetched: Rows | None = None
        """Those of the step that was fetched last, in the order of its addresses."""
        self.cached: Rows | None = None
        """Those that are cached."""
        self._cached_rows = self._cached_bytes = 0

    def fetch(self, step: int, ids: Sequence[NDArray[Any]], workers: Workers) -> None:
        """As `hyrt.graph.row_source.FetchedRows.fetch`."""
        kept = self._kept.get(step)
        if kept is None:
            asked = self._vertices.ask(ids)
            kept = self._kept[step] = (asked.wanted, self._bring(asked, workers))
        wanted, self.fetched = kept
        self._vertices.addresses.point_at(wanted)

    def release(self, step: int) -> None:
        """As `hyrt.graph.row_source.FetchedRows.release`."""
        kept = self._kept.pop(step, None)
        if kept is not None:
            self._let_go(kept[1])

    def end(self) -> None:
        """As `hyrt.graph.row_source.FetchedRows.end`."""
        self._vertices.group.give_up(ChannelClosed("no more rows are fetched"))

    def cache(self, vertices: NDArray[Any], workers: Workers) -> None:
        """Bring the rows of distinct vertices of other ranks once, and keep them; every rank does so at once,
        before the first step.
        """
        asked = self._vertices.ask_to_cache(vertices)
        self.cached = self._bring(asked, workers)
        self._vertices.addresses.keep(asked.wanted)
        self._cached_rows, self._cached_bytes = len(asked.wanted), self.cached.nbytes

    def cache_counts(self) -> CacheCounts:
        """What the cache holds, and what it was good for so far."""
        vertices = self._vertices
        return CacheCounts(self._cached_rows, self._cached_bytes, vertices.hits, vertices.lookups)
