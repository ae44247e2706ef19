"""Edge loops that a team of host threads runs on rows in host memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt.machine.workers import Workers

Hear = Callable[[str, list[tuple[str, int, int]]], None]
"""Called with a track and its spans: name, and start and end in nanoseconds."""


class HostLoops:
    """Team of host threads among the devices that run loops.

    Parameters
    ----------
    name
        Name of the device that owns the team.
    workers
        The team.
    """

    def __init__(self, name: str, workers: Workers) -> None:
        self.name = name
        self.workers = workers
        self.hear: Hear | None = None
        """Trace callback, if the run is traced."""
        self._ran: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Reset the statistics."""
        self._ran.clear()

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Record a loop over an interval of rows; `what` labels it in a trace."""
        started = time.perf_counter_ns()
        yield
        ended = time.perf_counter_ns()
        self._ran.append((started * 1e-9, ended * 1e-9))
        if self.hear is not None:
            self.hear("compute", [(what, started, ended)])

    def work(self) -> ChunkWork:
        """Return the statistics since `begin`; nothing is copied."""
        return ChunkWork.of_spans(0, 0, [], self._ran)
