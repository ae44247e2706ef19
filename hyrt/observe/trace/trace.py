"""What a run did and when: slices of threads and queues, counters and marks, in memory of a fixed size.

Every track is written by one thread at a time and keeps its newest events; how many older ones it has let go
is known. Times are nanoseconds of `time.perf_counter_ns`. `hyrt.observe.trace.file` makes the file of it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.device import Span
from hyrt.observe.hook import NONE

_SLICE = np.dtype(
    [("start", "i8"), ("end", "i8"), *((key, "i4") for key in ("name", "step", "trainer", "share", "units"))]
)
_VALUE = np.dtype([("time", "i8"), ("value", "i8")])
_SPAN = np.dtype([("start", "i8"), ("end", "i8"), ("handed", "i8"), ("name", "i8")])


class Ring:
    """The newest rows of a table, in memory of a fixed size.

    Parameters
    ----------
    dtype
        The type of a row: structured, without padding.
    limit
        Most rows that are kept.
    """

    def __init__(self, dtype: np.dtype[Any], limit: int) -> None:
        self._rows = np.zeros(limit, dtype)
        codes = {"i8": "q", "i4": "i"}
        layout = struct.Struct("=" + "".join(codes[dtype[name].str[1:]] for name in dtype.names or ()))
        self.write = partial(layout.pack_into, self._rows.view(np.uint8).data)
        """Puts values at an offset: `write(ring.next(), ...)` takes half as long as one method for both."""
        self._size = dtype.itemsize
        self._limit = limit
        self.count = 0

    def next(self) -> int:
        """Offset of one more row, in the place of the oldest."""
        at = self.count % self._limit * self._size
        self.count += 1
        return at

    @property
    def left_out(self) -> int:
        """How many rows are not there any more."""
        return max(0, self.count - self._limit)

    def rows(self) -> NDArray[Any]:
        """A copy of what is there, oldest first."""
        count = self.count
        if count <= self._limit:
            return self._rows[:count].copy()
        return np.roll(self._rows, -(count % self._limit))


class Track:
    """The slices of one thread: `with track.begin(...):` is one, and they nest.

    Only the thread itself writes it, so what it holds nests or is disjoint.
    """

    def __init__(self, name: str, limit: int, clock: Callable[[], int]) -> None:
        self.name = name
        self.thread = threading.current_thread()
        self.ring = Ring(_SLICE, limit)
        self.open: list[tuple[int, int, int, int, int, int]] = []
        """Start, name, step, trainer, share and units of those that have not ended, the outermost first."""
        self._clock = clock

    def begin(
        self, name: int, step: int = NONE, trainer: int = NONE, share: int = NONE, units: int = NONE
    ) -> Track:
        """Open a slice; it ends with the `with` block. `share` is its number in the step."""
        self.open.append((self._clock(), name, step, trainer, share, units))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        start, name, step, trainer, share, units = self.open.pop()
        ring = self.ring
        ring.write(ring.next(), start, self._clock(), name, step, trainer, share, units)

    def add(self, start: int, end: int, what: Sequence[int]) -> None:
        """Note what is over: name, step, trainer, share and units."""
        self.ring.write(self.ring.next(), start, end, *what)


class Counter:
    """A value over time, of what `unit` says; one thread at a time adds to it."""

    def __init__(self, unit: str, limit: int, clock: Callable[[], int]) -> None:
        self.unit = unit
        self.ring = Ring(_VALUE, limit)
        self._clock = clock

    def add(self, value: int) -> None:
        """Note the value it has from now on."""
        self.ring.write(self.ring.next(), self._clock(), value)


class Trace:
    """All tracks, counters and marks of a run; any thread may use it.

    Parameters
    ----------
    limit
        Most events that each track and each counter keeps: the newest.
    clock
        Nanoseconds, monotonic.
    """

    def __init__(self, limit: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.limit = limit
        self.clock = clock
        self.started = clock()
        self.started_unix_s = time.time()
        self.names: list[str] = []
        self.tracks: list[Track] = []
        self.counters: dict[str, Counter] = {}
        self.queues: dict[tuple[str, str], Ring] = {}
        """What device queues ran: `start` and `end` on the device's clock, `handed` on the host's."""
        self.marks: deque[tuple[int, Track, str]] = deque(maxlen=limit)
        self.num_marks = 0
        self._numbers: dict[str, int] = {}
        self._mine = threading.local()
        # For what is made once: what is written often needs none.
        self._making = threading.Lock()

    def number(self, name: str) -> int:
        """What stands for a name in the tables."""
        number = self._numbers.get(name)
        if number is None:
            with self._making:
                number = self._numbers.get(name)
                if number is None:
                    self.names.append(name)
                    number = self._numbers[name] = len(self.names) - 1
        return number

    def track(self) -> Track:
        """The calling thread's; that of a thread of the same name that has ended goes on."""
        try:
            found: Track = self._mine.track
        except AttributeError:
            found = self._mine.track = self._make_track()
        return found

    def _make_track(self) -> Track:
        thread = threading.current_thread()
        name = "hyrt.main" if thread is threading.main_thread() else thread.name
        with self._making:
            for track in self.tracks:
                if track.name == name and not track.thread.is_alive():
                    track.thread = thread
                    return track
            track = Track(name, self.limit, self.clock)
            self.tracks.append(track)
            return track

    def counter(self, name: str, unit: str) -> Counter:
        """The counter of a name."""
        with self._making:
            if name not in self.counters:
                self.counters[name] = Counter(unit, self.limit, self.clock)
            return self.counters[name]

    def mark(self, text: str) -> None:
        """Note something that happened at one moment in the calling thread."""
        self.num_marks += 1
        self.marks.append((self.clock(), self.track(), text))

    def hear(self, device: str, queue: str, spans: Sequence[Span]) -> None:
        """Take what a device's queue has run; all of it is over."""
        if not spans:
            return
        handed = self.clock()
        ring = self.queues.get((device, queue))
        if ring is None:
            with self._making:
                ring = self.queues.setdefault((device, queue), Ring(_SPAN, self.limit))
        for name, start, end in spans:
            ring.write(ring.next(), start, end, handed, self.number(name))

    @property
    def is_empty(self) -> bool:
        """Whether no thread has begun anything."""
        return not any(track.ring.count or track.open for track in self.tracks)
