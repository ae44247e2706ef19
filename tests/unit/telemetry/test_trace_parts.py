"""The parts of a trace: rings, tracks of threads, and the file made of them."""

from __future__ import annotations

import json
import threading
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_checks import Trace as Read

from hyrt.runtime.stage_threads import Channel
from hyrt.runtime.workers import Workers
from hyrt.telemetry.trace import (
    RingBuffer,
    Trace,
    convert_to_host_clock,
    count_dropped_events,
    remove_overlaps,
    split_overlaps,
    trace_json,
)
from hyrt.telemetry.trace_hook import record_worker_slices

PAIRS = np.dtype([("key", "i4"), ("value", "i8")])
SPANS = np.dtype([("start", "i8"), ("end", "i8"), ("handed", "i8"), ("name", "i8")])


class Clock:
    """Nanoseconds that pass when they are asked for."""

    def __init__(self, step: int = 1000) -> None:
        self.now = 0
        self._step = step

    def __call__(self) -> int:
        self.now += self._step
        return self.now


def read(trace: Trace, trainers: tuple[str, ...] = ("a:0", "b:0")) -> Read:
    found = Read(trace_json(trace, trainers, {}))
    found.assert_is_whole()
    return found


@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1))), st.integers(1, 9)
)
def test_a_ring_keeps_the_newest(rows: list[tuple[int, int]], limit: int) -> None:
    ring = RingBuffer(PAIRS, limit)
    for row in rows:
        ring.write(ring.next(), *row)
    assert ring.rows().tolist() == rows[-limit:]
    assert ring.num_dropped == max(0, len(rows) - limit)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(1, 9))
def test_a_series_keeps_the_newest(values: list[int], limit: int) -> None:
    series = Trace(limit, Clock(1)).counter("c", "items")
    for value in values:
        series.record(value)
    # The clock was asked when the trace was made.
    assert series.ring.rows().tolist() == [(at, value) for at, value in enumerate(values, 2)][-limit:]
    assert series.ring.num_dropped == max(0, len(values) - limit)


def test_slices_nest_and_name_what_they_are() -> None:
    trace = Trace(10, Clock())
    outer, inner = trace.name_index("outer"), trace.name_index("inner")
    with trace.track().begin(outer, step=3, trainer=1, share=0, units=7), trace.track().begin(inner):
        pass
    first, second = read(trace).of("hyrt.main")
    # The clock was asked when the trace was made.
    assert (first["name"], first["ts"], first["dur"]) == ("outer", 1000, 3000)
    assert first["args"] == {"step": 3, "trainer": "b:0", "share": 0, "units": 7}
    assert (second["name"], second["ts"], second["dur"], second["args"]) == ("inner", 2000, 1000, {})


def test_times_are_exact_to_the_nanosecond_after_days() -> None:
    clock = Clock(1)
    trace = Trace(10, clock)
    clock.now = 10**15 + 123_456_788
    with trace.track().begin(trace.name_index("late")):
        pass
    (late,) = read(trace).slices
    assert (late["ts"], late["dur"]) == (10**15 + 123_456_788, 1)


def test_a_slice_ends_when_its_block_raises() -> None:
    trace = Trace(10, Clock())
    with pytest.raises(ValueError, match="broken"), trace.track().begin(trace.name_index("fails")):
        raise ValueError("broken")
    (event,) = read(trace).slices
    assert "unfinished" not in event["args"]


def test_what_has_not_ended_is_there_and_named_so() -> None:
    trace = Trace(10, Clock())
    begun, end = threading.Event(), threading.Event()

    def hang() -> None:
        with trace.track().begin(trace.name_index("outer"), step=1):
            with trace.track().begin(trace.name_index("done")):
                pass
            with trace.track().begin(trace.name_index("hangs")):
                begun.set()
                end.wait()

    thread = threading.Thread(target=hang, name="hyrt.hanging")
    thread.start()
    begun.wait()
    found = read(trace).of("hyrt.hanging")
    end.set()
    thread.join()
    assert [event["name"] for event in found] == ["outer", "done", "hangs"]
    assert [event["args"].get("unfinished", False) for event in found] == [True, False, True]
    assert found[0]["ts"] + found[0]["dur"] == found[2]["ts"] + found[2]["dur"]


def test_what_has_not_ended_ends_no_earlier_than_what_is_inside_it() -> None:
    """A thread that hangs may go on, and end slices while the file is written."""
    clock = Clock(1)
    trace = Trace(10, clock)
    track = trace.track()
    track.begin(trace.name_index("outer"))
    with track.begin(trace.name_index("inner")):
        clock.now = 900
    # The writer's look at the clock comes before the end of the inner one.
    clock.now = 100
    outer, inner = read(trace).of("hyrt.main")
    assert (outer["name"], outer["args"]) == ("outer", {"unfinished": True})
    assert outer["ts"] + outer["dur"] >= inner["ts"] + inner["dur"] > 100


def test_a_track_goes_on_with_the_next_thread_of_its_name() -> None:
    trace = Trace(10, Clock())

    def work() -> None:
        with trace.track().begin(trace.name_index("work")):
            both.wait()

    def together(count: int) -> None:
        nonlocal both
        both = threading.Barrier(count)
        threads = [threading.Thread(target=work, name="hyrt.team.1") for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    both = threading.Barrier(1)
    for count in (1, 1, 1, 2, 1, 2):
        together(count)
    # Never more tracks than there were threads of that name at a time.
    assert len(trace.tracks) == 2
    assert len(read(trace).slices) == 8


@pytest.mark.parametrize("count", [1, 3])
def test_workers_show_where_they_worked(count: int) -> None:
    trace = Trace(1000)
    done = np.zeros(100, np.int64)
    barrier = threading.Barrier(count)

    def work(start: int, stop: int) -> None:
        if start // 10 < count:
            barrier.wait()  # So that everyone takes part.
        done[start:stop] += 1

    with Workers(count, "hyrt.team") as workers:
        workers.observer = partial(record_worker_slices, trace)
        with trace.track().begin(trace.name_index("stage"), 5, 1, 0, 64):
            workers.run(work, 100, 10)
        workers.run(lambda start, stop: None, 5, 1)
    assert (done == 1).all()
    found = read(trace)
    threads = ["hyrt.main", *(f"hyrt.team.{i}" for i in range(1, count))] if count > 1 else []
    (stage,) = found.of("hyrt.main", "stage")
    for thread in threads:
        # One slice a job, however many chunks.
        (chunks,) = found.of(thread, "test_workers_show_where_they_worked")
        assert chunks["args"] == {"step": 5, "trainer": "b:0", "share": 0, "units": 64}
        assert stage["ts"] <= chunks["ts"]
        assert chunks["ts"] + chunks["dur"] <= stage["ts"] + stage["dur"]
    assert len(found.slices) == 1 + len(threads)


def test_jobs_inside_chunks_and_failing_chunks() -> None:
    trace = Trace(1000)
    with Workers(2, "hyrt.team") as workers, trace.track().begin(trace.name_index("stage")):
        workers.observer = partial(record_worker_slices, trace)
        workers.run(lambda start, stop: workers.run(lambda a, b: None, 1, 1), 40, 1)
        with pytest.raises(ZeroDivisionError):
            workers.run(lambda start, stop: 1 // (start - 5), 40, 1)
    read(trace)


def test_a_channel_tells_what_is_in_it() -> None:
    trace = Trace(5, Clock())
    channel: Channel[str] = Channel("c", 3, trace.counter("channel c", "items").record)
    for word in "ab":
        channel.put(word)
    assert channel.get() == "a"
    channel.put("c")
    assert [value for _, value in read(trace).counter("channel c")] == [1, 2, 1, 2]
    for _ in range(2):
        channel.get()
    # Five stay.
    assert [value for _, value in read(trace).counter("channel c")] == [2, 1, 2, 1, 0]
    assert count_dropped_events(trace) == {"counter channel c": 1}


def test_marks_of_any_text() -> None:
    trace = Trace(2, Clock())
    texts = ["gone", 'quotes " and \\ and \n', "arrows → and \udcff"]
    for text in texts:
        trace.mark(text)
    data = trace_json(trace, (), {})
    # Letters are as they are: a viewer need not unescape them.
    assert "→".encode() in data
    found = [event["name"] for event in json.loads(data)["traceEvents"] if event["ph"] == "i"]
    assert found == texts[1:]
    assert count_dropped_events(trace) == {"marks": 1}


class Machine:
    """A device with a clock of its own: another zero, and another speed."""

    def __init__(self, zero: int, drift: float) -> None:
        self._zero, self._drift = zero, drift

    def at(self, host: int) -> int:
        return self._zero + round(host * (1 + self._drift))


@pytest.mark.parametrize("drift", [0.0, 20e-6, -20e-6])
@pytest.mark.parametrize("zero", [0, -(10**15), 10**17])
def test_device_times_come_to_the_hosts_clock(zero: int, drift: float) -> None:
    """Over half an hour, with hand-overs that are late by 20 µs at least, and often by much more."""
    rng = np.random.default_rng(5)
    machine = Machine(zero, drift)
    spans, truth, now = [], [], 10**9
    for _ in range(20_000):
        now += int(rng.integers(10_000_000, 170_000_000))
        handed = now + 6_000_000 + 20_000 + int(rng.exponential(300_000))
        for start in (now, now + 2_000_000):
            truth.append(start)
            spans.append((machine.at(start), machine.at(start + 1_000_000), handed, 0))
    table = np.array(spans, SPANS)
    (moved,) = convert_to_host_clock([table])
    assert (moved["end"] <= moved["handed"]).all()
    late = moved["start"] - np.array(truth)
    # The quickest of 65, and what the clocks drift in the time of 65 steps.
    assert late.min() > 3_000_000 - 300_000
    assert late.max() < 3_000_000 + 600_000
    (lengths,) = {tuple(np.unique(table["end"] - table["start"]))}
    assert tuple(np.unique(moved["end"] - moved["start"])) == lengths


def test_queues_of_a_device_share_its_clock() -> None:
    """Copies are handed over long after they ended; what they are is known from the other queue."""
    handed = np.arange(1, 101) * 10_000_000
    compute = np.array([(t - 2_000_000, t - 1_000, t, 0) for t in handed], SPANS)
    copies = np.array([(t - 9_000_000, t - 8_000_000, t + 500, 0) for t in handed], SPANS)
    for table in (compute, copies):
        table["start"] += 777
        table["end"] += 777
    moved_compute, moved_copies = convert_to_host_clock([compute, copies])
    assert (moved_compute["end"] == handed).all()
    assert (moved_copies["end"] == handed - 8_000_000 + 1000).all()


def test_a_queue_that_begins_late_is_moved_by_what_the_clocks_have_drifted_until_then() -> None:
    machine = Machine(10**15, 20e-6)
    handed = np.arange(1, 301) * 10**9
    compute = [(machine.at(t - 2_000_000), machine.at(t - 1000), t, 0) for t in handed.tolist()]
    late = handed[-10:]
    copies = [(machine.at(t - 9_000_000), machine.at(t - 8_000_000), t + 500, 0) for t in late.tolist()]
    _, moved = convert_to_host_clock([np.array(compute, SPANS), np.array(copies, SPANS)])
    # 20 µs a second: 6 ms since the start, and below 1 ms within the reports around.
    assert np.abs(moved["start"] - (late - 9_000_000)).max() < 1_000_000


spans_of_a_queue = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=25)


@given(spans_of_a_queue, st.integers(1, 8), st.integers(-50, 50))
def test_spans_that_overlap_come_to_rows_of_their_own(
    spans: list[tuple[int, int]], limit: int, shift: int
) -> None:
    table = np.array([(start, start + length, 0, 0) for start, length in spans], SPANS)
    rows = split_overlaps(table, limit)
    assert len(rows) <= limit
    assert sorted(at for row in rows for at in row.tolist()) == list(range(len(spans)))
    depth = max((sum(s <= at < s + n for s, n in spans) for at in range(81)), default=0)
    # No more rows than run at once; spans without length need one too.
    assert len(rows) <= max(depth, 1) + any(n == 0 for _, n in spans) if spans else not rows
    for row in rows:
        cut = remove_overlaps(table[row])
        assert all(a["end"] <= b["start"] for a, b in pairwise(cut))
        assert (cut["end"] >= cut["start"]).all()
        if depth <= limit - 1:
            assert (cut == table[row]).all()


@given(spans_of_a_queue, st.integers(1, 10))
def test_the_file_of_any_queue_is_whole(spans: list[tuple[int, int]], limit: int) -> None:
    trace = Trace(limit, Clock())
    for at, (start, length) in enumerate(spans):
        trace.add_spans("d:0", f"q{at % 2}", [("kernel", start, start + length)])
    found = read(trace)
    assert len(found.slices) == sum(min(limit, len(range(first, len(spans), 2))) for first in (0, 1))
    assert set(found.processes.values()) == ({"hyrt", "d:0 queues"} if spans else {"hyrt"})


def test_a_queue_that_ran_nothing_has_no_track() -> None:
    trace = Trace(3, Clock())
    trace.add_spans("d:0", "copies", [])
    assert read(trace).threads == {}
