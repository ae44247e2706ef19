from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.runtime.workers import Workers, current_workers, use_workers

WAIT_S = 20


@pytest.fixture
def team() -> Iterator[Workers]:
    workers = Workers(3, "team")
    yield workers
    workers.close()


def threads_named(prefix: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(prefix)]


def borders(workers: Workers, size: int, grain: int) -> list[tuple[int, int]]:
    seen: list[tuple[int, int]] = []
    workers.run(lambda start, stop: seen.append((start, stop)), size, grain)
    return sorted(seen)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 400), st.integers(2, 4))
def test_chunks_cover_the_range_and_do_not_depend_on_the_threads(size: int, grain: int, count: int) -> None:
    expected = [(start, min(start + grain, size)) for start in range(0, size, grain)]
    alone, several = Workers(1, "alone"), Workers(count, "several")
    try:
        assert borders(alone, size, grain) == borders(several, size, grain) == expected
    finally:
        several.close()


def test_all_threads_work_at_once(team: Workers) -> None:
    barrier = threading.Barrier(3, timeout=WAIT_S)
    names: set[str] = set()

    def work(start: int, stop: int) -> None:
        barrier.wait()
        names.add(threading.current_thread().name)

    team.run(work, 3, 1)
    assert len(names) == 3
    assert threading.current_thread().name in names


def test_run_returns_only_when_every_chunk_is_done(team: Workers) -> None:
    done = np.zeros(6, np.bool_)

    def work(start: int, stop: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.02)
        done[start:stop] = True

    team.run(work, 6, 1)
    assert done.all()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("bad", [0, 5, 9])
def test_an_exception_is_raised_in_the_caller_and_the_team_goes_on(count: int, bad: int) -> None:
    workers = Workers(count, "failing")

    def work(start: int, stop: int) -> None:
        if start == bad:
            raise ZeroDivisionError(f"chunk {start}")

    try:
        for _ in range(20):
            with pytest.raises(ZeroDivisionError, match=f"chunk {bad}"):
                workers.run(work, 10, 1)
        assert borders(workers, 10, 3) == [(0, 3), (3, 6), (6, 9), (9, 10)]
        assert workers.count == count
    finally:
        workers.close()


def test_an_exception_in_another_thread_is_raised_in_the_caller(team: Workers) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)

    def work(start: int, stop: int) -> None:
        both.wait()
        if threading.current_thread() is not threading.main_thread():
            raise KeyError("not in the caller")

    team.resize(2)
    with pytest.raises(KeyError, match="not in the caller"):
        team.run(work, 2, 1)


def test_after_an_exception_no_further_chunk_starts() -> None:
    started: list[int] = []

    def work(start: int, stop: int) -> None:
        started.append(start)
        raise ValueError("stop here")

    workers = Workers(2, "stopping")
    try:
        with pytest.raises(ValueError, match="stop here"):
            workers.run(work, 1000, 1)
    finally:
        workers.close()
    assert len(started) <= 2


def test_resize_up_and_down() -> None:
    workers = Workers(1, "resized")
    for count in (4, 2, 3, 1, 2, 6, 1):
        workers.resize(count)
        assert workers.count == count
        assert len(threads_named("resized")) == count - 1
        barrier = threading.Barrier(count, timeout=WAIT_S)
        # Each chunk waits for all threads of the team: there are as many as there should be.
        workers.run(lambda start, stop, barrier=barrier: barrier.wait() and None, count, 1)  # type: ignore[misc]
    assert not threads_named("resized")


def by_helpers(team: Workers, work: Callable[[], None], calls: int) -> int:
    """How many calls of some work have chunks that threads other than the caller do."""
    me, seen = threading.current_thread(), 0
    for _ in range(calls):
        names: set[threading.Thread] = set()

        def chunk(start: int, stop: int, names: set[threading.Thread] = names) -> None:
            work()
            names.add(threading.current_thread())

        team.run(chunk, 6, 1)
        seen += names != {me}
    return seen


def test_the_caller_does_short_work_alone(team: Workers) -> None:
    # Waking a thread takes longer than six times nothing.
    assert by_helpers(team, lambda: None, 200) < 60


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 3000), st.integers(1, 400), st.integers(1, 3))
def test_rows_are_covered_once_however_they_are_cut(size: int, grain: int, count: int) -> None:
    team = Workers(count, "rows")
    try:
        for _ in range(3):  # Shared, then alone, then the faster way.
            done = np.zeros(size, np.int64)
            calls: list[int] = []

            def work(start: int, stop: int, done: np.ndarray = done, calls: list[int] = calls) -> None:
                done[start:stop] += 1
                calls.append(stop - start)

            team.run_rows(work, size, grain)
            assert (done == 1).all()
            assert len(calls) == (size > 0) or max(calls) <= grain
        assert count > 1 or len(calls) == (size > 0)
    finally:
        team.close()


def test_long_work_is_shared_each_time(team: Workers) -> None:
    assert by_helpers(team, lambda: time.sleep(0.002), 20) == 20


def test_long_work_stays_shared_where_short_work_looks_like_it(team: Workers) -> None:
    calls = 0

    def work() -> None:
        if (calls // 6) % 2:
            time.sleep(0.002)

    def counted() -> None:
        nonlocal calls
        work()
        calls += 1

    shared = 0
    for call in range(40):
        seen = by_helpers(team, counted, 1)
        calls = 6 * (call + 1)
        shared += seen * (call % 2)
    assert shared >= 19  # One of the twenty long ones may be done alone, before any is known.


def test_work_that_has_become_long_is_shared_again(team: Workers) -> None:
    seconds = 0.0
    assert by_helpers(team, lambda: time.sleep(seconds), 30) < 30
    seconds = 0.002
    assert by_helpers(team, lambda: time.sleep(seconds), 20) >= 10


@pytest.mark.parametrize("count", [0, -1])
def test_a_team_without_threads_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=r"threads of odd must be .*, got "):
        Workers(count, "odd")
    workers = Workers(2, "odd")
    with pytest.raises(ValueError, match=f"threads of odd must be at least 1, got {count}"):
        workers.resize(count)
    assert workers.count == 2
    workers.close()


def test_close_ends_all_threads_and_leaves_the_caller_working() -> None:
    workers = Workers(5, "closing")
    assert len(threads_named("closing")) == 4
    workers.close()
    assert not threads_named("closing")
    workers.close()
    assert borders(workers, 5, 2) == [(0, 2), (2, 4), (4, 5)]


def test_one_thread_starts_none_and_an_empty_range_runs_nothing() -> None:
    before = threading.active_count()
    workers = Workers(1, "single")
    names: set[str] = set()
    workers.run(lambda start, stop: names.add(threading.current_thread().name), 100, 7)
    assert names == {threading.current_thread().name}
    assert threading.active_count() == before
    assert borders(workers, 0, 7) == []


def test_on_start_runs_once_in_each_thread_the_team_starts() -> None:
    started: list[str] = []
    workers = Workers(3, "hooked", on_start=lambda: started.append(threading.current_thread().name))
    barrier = threading.Barrier(3, timeout=WAIT_S)
    workers.run(lambda start, stop: barrier.wait() and None, 3, 1)
    workers.close()
    assert len(started) == len(set(started)) == 2
    assert threading.current_thread().name not in started


def test_teams_nest(team: Workers) -> None:
    """A chunk of one team may run a whole call of another, or of its own: the caller always works too."""
    inner = Workers(2, "inner")
    sums = np.zeros((6, 40), np.int64)

    def outer_work(start: int, stop: int) -> None:
        def inner_work(a: int, b: int) -> None:
            sums[start, a:b] += 1

        inner.run(inner_work, 20, 3)
        team.run(lambda a, b: inner_work(a + 20, b + 20), 20, 3)

    def call() -> None:
        for _ in range(30):
            team.run(outer_work, 6, 1)

    caller = threading.Thread(target=call)
    caller.start()
    caller.join(WAIT_S)
    assert not caller.is_alive(), "nested teams wait for each other"
    inner.close()
    np.testing.assert_array_equal(sums, 30)


def test_two_callers_share_a_team(team: Workers) -> None:
    results = np.zeros((4, 500), np.int64)

    def call(which: int) -> None:
        for _ in range(50):

            def work(start: int, stop: int) -> None:
                results[which, start:stop] += which + 1

            team.run(work, 500, 7)

    callers = [threading.Thread(target=call, args=(which,)) for which in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(WAIT_S)
        assert not caller.is_alive()
    np.testing.assert_array_equal(results, 50 * np.arange(1, 5)[:, None] * np.ones((1, 500), np.int64))


def test_current_team_is_the_threads_own(team: Workers) -> None:
    assert current_workers().count == 1
    other = Workers(2, "other")
    with use_workers(team):
        assert current_workers() is team
        with use_workers(other):
            assert current_workers() is other
        assert current_workers() is team
        with pytest.raises(RuntimeError, match="inside"), use_workers(other):
            raise RuntimeError("inside")
        assert current_workers() is team
    assert current_workers().count == 1

    seen: dict[str, Workers] = {}
    barrier = threading.Barrier(2, timeout=WAIT_S)

    def work(start: int, stop: int) -> None:
        barrier.wait()
        seen[threading.current_thread().name] = current_workers()

    other.run(work, 2, 1)
    mine = seen.pop(threading.current_thread().name)
    assert mine.count == 1
    assert list(seen.values()) == [other]
    other.close()


def test_a_stuck_thread_does_not_hold_the_team_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.runtime.workers._JOIN_S", 0.1)
    team = Workers(2, "stuck team")
    release, started = threading.Event(), threading.Event()

    def work(start: int, stop: int) -> None:
        if threading.current_thread().name.startswith("stuck team"):
            started.set()
            release.wait()
        else:
            started.wait(5)

    caller = threading.Thread(target=team.run, args=(work, 2, 1))
    caller.start()
    assert started.wait(5)
    with pytest.raises(TimeoutError, match=r"stuck team.1 did not end within 0.1 s"):
        team.close()
    release.set()
    caller.join(5)
    assert not caller.is_alive()


def test_a_stuck_thread_does_not_hide_what_failed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    team = Workers(1, "t")
    monkeypatch.setattr(team, "close", lambda: (_ for _ in ()).throw(TimeoutError("thread t.1 did not end")))
    with pytest.raises(ValueError, match="first") as raised, team:
        raise ValueError("first")
    assert raised.value.__notes__ == ["thread t.1 did not end"]


def test_threads_that_were_started_end_where_the_system_allows_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        start(thread)
        started.append(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        Workers(10, "few")
    assert len(started) == 3
    assert not any(thread.is_alive() for thread in started)
