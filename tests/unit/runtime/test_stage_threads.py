"""Threads and channels as a group, of any work: how they end, and what is said of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from hyrt.errors import StageError, StallError
from hyrt.runtime.stage_threads import ChannelClosedError, StageProgress, StageThreads

NUMBERS = 20


class Squares:
    """Two threads: one counts, one squares what the other has counted."""

    def __init__(self, square: Callable[[int], int], timeout_s: float = 30.0, **more: Any) -> None:
        self.threads = StageThreads(stall_timeout_s=timeout_s, **{"on_stall": print, **more})
        self._counted = self.threads.add_channel("counted", 2)
        self.squared = self.threads.add_channel("squared", 2)
        self._square = square
        self.threads.add_thread("test.count", "count", "here", self._count)
        self.threads.add_thread("test.square", "square", "there", self._squares)

    def _count(self, place: StageProgress) -> None:
        for number in range(NUMBERS):
            place.begin_step(number)
            self._counted.put(number)
        self._counted.close_sender()

    def _squares(self, place: StageProgress) -> None:
        for number in self._counted:
            place.begin_step(number)
            self.squared.put(self._square(number))
        self.squared.close_sender()

    def all(self) -> list[int]:
        with self.threads, self.threads.consumer_waiting():
            return list(self.squared)


def alive() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name in ("test.count", "test.square")]


def test_everything_comes_through_and_the_threads_end() -> None:
    assert Squares(lambda number: number**2).all() == [number**2 for number in range(NUMBERS)]
    assert not alive()


def test_the_first_failure_wins_and_ends_all() -> None:
    cause = ZeroDivisionError("7")
    heard: list[BaseException] = []

    def square(number: int) -> int:
        if number == 7:
            raise cause
        return number

    with pytest.raises(
        StageError, match="error in square on there at step 7: ZeroDivisionError: 7"
    ) as raised:
        Squares(square, on_failure=heard.append).all()
    assert raised.value.__cause__ is cause
    # The thread that counts fails too, at its channel: nobody hears of that.
    assert heard == [raised.value]
    assert not alive()


def test_a_consumer_that_is_busy_hears_of_a_failure_when_it_asks() -> None:
    failed = threading.Event()
    squares = Squares(lambda number: 1 // 0, on_failure=lambda failure: failed.set())
    with squares.threads:
        assert failed.wait(10)
        with pytest.raises(StageError, match="square on there at step 0"):
            squares.threads.raise_failure()


def test_who_hangs_is_named_with_all_stacks() -> None:
    release = threading.Event()

    def square(number: int) -> int:
        if number == 3:
            release.wait(20)
        return number

    reports: list[str] = []

    def on_stall(report: str) -> None:
        reports.append(report)
        release.set()

    with pytest.raises(StallError, match=r"\(square on there at step 3 did not return\)"):
        Squares(square, timeout_s=0.2, on_stall=on_stall).all()
    (report,) = reports
    assert "thread test.count" in report
    # Two numbers are in the channel behind the one that is squared, and one waits in front of it.
    stacks, events = report.split("last pipeline events\n")
    assert "release.wait" in stacks
    assert {"count on here: step 6", "square on there: step 3"} <= set(events.splitlines())
    assert "count on here: step 7" not in events
    assert not alive()


def test_a_stall_ends_with_what_has_held_all_up_where_that_is_known() -> None:
    release = threading.Event()
    cause = StageError("rank 1 failed: nothing moved for 9 s")

    def square(number: int) -> int:
        release.wait(20)
        return number

    def held_up() -> StageError:
        release.set()
        return cause

    reports: list[str] = []
    with pytest.raises(StageError) as raised:
        Squares(square, timeout_s=0.2, on_stall=reports.append, explain_stall=held_up).all()
    assert raised.value is cause
    assert not reports
    assert not alive()


def test_a_thread_that_does_not_end_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.runtime.stage_threads._JOIN_S", 0.2)
    release = threading.Event()

    def square(number: int) -> int:
        release.wait(20)
        return number

    squares = Squares(square)
    with pytest.raises(StageError, match=r"thread test.square did not end within 0.2 s"), squares.threads:
        pass
    release.set()
    for thread in threading.enumerate():
        if thread.name == "test.square":
            thread.join(10)
    assert not alive()


def test_the_end_of_a_consumer_that_leaves_is_no_failure() -> None:
    heard: list[BaseException] = []
    squares = Squares(lambda number: number, on_failure=heard.append)
    with squares.threads:
        assert squares.squared.get() == 0
    assert not heard
    assert not alive()
    with pytest.raises(ChannelClosedError, match="closed"):
        squares.squared.get()


def test_channels_tell_what_they_hold() -> None:
    seen: dict[str, list[int]] = {}

    def watch(name: str) -> Callable[[int], None]:
        return seen.setdefault(name, []).append

    Squares(lambda number: number, channel_observer=watch).all()
    # Each item comes and goes.
    assert {name: len(counts) for name, counts in seen.items()} == dict.fromkeys(
        ("counted", "squared"), 2 * NUMBERS
    )
    assert all(0 <= count <= 2 for counts in seen.values() for count in counts)
