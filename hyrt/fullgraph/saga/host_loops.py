"""Loops over edges that a team of the host's threads runs, over rows that lie in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt.machine.workers import Workers

Hear = Callable[[str, list[tuple[str, int, int]]], None]
"""Called with a track and what it has run: a name, and begin and end in nanoseconds."""


class HostLoops:
    """A team of threads among the devices that run loops.

    Parameters
    ----------
    name
        The name of the device that has the team.
    workers
        The team.
    """

    def __init__(self, name: str, workers: Workers) -> None:
        self.name = name
        self.workers = workers
        self.hear: Hear | None = None
        """Learns what was computed, where the run is traced."""
        self._ran: list[tuple[float, float]] = []

    def begin(self) -> None:
        """Count from here on."""
        self._ran.clear()

    @contextmanager
    def running(self, what: str) -> Iterator[None]:
        """Inside, the team runs a loop over an interval of rows; `what` names it for a trace."""
        begun = time.perf_counter_ns()
        yield
        ended = time.perf_counter_ns()
        self._ran.append((begun * 1e-9, ended * 1e-9))
        if self.hear is not None:
            self.hear("compute", [(what, begun, ended)])

    def work(self) -> ChunkWork:
        """What was done since `begin`: nothing is copied."""
        return ChunkWork.of_spans(0, 0, [], self._ran)
