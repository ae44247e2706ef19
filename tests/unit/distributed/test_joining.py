"""Ranks that never come, or are lost while the others join, end these in time and with a name."""

from __future__ import annotations

import socket
import time

import pytest
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from hyrt.distributed.joined_ranks import JoinedRanks, joined_by_launcher
from hyrt.errors import RankLost


def test_a_rank_that_is_lost_while_others_join_is_named() -> None:
    store = dist.HashStore()
    # It lived once, and made no connection.
    store.set("beat/1", "1")
    lost: list[RankLost] = []
    with pytest.raises(RankLost, match=r"rank 1 was lost: nothing was heard of it for 0\.5 s"):
        JoinedRanks(store, 0, 2, timeout_s=1.2, silent_s=0.5, on_loss=lost.append)
    assert len(lost) == 1


def test_a_rank_that_never_came_is_not_lost_before_the_time_is_over() -> None:
    lost: list[RankLost] = []
    began = time.monotonic()
    # With a server: in it, whoever waits for a key keeps the connection.
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
    with pytest.raises(RankLost, match="could not be joined within 1 s"):
        JoinedRanks(PrefixStore("hyrt", client), 0, 2, timeout_s=1, silent_s=0.1, on_loss=lost.append)
    assert time.monotonic() - began > 0.9
    assert lost == []


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
            pytest.raises(RankLost, match=f"{port}, which rank 0 keeps, could not be reached") as told,
            joined_by_launcher(timeout_s=1),
        ):
            pass
        assert 0.9 < time.monotonic() - began < 2
        assert "nothing answers" in str(told.value)
