"""Timeline of a run in a fixed amount of memory, and its file for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from hyrt_perfmodel.policy import STAGES
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
        """Function that writes values at an offset: `write(ring.next(), ...)` is faster than one method."""
        self._size = dtype.itemsize
        self._limit = limit
        self.count = 0

    def next(self) -> int:
        """Return the offset for another row, which may replace the oldest row."""
        offset = self.count % self._limit * self._size
        self.count += 1
        return offset

    @property
    def num_dropped(self) -> int:
        """Number of rows that were replaced."""
        return max(0, self.count - self._limit)

    def rows(self) -> NDArray[Any]:
        """Return a copy of the stored rows, oldest first."""
        count = self.count
        if count <= self._limit:
            return self._rows[:count].copy()
        return np.roll(self._rows, -(count % self._limit))


class Track:
    """Slices of one thread, which may be nested: `with track.begin(...):` records a slice.

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
        """Begin a slice that ends with the `with` block. `share` is the index of the share in its step."""
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
        """Record a finished slice with `fields` (name, step, trainer, share, units)."""
        self.ring.write(self.ring.next(), start, end, *fields)


class Counter:
    """Counter of a quantity in `unit` over time, which one thread at a time writes."""

    def __init__(self, unit: str, limit: int, clock: Callable[[], int]) -> None:
        self.unit = unit
        self.ring = RingBuffer(_VALUE, limit)
        self._clock = clock

    def record(self, value: int) -> None:
        """Record the current value."""
        self.ring.write(self.ring.next(), self._clock(), value)


class Trace:
    """All tracks, counters and marks of a run. This class is thread-safe.

    One thread at a time writes to a track or a counter, which keeps its latest `limit` events and counts the
    dropped events. `clock` is a monotonic clock in nanoseconds.
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
        """Return the track of the calling thread, or reuse the track of an ended thread of this name."""
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
        """Return the counter with a name, which is created if needed."""
        with self._making:
            if name not in self.counters:
                self.counters[name] = Counter(unit, self.limit, self.clock)
            return self.counters[name]

    def mark(self, text: str) -> None:
        """Record an instant event in the calling thread."""
        self.num_marks += 1
        self.marks.append((self.clock(), self.track(), text))

    def add_spans(self, device: str, queue: str, spans: Sequence[Span]) -> None:
        """Add spans of a device queue, all of which have ended."""
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
        """Whether no thread has ever begun a slice."""
        return not any(track.ring.count or track.open_slices for track in self.tracks)


# Number of reports before and after each report from which a clock offset is estimated: enough to include
# prompt reports, and few enough that clock drift is negligible.
_REACH = 32


def convert_to_host_clock(queues: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Convert the times of a device's queues to the host's clock; durations are unchanged.

    Tables have `start` and `end` on the device's clock and `handed`, the time of the report, on the host's
    clock, in nanoseconds. A span is reported after it has ended, so the host time of the report minus the
    device time of the span's end is the clock offset plus a delay. The minimum over neighbouring reports is
    used, because no span may end after its report.
    """
    handed, slot = np.unique(np.concatenate([queue["handed"] for queue in queues]), return_inverse=True)
    if not len(handed):
        return [queue.copy() for queue in queues]
    ends = np.full(len(handed), np.iinfo(np.int64).min)
    np.maximum.at(ends, slot, np.concatenate([queue["end"] for queue in queues]))
    delays = np.pad(handed - ends, _REACH, mode="edge")
    offsets = np.lib.stride_tricks.sliding_window_view(delays, 2 * _REACH + 1).min(axis=1)
    converted = []
    first = 0
    for queue in queues:
        table = queue.copy()
        shift = offsets[slot[first : first + len(queue)]]
        table["start"] += shift
        table["end"] += shift
        converted.append(table)
        first += len(queue)
    return converted


def split_overlaps(table: NDArray[Any], limit: int) -> list[NDArray[Any]]:
    """Split a queue's spans into at most `limit` rows of disjoint spans; return the sorted indices per row.

    A queue that runs in order has a single row. Spans that still overlap are put into the last row, in which
    the start of the later span is shifted.
    """
    rows: list[list[int]] = []
    row_ends: list[int] = []
    starts, ends = table["start"].tolist(), table["end"].tolist()
    for index in np.lexsort((table["end"], table["start"])).tolist():
        row = next((i for i, end in enumerate(row_ends) if end <= starts[index]), None)
        if row is None:
            if len(rows) < limit:
                rows.append([])
                row_ends.append(starts[index])
            row = len(rows) - 1
        rows[row].append(index)
        row_ends[row] = max(ends[index], row_ends[row])
    return [np.array(row) for row in rows]


def remove_overlaps(table: NDArray[Any]) -> NDArray[Any]:
    """Shift starts so that no span begins before the previous span ends.

    If the clock offset changes, spans may seem to overlap.
    """
    table = table.copy()
    if len(table):
        before = np.maximum.accumulate(table["end"])[:-1]
        table["start"][1:] = np.maximum(table["start"][1:], before)
        table["end"] = np.maximum(table["end"], table["start"])
    return table


class StageSlice(NamedTuple):
    """Slice of a stage: its track, and its start in nanoseconds."""

    track: int
    start: int


class MiniBatchFlows:
    """Flows of all shares through the stages, in which dropped slices are missing."""

    def __init__(self) -> None:
        self._visits: defaultdict[tuple[int, int], dict[str, StageSlice]] = defaultdict(dict)
        self._synchronized: dict[int, StageSlice] = {}

    def add(self, stage: str, step: int, share: int, visit: StageSlice) -> None:
        """Add a slice of a stage for one share of a step."""
        if stage == STAGES[-1]:
            self._synchronized[step] = visit
        else:
            self._visits[step, share][stage] = visit

    def paths(self) -> Iterator[Sequence[StageSlice]]:
        """Yield the slices of each share in stage order, if there are at least two."""
        for (step, _), by_stage in sorted(self._visits.items()):
            visits = [by_stage[stage] for stage in STAGES if stage in by_stage]
            if STAGES[-2] in by_stage and step in self._synchronized:
                visits.append(self._synchronized[step])
            if len(visits) > 1:
                yield visits


# In the file, the host is process 1 with one track per thread, and every device is a process with one track
# per queue. Process numbers increase by this offset from rank to rank.
_MAX_PROCESSES = 1000
# Maximum number of rows for a queue that runs several commands concurrently.
_MAX_ROWS = 8
_ORDER = ("hyrt.main", "hyrt.sample", "hyrt.load", "hyrt.transfer", "hyrt.propagate")


def trace_json(trace: Trace, trainers: Sequence[str], about: Mapping[str, Any]) -> bytes:
    """Return the whole trace as JSON, in which unfinished slices end at the current time and are marked.

    Times are microseconds since the start of the trace, with three decimals (nanoseconds). Nothing may be
    added to the trace during this call, except by threads that hang. `trainers` has the names of the trainers
    in order, and `about` further entries of `otherData`.
    """
    return join_json([trace_lines(trace, trainers)], {**about, **trace_facts(trace)})


def trace_lines(
    trace: Trace, trainers: Sequence[str], *, rank: int | None = None, zero: int | None = None
) -> str:
    """Return the events of one process for `join_json`.

    `rank` is None for a file of a single process. `zero` is the start time of the file on the trace's clock;
    None means the start of the trace.
    """
    return _Writer(trace, trainers, rank, trace.started if zero is None else zero).lines()


def join_json(processes: Sequence[str], facts: Mapping[str, Any]) -> bytes:
    """Return the JSON file that joins the `trace_lines` of all processes, with `facts` as `otherData`."""
    head = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n'
    return (head + ",\n".join(processes) + "\n]}\n").encode("utf-8", "backslashreplace")


def trace_facts(trace: Trace) -> dict[str, Any]:
    """Return the start time and the limit of a trace, and the numbers of dropped events."""
    return {
        "started": datetime.fromtimestamp(trace.started_unix_s, UTC).isoformat(),
        "most_events_a_track": trace.limit,
        "left_out": count_dropped_events(trace),
    }


def count_dropped_events(trace: Trace) -> dict[str, int]:
    """Return the numbers of dropped events of tracks, queues, counters and marks that are not zero."""
    losses = {track.name: track.ring.num_dropped for track in trace.tracks}
    losses |= {f"{device} {queue}": ring.num_dropped for (device, queue), ring in trace.queues.items()}
    losses |= {f"counter {name}": counter.ring.num_dropped for name, counter in trace.counters.items()}
    losses["marks"] = trace.num_marks - len(trace.marks)
    return {name: count for name, count in losses.items() if count > 0}


class _Writer:
    """Writer that collects the lines of one file."""

    def __init__(self, trace: Trace, trainers: Sequence[str], rank: int | None, zero: int) -> None:
        self._trace = trace
        self._zero = zero
        self._host = 1 + _MAX_PROCESSES * (rank or 0)
        self._prefix = "" if rank is None else f"rank {rank} "
        self._trainers = [_text(name) for name in trainers]
        self._now = trace.clock()
        self._names = [_text(name) for name in trace.names]
        self._lines: list[str] = []
        self._flows = MiniBatchFlows()

    def lines(self) -> str:
        self._name(self._host, 0, "process_name", self._prefix.strip() or "hyrt", self._host - 1)
        tracks = sorted(self._trace.tracks, key=_rank)
        numbers = {id(track): number for number, track in enumerate(tracks, 1)}
        for number, track in enumerate(tracks, 1):
            self._name(self._host, number, "thread_name", track.name, number)
            self._slices(number, track)
        for mark_time, track, text in list(self._trace.marks):
            self._mark(numbers[id(track)], mark_time, text)
        self._arrows()
        for name, counter in self._trace.counters.items():
            shown, unit = _text(name), _text(counter.unit)
            for counted, value in counter.ring.rows().tolist():
                at = self._at(counted)
                self._lines.append(
                    f'{{"ph":"C","pid":{self._host},"name":{shown},"ts":{at},"args":{{{unit}:{value}}}}}'
                )
        for process, device in enumerate(
            sorted({device for device, _ in self._trace.queues}), self._host + 1
        ):
            self._device(process, device)
        return ",\n".join(self._lines)

    def _slices(self, number: int, track: Track) -> None:
        # Copy the open slices first, otherwise a slice that a hanging thread ends now would be missing.
        open_slices = list(track.open_slices)
        table = track.ring.rows()
        stages = {self._trace.names.index(name): name for name in STAGES if name in self._trace.names}
        if track.ring.num_dropped:
            self._mark(number, int(table["start"][0]), f"{track.ring.num_dropped:,} earlier events left out")
        rows = [(*row, False) for row in table.tolist()]
        ended = {(row[0], row[2]) for row in rows} if open_slices else set()
        now = max([self._now, *table["end"][-1:].tolist()])
        rows += [
            (start, now, *fields, True) for start, *fields in open_slices if (start, fields[0]) not in ended
        ]
        rows.sort(key=lambda row: (row[0], -row[1]))
        for start, end, name, step, trainer, share, units, is_open in rows:
            known = (("step", step), ("share", share), ("units", units))
            arguments = [f'"{key}":{value}' for key, value in known if value != NONE]
            if trainer != NONE:
                arguments.append(f'"trainer":{self._trainers[trainer]}')
            if is_open:
                arguments.append('"unfinished":true')
            self._slice(self._host, number, name, start, end, f',"args":{{{",".join(arguments)}}}')
            if name in stages and end > start:
                self._flows.add(stages[name], step, share, StageSlice(number, start))

    def _slice(self, process: int, number: int, name: int, start: int, end: int, more: str = "") -> None:
        self._lines.append(
            f'{{"ph":"X","pid":{process},"tid":{number},"name":{self._names[name]},"ts":{self._at(start)},'
            f'"dur":{(end - start) / 1000:.3f}{more}}}'
        )

    def _mark(self, number: int, time: int, text: str) -> None:
        self._lines.append(
            f'{{"ph":"i","s":"t","pid":{self._host},"tid":{number},"name":{_text(text)},"ts":{self._at(time)}}}'
        )

    def _arrows(self) -> None:
        for identity, visits in enumerate(self._flows.paths(), 1 + ((self._host - 1) << 32)):
            for position, visit in enumerate(visits):
                kind = "s" if position == 0 else "t" if position < len(visits) - 1 else "f"
                end = ',"bp":"e"' if kind == "f" else ""
                self._lines.append(
                    f'{{"ph":"{kind}","cat":"mini-batch","name":"mini-batch","id":{identity},"pid":{self._host},'
                    f'"tid":{visit.track},"ts":{self._at(visit.start)}{end}}}'
                )

    def _device(self, process: int, device: str) -> None:
        self._name(process, 0, "process_name", f"{self._prefix}{device} queues", process)
        queues = {
            queue: ring.rows() for (owner, queue), ring in self._trace.queues.items() if owner == device
        }
        tables = convert_to_host_clock(list(queues.values()))
        number = 0
        for (queue, before), table in zip(queues.items(), tables, strict=True):
            for row, indices in enumerate(split_overlaps(before, _MAX_ROWS)):
                number += 1
                self._name(
                    process, number, "thread_name", queue if row == 0 else f"{queue} {row + 1}", number
                )
                for start, end, _, name in remove_overlaps(table[indices]).tolist():
                    self._slice(process, number, name, start, end)

    def _name(self, process: int, number: int, key: str, name: str, order: int) -> None:
        sort = key.replace("_name", "_sort_index")
        for event, arguments in ((key, f'"name":{_text(name)}'), (sort, f'"sort_index":{order}')):
            self._lines.append(
                f'{{"ph":"M","pid":{process},"tid":{number},"name":"{event}","args":{{{arguments}}}}}'
            )

    def _at(self, time: int) -> str:
        return f"{(time - self._zero) / 1000:.3f}"


def _text(text: str) -> str:
    """Return a JSON string without escapes for non-ASCII letters, which Perfetto would show literally."""
    return json.dumps(text, ensure_ascii=False)


def _rank(track: Track) -> tuple[int, str]:
    """Return the sort key of a thread: the main thread first, then by stage and name."""
    names: Iterator[int] = (i for i, name in enumerate(_ORDER) if track.name.startswith(name))
    return next(names, len(_ORDER)), track.name
