from __future__ import annotations

import threading
import time

import pytest

from hyrt.runtime.stage_threads import Channel, ChannelClosedError


def in_thread(work) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_items_arrive_in_order_and_the_stream_ends() -> None:
    channel: Channel[int] = Channel("c", 3)

    def send() -> None:
        for i in range(100):
            channel.put(i)
        channel.close_sender()

    thread = in_thread(send)
    assert list(channel) == list(range(100))
    thread.join()
    assert channel.statistics().peak <= 3
    assert channel.statistics().sent == channel.statistics().received == 100


def test_a_full_channel_makes_the_sender_wait_and_counts_it() -> None:
    channel: Channel[int] = Channel("c", 1)
    channel.put(0)
    passed = threading.Event()

    def send() -> None:
        channel.put(1)
        passed.set()

    thread = in_thread(send)
    assert not passed.wait(0.05)
    assert channel.get() == 0
    assert passed.wait(5)
    thread.join()
    statistics = channel.statistics()
    assert statistics.sends_blocked == 1
    assert statistics.send_blocked_s >= 0.04
    assert statistics.receives_blocked == 0


def test_a_wait_that_goes_on_counts_already() -> None:
    channel: Channel[int] = Channel("c", 1)
    thread = in_thread(lambda: channel.get())
    while not channel.statistics().receives_blocked:
        time.sleep(0.001)
    before = channel.statistics().receive_blocked_s
    time.sleep(0.05)
    assert channel.statistics().receive_blocked_s - before >= 0.04
    channel.put(0)
    thread.join()
    ended = channel.statistics().receive_blocked_s
    time.sleep(0.01)
    assert channel.statistics().receive_blocked_s == ended
    assert channel.statistics().send_blocked_s == 0


def test_the_time_that_items_are_in_it() -> None:
    # Two items, then three, then one: between the times that are certain and those that are possible.
    channel: Channel[int] = Channel("c", 3)
    began = time.perf_counter()
    channel.put(0)
    channel.put(1)
    time.sleep(0.03)
    channel.put(2)
    time.sleep(0.02)
    channel.get()
    channel.get()
    time.sleep(0.01)
    seen = channel.statistics()
    passed = time.perf_counter() - began
    assert 2 * 0.03 + 3 * 0.02 + 0.01 <= seen.item_s <= 2 * 0.03 + 3 * 0.02 + 0.01 + 3 * (passed - 0.06)
    channel.get()
    empty = channel.statistics().item_s
    time.sleep(0.01)
    assert channel.statistics().item_s == empty


def test_closing_the_receiver_tells_a_waiting_sender() -> None:
    channel: Channel[int] = Channel("c", 1)
    channel.put(0)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            channel.put(1)
        except ChannelClosedError as error:
            raised.append(error)

    thread = in_thread(send)
    channel.close_receiver()
    thread.join(5)
    assert len(raised) == 1


def test_failing_raises_at_both_ends_even_with_items_left() -> None:
    channel: Channel[int] = Channel("c", 2)
    channel.put(0)
    boom = RuntimeError("boom")
    channel.fail(boom)
    channel.fail(RuntimeError("later"))
    with pytest.raises(RuntimeError, match="boom"):
        channel.get()
    with pytest.raises(RuntimeError, match="boom"):
        channel.put(1)


def test_failing_wakes_a_waiting_receiver() -> None:
    channel: Channel[int] = Channel("c", 1)
    raised: list[BaseException] = []

    def receive() -> None:
        try:
            channel.get()
        except RuntimeError as error:
            raised.append(error)

    thread = in_thread(receive)
    channel.fail(RuntimeError("boom"))
    thread.join(5)
    assert str(raised[0]) == "boom"


def test_put_after_close_and_get_after_end() -> None:
    channel: Channel[int] = Channel("c", 1)
    channel.close_sender()
    with pytest.raises(ChannelClosedError):
        channel.put(1)
    with pytest.raises(ChannelClosedError):
        channel.get()


def test_a_channel_holds_something() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Channel("c", 0)


def test_what_a_closed_receiver_drops_stays_no_longer() -> None:
    channel: Channel[int] = Channel("c", 4)
    channel.put(1)
    channel.put(2)
    time.sleep(0.01)
    channel.close_receiver()
    at_close_s = channel.statistics().item_s
    assert at_close_s >= 0.02
    time.sleep(0.02)
    assert channel.statistics().item_s == at_close_s
