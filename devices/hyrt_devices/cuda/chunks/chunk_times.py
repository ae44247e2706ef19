"""When a torch device copied chunks and computed with them, for traces and for what a step took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from hyrt.device import QueueListener, Span
from hyrt.fullgraph.chunks.chunked_step import ChunkWork
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.timeline import Timeline

Track = Literal["copy in", "compute", "copy out"]
TRACKS: tuple[Track, ...] = ("copy in", "compute", "copy out")


class ChunkTimes:
    """Marks the begin and the end of all that is done with chunks in a step.

    Parameters
    ----------
    driver
        The hardware.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._timeline: Timeline | None = None
        self._marks: list[tuple[Track, str, Any, Any]] = []
        self.about = ""
        """What is being done, as a person reads it; empty for nothing in particular."""
        self.in_bytes = self.out_bytes = 0
        """Bytes copied to the device, and from it, since `begin`."""

    def begin(self, stream: Any) -> None:
        """Count from here on; `stream` is the one that computes."""
        self._timeline = Timeline(self._driver, stream)
        self._marks = []
        self.about = ""
        self.in_bytes = self.out_bytes = 0

    @contextmanager
    def span(self, track: Track, what: str, stream: Any) -> Iterator[None]:
        """Inside, something is given to a stream."""
        name = f"{what}, {self.about}" if self.about else what
        begun = self._driver.mark(stream)
        yield
        self._marks.append((track, name, begun, self._driver.mark(stream)))

    def add(self, track: Track, what: str, begun: Any, ended: Any) -> None:
        """Note what is between two marks."""
        self._marks.append((track, f"{what}, {self.about}" if self.about else what, begun, ended))

    def spans(self, timeline: Timeline) -> dict[Track, list[Span]]:
        """What there was since `begin`, in the order of each track; all of it is over."""
        found: dict[Track, list[Span]] = {track: [] for track in TRACKS}
        for track, name, begun, ended in self._marks:
            found[track] += timeline.spans([(name, begun, ended)])
            timeline.follow(ended)
        return found

    def tell(self, hear: QueueListener, timeline: Timeline) -> None:
        """Hand over what there was since `begin`; all of it is over."""
        for track, spans in self.spans(timeline).items():
            hear(track, spans)

    def forget(self) -> None:
        """What there was is known."""
        self._marks = []

    def seconds(self) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Begins and ends of copies, and of what was computed, since `begin`; all of it is over."""
        assert self._timeline is not None
        found = self.spans(self._timeline)
        copied, computed = ([*found["copy in"], *found["copy out"]], found["compute"])
        return _in_seconds(copied), _in_seconds(computed)

    def work(self) -> ChunkWork:
        """What was done since `begin`; all of it is over."""
        return ChunkWork.of_spans(self.in_bytes, self.out_bytes, *self.seconds())


def _in_seconds(spans: Sequence[Span]) -> list[tuple[float, float]]:
    return [(begun * 1e-9, ended * 1e-9) for _, begun, ended in spans]
