"""What ranks leave when a run fails, and what they tell each other of a lost one."""

from __future__ import annotations

import threading
import time

import pytest
import torch.distributed as dist

from hyrt.distributed import heartbeat
from hyrt.distributed.heartbeat import FailureReportExchange, HeartbeatMonitor
from hyrt.errors import RankFailureError


def test_rank_0_gets_what_each_rank_leaves() -> None:
    store = dist.HashStore()
    data = bytes(range(256))
    others = [FailureReportExchange(lambda: store, rank, lambda: [0]) for rank in (1, 2)]
    late = threading.Timer(0.3, others[1].exchange, ["figures", b""])
    began = time.monotonic()
    late.start()
    assert others[0].exchange("figures", data) == {}
    assert others[0].exchange("trace", b"other") == {}
    found = FailureReportExchange(lambda: store, 0, lambda: [1, 2]).exchange("figures", b"own")
    assert found == {0: b"own", 1: data, 2: b""}
    assert 0.2 < time.monotonic() - began < 1.5
    late.join()


def test_the_first_rank_that_is_left_gets_it_all() -> None:
    store = dist.HashStore()
    first = FailureReportExchange(lambda: store, 1, lambda: [2, 3])
    others = [
        FailureReportExchange(lambda: store, 2, lambda: [1, 3]),
        FailureReportExchange(lambda: store, 3, lambda: [1, 2]),
    ]
    assert [each.is_receiver for each in (first, *others)] == [True, False, False]
    assert [each.exchange("figures", b"other") for each in others] == [{}, {}]
    assert first.exchange("figures", b"own") == {1: b"own", 2: b"other", 3: b"other"}
    # Rank 0 is there.
    assert not FailureReportExchange(lambda: store, 1, lambda: [0, 2]).is_receiver


def test_a_rank_that_leaves_nothing_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_REPORT_WAIT_S", 0.8)
    store = dist.HashStore()
    FailureReportExchange(lambda: store, 2, lambda: [0]).exchange("figures", b"2")
    words = FailureReportExchange(lambda: store, 0, lambda: [1, 2])
    began = time.monotonic()
    assert words.exchange("figures", b"0") == {0: b"0", 2: b"2"}
    assert 0.6 < time.monotonic() - began < 1.8
    assert words.exchange("trace", b"t")[0] == b"t"
    assert time.monotonic() - began < 2.3


def test_a_lost_rank_is_not_waited_for() -> None:
    store = dist.HashStore()
    began = time.monotonic()
    assert FailureReportExchange(lambda: store, 0, lambda: []).exchange("figures", b"0") == {0: b"0"}
    assert time.monotonic() - began < 1


def test_a_store_that_is_gone_or_silent_costs_no_more_than_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "_REPORT_WAIT_S", 0.8)

    def gone() -> object:
        raise dist.DistStoreError("connection refused")

    released = threading.Event()

    def silent() -> object:
        released.wait(20)
        return dist.HashStore()

    began = time.monotonic()
    assert FailureReportExchange(gone, 0, lambda: [1]).exchange("figures", b"0") == {0: b"0"}
    assert time.monotonic() - began < 1
    began = time.monotonic()
    assert FailureReportExchange(silent, 1, lambda: [0]).exchange("figures", b"1") == {}
    assert 0.6 < time.monotonic() - began < 2.8
    released.set()


def test_what_is_too_large_is_not_left() -> None:
    store = dist.HashStore()
    FailureReportExchange(lambda: store, 1, lambda: [0]).exchange("trace", bytes((32 << 20) + 1))
    assert not store.check(["last/trace/1"])


def test_whoever_finds_a_rank_lost_tells_the_others() -> None:
    store = dist.HashStore()
    # It lived once.
    store.set("beat/1", "1")
    found: dict[int, RankFailureError] = {}
    fellows = [
        HeartbeatMonitor(
            store, rank, 3, lambda loss, rank=rank: found.update({rank: loss}), "rank 0", silent_s
        )
        for rank, silent_s in ((0, 0.6), (2, 60.0))
    ]
    for each in fellows:
        each.start()
    end = time.monotonic() + 10
    while len(found) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    # Rank 2 would have waited for a minute.
    assert str(found[2]) == str(found[0]) == "rank 1 was lost: no heartbeat was received for 0.6 s"
    assert [each.reachable for each in fellows] == [[2], [0]]
    for each in fellows:
        each.close()
    taken: list[RankFailureError] = []
    itself = HeartbeatMonitor(store, 1, 3, taken.append, "rank 0", 60.0)
    itself.start()
    end = time.monotonic() + 10
    while not taken and time.monotonic() < end:
        time.sleep(0.05)
    expected = "the other ranks continue without rank 1, which is this rank: rank 1 was lost"
    assert str(taken[0]).startswith(expected)
    itself.close()


def test_two_silent_ranks_are_told_apart_by_who_stays_silent() -> None:
    """A busy rank that is late with its beat is not taken for the one that ended."""
    store = dist.HashStore()
    lost: list[RankFailureError] = []
    fellows = HeartbeatMonitor(store, 0, 3, lost.append, "rank 0", 5.0)
    for rank in (1, 2):
        store.set(f"beat/{rank}", "1")
    fellows.start()
    # Rank 1 comes back after both were silent for longer than a beat.
    back = threading.Timer(3.2, store.set, ["beat/1", "2"])
    back.start()
    told = fellows.diagnose_failure("adding", RuntimeError("connection reset"))
    assert str(told) == "rank 2 was lost: it ended without a report (connection reset)"
    back.join()
    fellows.close()


def test_a_store_that_is_lost_keeps_nobody() -> None:
    """Its machine is gone: a call to it does not return."""
    released = threading.Event()

    class Silent:
        def set(self, key: str, value: str) -> None:
            released.wait(30)
            raise dist.DistStoreError("closed")

    lost: list[RankFailureError] = []
    fellows = HeartbeatMonitor(Silent(), 1, 2, lost.append, "rank 0", 0.3)
    fellows.start()
    end = time.monotonic() + 10
    while not lost and time.monotonic() < end:
        time.sleep(0.02)
    assert str(lost[0]).startswith("rank 0 was lost: it hosts the ranks' store, which has not answered")
    began = time.monotonic()
    assert fellows.reachable == []
    # Whoever is left besides cannot be heard.
    assert FailureReportExchange(Silent, 1, lambda: fellows.reachable).exchange("figures", b"1") == {1: b"1"}
    fellows.close()
    assert time.monotonic() - began < 10
    released.set()
