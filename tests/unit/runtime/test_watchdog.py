from __future__ import annotations

import threading

from hyrt.runtime.stage_threads import Watchdog, format_thread_stacks


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def guard(clock: Clock, state: dict, timeout: float = 10.0) -> Watchdog:
    return Watchdog(timeout, lambda: state["activity"], lambda: state["waiting"], lambda stacks: None, clock)


def test_stalls_only_after_the_timeout_without_activity() -> None:
    clock, state = Clock(), {"activity": 0, "waiting": True}
    watch = guard(clock, state)
    assert not watch.check()
    clock.now = 9.9
    assert not watch.check()
    clock.now = 10.0
    assert watch.check()


def test_activity_starts_the_time_anew() -> None:
    clock, state = Clock(), {"activity": 0, "waiting": True}
    watch = guard(clock, state)
    watch.check()
    clock.now = 9.0
    state["activity"] = 1
    assert not watch.check()
    clock.now = 18.9
    assert not watch.check()
    clock.now = 19.0
    assert watch.check()


def test_time_in_which_the_consumer_works_does_not_count() -> None:
    clock, state = Clock(), {"activity": 0, "waiting": False}
    watch = guard(clock, state)
    for now in range(0, 1000, 5):
        clock.now = float(now)
        assert not watch.check()
    state["waiting"] = True
    clock.now += 9
    assert not watch.check()
    clock.now += 10
    assert watch.check()


def test_time_in_which_the_process_was_stopped_does_not_count() -> None:
    clock, state = Clock(), {"activity": 0, "waiting": True}
    watch = guard(clock, state)
    watch.check()
    clock.now = 1000.0
    assert not watch.check(late_s=995.0)
    clock.now = 1004.0
    assert not watch.check()
    clock.now = 1005.0
    assert watch.check()


def test_stacks_name_every_thread() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait, name="a thread to find")
    thread.start()
    stacks = format_thread_stacks()
    release.set()
    thread.join()
    assert "a thread to find" in stacks
    assert "test_stacks_name_every_thread" in stacks


def test_a_stall_is_reported_once_and_the_guard_ends() -> None:
    reported: list[str] = []
    heard = threading.Event()

    def on_stall(stacks: str) -> None:
        reported.append(stacks)
        heard.set()

    watch = Watchdog(0.05, lambda: 0, lambda: True, on_stall)
    watch.start()
    assert heard.wait(5)
    watch.close()
    assert len(reported) == 1
