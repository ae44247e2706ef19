"""Timeline of a run in memory of a fixed size: slices of threads and device queues, counters and marks.

Every track is written by one thread at a time and keeps its latest events; the number of dropped events is
counted. Times are nanoseconds of `time.perf_counter_ns`.
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
from hyrt.telemetry.hooks import NONE

_SLICE = np.dtype(
    [("start", "i8"), ("end", "i8"), *((key, "i4") for key in ("name", "step", "trainer", "share", "units"))]
)
_VALUE = np.dtype([("time", "i8"), ("value", "i8")])
_SPAN = np.dtype([("start", "i8"), ("end", "i8"), ("handed", "i8"), ("name", "i8")])


class RingBuffer:
    """Ring buffer of the latest `limit` rows of a table, whose structured `dtype` has no padding."""

    def __init__(self, dtype: np.dtype[Any], limit: int) -> None:
        self._rows = np.zeros(limit, dtype)
        codes = {"i8": "q", "i4": "i"}
        layout = struct.Struct("=" + "".join(codes[dtype[name].str[1:]] for name in dtype.names or ()))
        self.write = partial(layout.pack_into, self._rows.view(np.uint8).data)
        """Write values at an offset: `write(ring.next(), ...)` takes half as long as one method for both."""
        self._size = dtype.itemsize
        self._limit = limit
        self.count = 0

    def next(self) -> int:
        """Return the offset for one more row, which replaces the oldest row."""
        offset = self.count % self._limit * self._size
        self.count += 1
        return offset

    @property
    def num_dropped(self) -> int:
        """Number of dropped rows."""
        return max(0, self.count - self._limit)

    def rows(self) -> NDArray[Any]:
        """Return a copy of the stored rows, oldest first."""
        count = self.count
        if count <= self._limit:
            return self._rows[:count].copy()
        return np.roll(self._rows, -(count % self._limit))


class Track:
    """Slices of one thread: `with track.begin(...):` records a slice; slices nest.

    Only the thread itself writes to its track, so slices are either nested or disjoint.
    """

    def __init__(self, name: str, limit: int, clock: Callable[[], int]) -> None:
        self.name = name
        self.thread = threading.current_thread()
        self.ring = RingBuffer(_SLICE, limit)
        self.open_slices: list[tuple[int, int, int, int, int, int]] = []
        """Start, name, step, trainer, share and units of the unfinished slices, outermost first."""
        self._clock = clock

    def begin(
        self, name: int, step: int = NONE, trainer: int = NONE, share: int = NONE, units: int = NONE
    ) -> Track:
        """Begin a slice that ends with the `with` block. `share` is the number of the share in its step."""
        self.open_slices.append((self._clock(), name, step, trainer, share, units))
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        start, name, step, trainer, share, units = self.open_slices.pop()
        ring = self.ring
        ring.write(ring.next(), start, self._clock(), name, step, trainer, share, units)

    def add(self, start: int, end: int, fields: Sequence[int]) -> None:
        """Record a finished slice; `fields` is name, step, trainer, share and units."""
        self.ring.write(self.ring.next(), start, end, *fields)


class Counter:
    """Values over time, in `unit`; written by one thread at a time."""

    def __init__(self, unit: str, limit: int, clock: Callable[[], int]) -> None:
        self.unit = unit
        self.ring = RingBuffer(_VALUE, limit)
        self._clock = clock

    def record(self, value: int) -> None:
        """Record the current value."""
        self.ring.write(self.ring.next(), self._clock(), value)


class Trace:
    """All tracks, counters and marks of a run; thread-safe.

    Each track and counter keeps its latest `limit` events. `clock` is a monotonic clock in nanoseconds.
    """

    def __init__(self, limit: int, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self.limit = limit
        self.clock = clock
        self.started = clock()
        self.started_unix_s = time.time()
        self.names: list[str] = []
        self.tracks: list[Track] = []
        self.counters: dict[str, Counter] = {}
        self.queues: dict[tuple[str, str], RingBuffer] = {}
        """Spans of device queues: `start` and `end` on the device's clock, `handed` on the host's clock."""
        self.marks: deque[tuple[int, Track, str]] = deque(maxlen=limit)
        self.num_marks = 0
        self._numbers: dict[str, int] = {}
        self._local = threading.local()
        # Protects the creation of tracks and counters; frequent writes need no lock.
        self._making = threading.Lock()

    def name_index(self, name: str) -> int:
        """Return the number that represents a name in the tables."""
        number = self._numbers.get(name)
        if number is None:
            with self._making:
                number = self._numbers.get(name)
                if number is None:
                    self.names.append(name)
                    number = self._numbers[name] = len(self.names) - 1
        return number

    def track(self) -> Track:
        """Return the track of the calling thread; a track of an ended thread with the same name is reused."""
        try:
            track: Track = self._local.track
        except AttributeError:
            track = self._local.track = self._make_track()
        return track

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
        """Return the counter with a name, created if needed."""
        with self._making:
            if name not in self.counters:
                self.counters[name] = Counter(unit, self.limit, self.clock)
            return self.counters[name]

    def mark(self, text: str) -> None:
        """Record a point event in the calling thread."""
        self.num_marks += 1
        self.marks.append((self.clock(), self.track(), text))

    def add_spans(self, device: str, queue: str, spans: Sequence[Span]) -> None:
        """Add spans of a device's queue, all of which have ended."""
        if not spans:
            return
        handed = self.clock()
        ring = self.queues.get((device, queue))
        if ring is None:
            with self._making:
                ring = self.queues.setdefault((device, queue), RingBuffer(_SPAN, self.limit))
        for name, start, end in spans:
            ring.write(ring.next(), start, end, handed, self.name_index(name))

    @property
    def is_empty(self) -> bool:
        """Whether no thread has begun a slice."""
        return not any(track.ring.count or track.open_slices for track in self.tracks)
