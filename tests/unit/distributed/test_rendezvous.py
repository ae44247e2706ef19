"""Ranks that never come, or are lost while the others join, end these in time and with a name."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from unit.distributed.ranks_in_threads import results_of

from hyrt.distributed import heartbeat
from hyrt.distributed.context import DistributedContext, init_from_launcher
from hyrt.distributed.heartbeat import HeartbeatMonitor
from hyrt.distributed.launch import LaunchInfo, launch_info_from_env
from hyrt.distributed.rendezvous import RendezvousResult, join_ranks
from hyrt.errors import ConfigError, RankFailureError
from hyrt.runtime.stage_threads import ChannelClosedError


def test_a_rank_that_is_lost_while_others_join_is_named() -> None:
    store = dist.HashStore()
    # It lived once, and made no connection.
    store.set("beat/1", "1")
    lost: list[RankFailureError] = []
    with pytest.raises(RankFailureError, match=r"rank 1 was lost: no heartbeat was received for 0\.5 s"):
        DistributedContext(store, 0, 2, timeout_s=1.2, max_silence_s=0.5, on_peer_failure=lost.append)
    assert len(lost) == 1


def test_a_rank_that_never_came_is_not_lost_before_the_time_is_over() -> None:
    lost: list[RankFailureError] = []
    began = time.monotonic()
    # With a server: in it, whoever waits for a key keeps the connection.
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    with pytest.raises(RankFailureError, match="could not connect to each other within 1 s"):
        DistributedContext(
            PrefixStore("hyrt", client), 0, 2, timeout_s=1, max_silence_s=0.1, on_peer_failure=lost.append
        )
    assert time.monotonic() - began > 0.9
    assert lost == []


def test_a_rank_whose_interface_is_not_there_tells_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nope0")
    store = dist.HashStore()
    with pytest.raises(RankFailureError, match=r"could not connect to each other \(.*nope0"):
        DistributedContext(store, 0, 2, timeout_s=60)
    assert store.get("failure").startswith(b"0\nthe ranks could not connect to each other")


def test_a_store_that_does_not_answer_is_waited_for_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MASTER_PORT", str(port))
        began = time.monotonic()
        with (
            pytest.raises(
                RankFailureError, match=f"{port}, which rank 0 hosts, could not be reached"
            ) as told,
            init_from_launcher(timeout_s=0.5),
        ):
            pass
        assert 0.45 < time.monotonic() - began < 10
        assert "nothing answers" in str(told.value)


class LateStore:
    """A store that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Callable[..., bytes]:
        def call(*_: object) -> bytes:
            self.asked.set()
            self.answers.wait()
            return b""

        return call


def test_a_thread_that_is_in_a_call_to_the_store_is_known_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends without Python's own end then, which would abort it (exit code -6)."""
    monkeypatch.setattr(heartbeat, "_FAILURE_REPORT_S", 0.05)
    store = LateStore()
    fellows = HeartbeatMonitor(store, 0, 2, lambda loss: None, "rank 1")
    assert not fellows.has_live_threads
    fellows.start()
    assert store.asked.wait(30)
    fellows.close()
    assert fellows.has_live_threads
    store.answers.set()
    monkeypatch.undo()
    fellows.close()
    for thread in threading.enumerate():
        if thread.name.startswith("hyrt.ranks"):
            thread.join(30)
    assert not fellows.has_live_threads


def test_whoever_keeps_the_store_stays_until_the_others_know_why_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "_ACKNOWLEDGE_S", 60.0)
    store, losses = dist.HashStore(), dict[int, RankFailureError]()
    fellows = [
        HeartbeatMonitor(store, rank, 3, partial(losses.setdefault, rank), "rank 0") for rank in range(3)
    ]
    for each in fellows:
        each.start()
    fellows[0].broadcast_failure(ConfigError("there is no such thing"))
    fellows[0].wait_until_acknowledged()
    said = {rank: str(loss) for rank, loss in losses.items()}
    assert said == dict.fromkeys((1, 2), "rank 0 failed: there is no such thing")
    for each in fellows:
        each.close()


def test_a_rank_that_lives_but_does_not_come_to_an_operation_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heartbeat, "_FAILURE_REPORT_S", 0.6)
    store, losses = dist.HashStore(), dict[int, RankFailureError]()
    counts = [{"control": 7, "rows": 9}, {"control": 6, "rows": 9}, {"control": 7, "rows": 8}]
    fellows = [
        HeartbeatMonitor(
            store, rank, 3, partial(losses.setdefault, rank), "rank 0", 60.0, partial(dict, count)
        )
        for rank, count in enumerate(counts)
    ]
    for each in fellows:
        each.start()
    found = fellows[0].diagnose_failure(
        "evaluation (control)", RuntimeError("Timed out waiting 9ms"), "control"
    )
    assert str(found) == "rank 1 did not reach evaluation (control): Timed out waiting 9ms"
    assert fellows[0].reachable == [2]
    for each in fellows:
        each.close()


def attempt(
    store: dist.Store, restarts: list[int], *, without: int = -1, timeout_s: float = 20.0
) -> list[RendezvousResult | BaseException]:
    """What ranks that come in turn, the first one last, find in a store that earlier ones have used."""
    found: list[RendezvousResult | BaseException] = [RuntimeError("did not come")] * len(restarts)

    def come(rank: int) -> None:
        try:
            found[rank] = join_ranks(store, rank, len(restarts), restarts[rank], timeout_s)
        except RankFailureError as error:
            found[rank] = error

    threads = [
        threading.Thread(target=come, args=(rank,)) for rank in range(len(restarts)) if rank != without
    ]
    for thread in reversed(threads):
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    return found


def test_ranks_that_are_started_again_meet_in_the_store_of_those_before() -> None:
    # torchrun keeps one store for all attempts, and machines may count them differently.
    store = dist.HashStore()
    names = set()
    for restarts in ([0, 0, 0], [0, 1, 0], [0, 1, 1]):
        found = attempt(store, restarts)
        assert all(isinstance(each, RendezvousResult) for each in found), found
        met = [each for each in found if isinstance(each, RendezvousResult)]
        assert len({each.name for each in met}) == 1
        assert met[0].restarts == max(restarts)
        names.add(met[0].name)
    assert len(names) == 3
    # Long enough for rank 1 to meet rank 0 on a busy machine.
    late = attempt(store, [1, 1, 1], without=2, timeout_s=2.0)
    assert str(late[0]).startswith("rank 2 did not join within 2 s: check that all ranks were started")
    # Rank 1 has come, and hears of the other.
    assert isinstance(late[1], RendezvousResult)
    came = HeartbeatMonitor(PrefixStore(late[1].name, store), 1, 3, lambda loss: None, "rank 0")
    came.start()
    assert str(came.wait_for_peer_failure(60.0)) == str(late[0])
    came.close()
    again = attempt(store, [2, 2, 2])
    assert len({each.name for each in again if isinstance(each, RendezvousResult)} - names) == 1


def test_a_rank_that_is_lost_while_others_have_not_come_is_named_by_all() -> None:
    """Rank 1 ends right after it has met rank 0, rank 2 has come, and rank 3 never comes."""
    store, found = dist.HashStore(), dict[int, RendezvousResult | RankFailureError]()

    def come(rank: int) -> None:
        try:
            found[rank] = join_ranks(store, rank, 4, 0, 60.0, max_silence_s=0.7)
        except RankFailureError as error:
            found[rank] = error

    began = time.monotonic()
    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    met = found[2]
    assert isinstance(met, RendezvousResult)
    lives = HeartbeatMonitor(
        PrefixStore(met.name, store), 2, 4, lambda loss: None, "rank 0", max_silence_s=60.0
    )
    lives.start()
    threads[0].join(30)
    says = "rank 1 was lost: no heartbeat was received for 0.7 s"
    assert str(lives.wait_for_peer_failure(30.0)) == str(found[0]) == says
    # With the six seconds of a run in place of 0.7, all end within ten.
    assert time.monotonic() - began < 0.7 + 4.0 + 10
    lives.close()


def test_a_rank_that_fails_while_others_have_not_come_ends_rank_0_soon() -> None:
    store, found = dist.HashStore(), dict[int, RendezvousResult | RankFailureError]()

    def come() -> None:
        try:
            found[0] = join_ranks(store, 0, 3, 0, 60.0)
        except RankFailureError as error:
            found[0] = error

    first = threading.Thread(target=come)
    first.start()
    met = join_ranks(store, 1, 3, 0, 60.0)
    failing = HeartbeatMonitor(PrefixStore(met.name, store), 1, 3, lambda loss: None, "rank 0")
    failing.broadcast_failure(ConfigError("there is no such thing"))
    first.join(30)
    assert str(found[0]) == "rank 1 failed: there is no such thing"


def test_rank_0_that_ends_while_it_waits_is_missed() -> None:
    """Its heartbeats are read by ranks that have come; the launcher keeps the store."""
    store, met = dist.HashStore(), list[RendezvousResult]()
    # It ends with a time-out, without a heartbeat after it.
    waiting = threading.Thread(target=lambda: met.append(join_ranks(store, 1, 3, 0, 60.0)))
    waiting.start()
    with pytest.raises(RankFailureError):
        join_ranks(store, 0, 3, 0, 1.0)
    waiting.join(30)
    store.delete_key(f"{met[0].name}/lost")
    losses: list[RankFailureError] = []
    fellows = HeartbeatMonitor(
        PrefixStore(met[0].name, store), 1, 3, losses.append, "torchrun", max_silence_s=0.5
    )
    fellows.start()
    assert str(fellows.wait_for_peer_failure(30.0)) == "rank 0 was lost: no heartbeat was received for 0.5 s"
    fellows.close()


def test_ranks_that_were_told_other_numbers_of_ranks_say_so_at_once() -> None:
    store, found = dist.HashStore(), dict[int, str]()

    def come(rank: int, size: int) -> None:
        with pytest.raises(ConfigError) as told:
            join_ranks(store, rank, size, 0, 60.0)
        found[rank] = str(told.value)

    threads = [threading.Thread(target=come, args=given) for given in ((0, 2), (1, 3))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    says = "WORLD_SIZE is 3 on rank 1, but 2 on rank 0: start all ranks with the same WORLD_SIZE"
    assert found == {0: says, 1: says}


def test_without_rank_0_nobody_begins() -> None:
    store = dist.HashStore()
    assert isinstance(attempt(store, [0, 0])[0], RendezvousResult)
    found = attempt(store, [1, 1], without=0, timeout_s=0.3)
    assert str(found[1]).startswith("rank 0 did not join within 0.3 s")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"WORLD_SIZE": "٢"},
            r"^the environment variable WORLD_SIZE is '٢': set it to a number, or unset it$",
        ),
        (
            {"WORLD_SIZE": "9" * 30},
            r"^the environment variable WORLD_SIZE is '999.*: set it to a number, or unset it$",
        ),
        ({"WORLD_SIZE": ""}, r"^the environment variable WORLD_SIZE is '': set it to a number, or unset it$"),
        ({"MASTER_PORT": "abc"}, r"^the environment variable MASTER_PORT is 'abc': set it to a number"),
        (
            {"MASTER_PORT": "99999"},
            r"^MASTER_PORT is 99999, but must be from 1 to 65535: set it to a free port$",
        ),
        ({"RANK": "2"}, r"^RANK is 2, but WORLD_SIZE is 2: number the ranks from 0 to 1$"),
    ],
)
def test_variables_that_are_no_numbers_of_ranks_or_ports(changed: dict[str, str], says: str) -> None:
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    assert launch_info_from_env(given) == LaunchInfo(1, 2)
    with pytest.raises(ConfigError, match=says):
        launch_info_from_env({**given, **changed})


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="reads the names of threads on Linux")
def test_ranks_that_leave_end_the_threads_of_their_groups() -> None:
    def threads() -> int:
        names = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
        return sum("gloo" in name for name in names)

    # Those of earlier tests end when their groups are collected.
    gc.collect()
    before = threads()
    counts: list[int] = []

    def work(ranks: DistributedContext) -> DistributedContext:
        ranks.control.all_reduce(torch.zeros(1), "control")
        ranks.rows.all_reduce(torch.zeros(1), "rows")
        # As a pipeline does when it has ended, however well.
        ranks.rows.abort(ChannelClosedError("no more rows are fetched"))
        counts.append(threads())
        return ranks

    left = results_of(2, work)
    assert max(counts) > before
    # The ranks themselves are still there, as they are when a process ends.
    assert len(left) == 2
    assert threads() <= before
