"""When what lies between two marks of a device was run, for a traced run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hyrt.device import Span
from hyrt_devices.cuda.driver import Driver

# Torch tells the time between two marks as milliseconds in float32. Over this many seconds that is exact to a
# quarter of a microsecond; over an hour it would be to a quarter of a millisecond.
_REACH_S = 2.0


class Timeline:
    """One clock for all streams of a device: nanoseconds since it was made, from marks that were reached.

    Times are told from a mark that follows at a distance. It stays far enough behind that what any stream has
    just run came after it.

    Parameters
    ----------
    driver
        The hardware.
    stream
        The stream on which the first mark is made; it is waited for.
    """

    def __init__(self, driver: Driver, stream: Any) -> None:
        self._driver = driver
        first = driver.mark(stream)
        driver.wait(first)
        # Together, so that a thread that reads them sees both of one moment.
        self._from: tuple[Any, int] = (first, 0)
        self._next: tuple[Any, int] = self._from

    def spans(self, marks: Sequence[tuple[str, Any, Any]]) -> list[Span]:
        """Name, start and end in nanoseconds of what ran between two marks; nothing without a mark."""
        return [
            (name, self._at(start), self._at(end))
            for name, start, end in marks
            if start is not None and end is not None
        ]

    def follow(self, mark: Any) -> None:
        """Come after a mark that was reached; one thread at a time calls this."""
        now = self._at(mark)
        if now - self._next[1] >= 1e9 * _REACH_S / 2:
            self._from, self._next = self._next, (mark, now)

    def _at(self, mark: Any) -> int:
        origin, at = self._from
        return at + round(1e9 * self._driver.seconds(origin, mark))
