"""The emulated cluster: rates, counted bytes, memory of its own, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import cluster
import pytest

SENT = 1_000_000
# Rank 1 sends rank 0 a million bytes, and each leaves its rank in a file of a shared name.
WORK = f"""
import os, pathlib, socket, sys, time
rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
pathlib.Path("/dev/shm/whose").write_text(str(rank))
if rank == 0:
    with socket.create_server(address) as server:
        link, _ = server.accept()
        received = 0
        while data := link.recv(1 << 16):
            received += len(data)
    print("received", received, "of", os.environ["WORLD_SIZE"])
else:
    for attempt in range(200):
        try:
            link = socket.create_connection(address, 0.5)
            break
        except OSError:
            time.sleep(0.02)
    link.sendall(bytes({SENT}))
    link.close()
print("whose", pathlib.Path("/dev/shm/whose").read_text())
"""


@cache
def reason() -> str | None:
    return cluster.unavailable_reason()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    if reason() is not None:
        pytest.skip(f"no emulated cluster: {reason()}")
    before = leftovers()
    yield
    assert leftovers() == before


def leftovers() -> set[str]:
    """Namespaces of clusters that are over; others may be at work beside this test."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = {line.split()[0] for line in listed.stdout.splitlines()}
    makers = {name: name.split("-")[1] for name in names if name.startswith("hyrt-")}
    return {name for name, maker in makers.items() if int(maker) == os.getpid() or not is_running(int(maker))}


def is_running(process: int) -> bool:
    """Whether it is there and not only waits to be reaped."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_bytes_are_counted_at_the_rate_of_the_links(tmp_path: Path) -> None:
    with cluster.EmulatedCluster(2, 16e6) as nodes:
        first, second = nodes.run([sys.executable, "-c", WORK], logs=tmp_path, limit_s=60)
    assert (first.code, second.code) == (0, 0)
    assert (tmp_path / "rank-0.log").read_text() == f"received {SENT} of 2\nwhose 0\n"
    assert (tmp_path / "rank-1.log").read_text() == "whose 1\n"
    # 1460 bytes of a packet's 1514 are its own; what one sends the other receives.
    assert SENT < second.sent_bytes < 1.06 * SENT
    assert second.sent_bytes == pytest.approx(first.received_bytes, rel=0.01)
    assert first.sent_bytes < 0.1 * SENT
    # 2 MB a second, but for the first burst.
    assert max(first.ended_s, second.ended_s) > 0.8 * (SENT - (128 << 10)) / 2e6


def test_one_that_fails_ends_the_others_after_their_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_END_S", 0.5)
    work = 'test $RANK = 1 && exit 3; trap "" TERM; sleep 600 & wait'
    with cluster.EmulatedCluster(2) as nodes:
        started = time.perf_counter()
        ends = nodes.run(["sh", "-c", work], logs=tmp_path, grace_s=0.2)
        took_s = time.perf_counter() - started
    assert ends[1].code == 3
    assert ends[0].code == -signal.SIGKILL
    assert took_s < 20


def test_a_node_that_is_cut_off_is_heard_no_more(tmp_path: Path) -> None:
    reach = "ip route get $MASTER_ADDR"
    with cluster.EmulatedCluster(2) as nodes:
        assert [end.code for end in nodes.run(["sh", "-c", reach], logs=tmp_path, limit_s=30)] == [0, 0]
        nodes.cut_off(1)
        ends = nodes.run(["sh", "-c", reach], logs=tmp_path, limit_s=30, grace_s=1)
    assert ends[0].code == 0
    assert ends[1].code != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_of_it(number: signal.Signals, tmp_path: Path) -> None:
    # The child is in a session of its own, which no signal to the node's process reaches.
    command = ["sh", "-c", f"setsid sleep 600 & echo $! > {tmp_path}/$RANK; wait"]
    tool = [sys.executable, str(cluster.__file__), "--nodes", "2", "--", *command]
    with subprocess.Popen(tool, stderr=subprocess.PIPE) as running:
        children = [tmp_path / rank for rank in "01"]
        until = time.perf_counter() + 60
        while not all(child.exists() and child.read_text() for child in children):
            assert time.perf_counter() < until
            time.sleep(0.02)
        running.send_signal(number)
        assert running.wait(60) == 128 + number
    assert not [child for child in children if is_running(int(child.read_text()))]


def test_the_command_prints_how_each_rank_ended() -> None:
    tool = [sys.executable, str(cluster.__file__), "--nodes", "2", "--rate", "1gbit", "--both", "--json"]
    done = subprocess.run(
        [*tool, "--", "sh", "-c", "exit $((RANK * 5))"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(end["rank"], end["code"]) for end in found] == [(0, 0), (1, 5)]


def test_a_cluster_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_INTERFACE", "a-name-that-is-too-long")
    with pytest.raises(cluster.ClusterError, match="a-name-that-is-too-long"), cluster.EmulatedCluster(1):
        pytest.fail("it was made")


def test_rates() -> None:
    assert cluster.rate("200mbit") == 200e6
    assert cluster.rate("2.5gbit") == 2.5e9
    for text in ("200", "fast", "-1gbit"):
        with pytest.raises(ValueError, match="is not a rate"):
            cluster.rate(text)
