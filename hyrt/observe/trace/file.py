"""A trace as the JSON that ui.perfetto.dev and chrome://tracing read.

The host is process 1 with a track for each thread; every device is a process of its own with a track for each
queue. Of several ranks each has a host and devices, 1,000 numbers on from those of the rank before. Times are
microseconds since the trace began, with three decimals: nanoseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from hyrt_perfmodel.assignment import STAGES

from hyrt.observe.hook import NONE
from hyrt.observe.trace.clock import made_disjoint, on_host_clock, rows_without_overlap
from hyrt.observe.trace.flows import Flows, Visit
from hyrt.observe.trace.trace import Trace, Track

# Of one rank: the host and its devices.
_MOST_PROCESSES = 1000
# Rows of a queue that runs several commands at once.
_MOST_ROWS = 8
_ORDER = ("hyrt.main", "hyrt.sample", "hyrt.load", "hyrt.transfer", "hyrt.propagate")


def trace_json(trace: Trace, trainers: Sequence[str], about: Mapping[str, Any]) -> bytes:
    """The whole trace; slices that have not ended end now and are named so.

    Nothing is added to the trace any more, unless a thread hangs; `trainers` are the names of the run's, in
    order, and `about` further facts for `otherData`.
    """
    return joined_json([trace_lines(trace, trainers)], {**about, **facts_of(trace)})


def trace_lines(
    trace: Trace, trainers: Sequence[str], *, rank: int | None = None, zero: int | None = None
) -> str:
    """The events of one process, for `joined_json`.

    Parameters
    ----------
    trace, trainers
        The arguments of `trace_json`.
    rank
        The number of the process where several are in one file; None for the only one.
    zero
        The time on the trace's clock at which the file begins; by default that at which the trace did.
    """
    return _Writer(trace, trainers, rank, trace.started if zero is None else zero).lines()


def joined_json(processes: Sequence[str], facts: Mapping[str, Any]) -> bytes:
    """The file of what `trace_lines` gave for each process, with facts for `otherData`."""
    head = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(facts)},"traceEvents":[\n'
    return (head + ",\n".join(processes) + "\n]}\n").encode("utf-8", "backslashreplace")


def facts_of(trace: Trace) -> dict[str, Any]:
    """When a trace began, and what it let go."""
    return {
        "started": datetime.fromtimestamp(trace.started_unix_s, UTC).isoformat(),
        "most_events_a_track": trace.limit,
        "left_out": left_out(trace),
    }


def left_out(trace: Trace) -> dict[str, int]:
    """How many events tracks, queues, counters and the marks have let go; only those that lost some."""
    losses = {track.name: track.ring.left_out for track in trace.tracks}
    losses |= {f"{device} {queue}": ring.left_out for (device, queue), ring in trace.queues.items()}
    losses |= {f"counter {name}": counter.ring.left_out for name, counter in trace.counters.items()}
    losses["marks"] = trace.num_marks - len(trace.marks)
    return {name: count for name, count in losses.items() if count > 0}


class _Writer:
    """Collects the lines of one file."""

    def __init__(self, trace: Trace, trainers: Sequence[str], rank: int | None, zero: int) -> None:
        self._trace = trace
        self._zero = zero
        self._host = 1 + _MOST_PROCESSES * (rank or 0)
        self._prefix = "" if rank is None else f"rank {rank} "
        self._trainers = [_text(name) for name in trainers]
        self._now = trace.clock()
        self._names = [_text(name) for name in trace.names]
        self._lines: list[str] = []
        self._flows = Flows()

    def lines(self) -> str:
        self._name(self._host, 0, "process_name", self._prefix.strip() or "hyrt", self._host - 1)
        tracks = sorted(self._trace.tracks, key=_rank)
        numbers = {id(track): number for number, track in enumerate(tracks, 1)}
        for number, track in enumerate(tracks, 1):
            self._name(self._host, number, "thread_name", track.name, number)
            self._slices(number, track)
        for time, track, text in list(self._trace.marks):
            self._mark(numbers[id(track)], time, text)
        self._arrows()
        for name, counter in self._trace.counters.items():
            shown, unit = _text(name), _text(counter.unit)
            for time, value in counter.ring.rows().tolist():
                self._lines.append(
                    f'{{"ph":"C","pid":{self._host},"name":{shown},"ts":{self._at(time)},"args":{{{unit}:{value}}}}}'
                )
        for process, device in enumerate(
            sorted({device for device, _ in self._trace.queues}), self._host + 1
        ):
            self._device(process, device)
        return ",\n".join(self._lines)

    def _slices(self, number: int, track: Track) -> None:
        # First: what a thread that hangs goes on to end while this is written would be in neither.
        begun = list(track.open)
        table = track.ring.rows()
        stages = {self._trace.names.index(name): name for name in STAGES if name in self._trace.names}
        if track.ring.left_out:
            self._mark(number, int(table["start"][0]), f"{track.ring.left_out:,} earlier events left out")
        rows = [(*row, False) for row in table.tolist()]
        ended = {(row[0], row[2]) for row in rows} if begun else set()
        now = max([self._now, *table["end"][-1:].tolist()])
        rows += [(start, now, *what, True) for start, *what in begun if (start, what[0]) not in ended]
        rows.sort(key=lambda row: (row[0], -row[1]))
        for start, end, name, step, trainer, share, units, unfinished in rows:
            known = (("step", step), ("share", share), ("units", units))
            more = [f'"{key}":{value}' for key, value in known if value != NONE]
            if trainer != NONE:
                more.append(f'"trainer":{self._trainers[trainer]}')
            if unfinished:
                more.append('"unfinished":true')
            self._slice(self._host, number, name, start, end, f',"args":{{{",".join(more)}}}')
            if name in stages and end > start:
                self._flows.add(stages[name], step, share, Visit(number, start))

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
        for identity, way in enumerate(self._flows.ways(), 1 + ((self._host - 1) << 32)):
            for position, visit in enumerate(way):
                kind = "s" if position == 0 else "t" if position < len(way) - 1 else "f"
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
        tables = on_host_clock(list(queues.values()))
        number = 0
        for (queue, before), table in zip(queues.items(), tables, strict=True):
            for row, indices in enumerate(rows_without_overlap(before, _MOST_ROWS)):
                number += 1
                self._name(
                    process, number, "thread_name", queue if row == 0 else f"{queue} {row + 1}", number
                )
                for start, end, _, name in made_disjoint(table[indices]).tolist():
                    self._slice(process, number, name, start, end)

    def _name(self, process: int, number: int, key: str, name: str, order: int) -> None:
        sort = key.replace("_name", "_sort_index")
        for what, arguments in ((key, f'"name":{_text(name)}'), (sort, f'"sort_index":{order}')):
            self._lines.append(
                f'{{"ph":"M","pid":{process},"tid":{number},"name":"{what}","args":{{{arguments}}}}}'
            )

    def _at(self, time: int) -> str:
        return f"{(time - self._zero) / 1000:.3f}"


def _text(text: str) -> str:
    """A JSON string, with letters as they are: Perfetto shows escaped ones as they are written."""
    return json.dumps(text, ensure_ascii=False)


def _rank(track: Track) -> tuple[int, str]:
    """Threads from top to bottom: the main one, then by stage and name."""
    names: Iterator[int] = (i for i, name in enumerate(_ORDER) if track.name.startswith(name))
    return next(names, len(_ORDER)), track.name
