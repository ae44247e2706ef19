"""Several ranks on this machine, as a launcher starts them: with variables in their environment."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import socket
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from end_to_end.terminal import BegunRun, begin, hyrt, last_step, records, summary
from hyrt_perfmodel.network import find_network

from hyrt.cli.rank_session import RankSession
from hyrt.config import build_config
from hyrt.distributed.launch import LaunchInfo
from hyrt.errors import DataError
from hyrt.runtime.hardware import available_cores

SMALL = ["model.dropout=0.4", "data.batch_size=64", "runtime.stall_timeout_s=30"]


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parts")
    hyrt(
        *("partition", "--data", "synthetic:tiny", "--parts", "2", "--method", "random", "-o", "parts"),
        cwd=folder,
    )
    return folder / "parts"


def start(
    folder: Path,
    *words: str | Path,
    differing: str = "",
    command: str = "run",
    elsewhere: Path | None = None,
) -> list[BegunRun]:
    """Two ranks; `differing` is a setting of the second alone, and `elsewhere` the folder that it runs in."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    there = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [
        begin(
            command,
            *words,
            *([differing] if differing and rank else []),
            cwd=elsewhere if elsewhere and rank else folder,
            RANK=str(rank),
            **there,
        )
        for rank in range(2)
    ]


def ends(ranks: list[BegunRun]) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each rank."""
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            if rank.poll() is None:
                rank.kill()
    return [(rank.poll() or 0, *each) for rank, each in zip(ranks, said, strict=True)]


def losses(run: Path) -> list[float]:
    found = [loss for record in records(run) if record["event"] == "steps" for loss in record["losses"]]
    assert found
    return found


@pytest.mark.parametrize(
    ("topology", "words"),
    [("split", SMALL), ("replicated", ["--full-graph", "distributed.algorithm=1d"])],
    ids=["split, mini-batches", "replicated, full graph"],
)
def test_self_loops_of_the_data_change_nothing_for_gcn(
    tmp_path: Path, topology: str, words: list[str]
) -> None:
    hyrt("data", "convert", "synthetic:tiny", "bare.npz", cwd=tmp_path)
    with np.load(tmp_path / "bare.npz") as arrays:
        given = dict(arrays)
    num = len(given["labels"])
    rows = np.concatenate([np.repeat(np.arange(num), np.diff(given["indptr"])), np.arange(0, num, 2)])
    columns = np.concatenate([given["indices"], np.arange(0, num, 2)])
    given["indices"] = columns[np.lexsort((columns, rows))].astype(given["indices"].dtype)
    given["indptr"] = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num))])
    np.savez(tmp_path / "loops.npz", **given)
    found = {}
    for name in ("bare", "loops"):
        cut = ("--parts", "2", "--method", "random", "--topology", topology, "-o", f"{name}-parts")
        hyrt("partition", "--data", f"{name}.npz", *cut, cwd=tmp_path)
        named = ("--data", f"{name}-parts", "--model", "gcn", "--name", name, "train.epochs=2")
        (code, output, errors), _ = ends(start(tmp_path, *named, *words))
        assert code == 0, errors
        assert (f"{(num + 1) // 2:,} self loops removed, because gcn" in output) == (name == "loops")
        hyrt("infer", f"runs/{name}", "--data", f"{name}.npz", "-o", f"{name}.npy", cwd=tmp_path)
        found[name] = losses(tmp_path / "runs" / name), np.load(tmp_path / f"{name}.npy").tolist()
    assert found["bare"] == found["loops"]


def test_two_ranks_train_as_one_process_and_one_process_resumes(parts: Path, tmp_path: Path) -> None:
    words = ["--data", str(parts), *SMALL, "train.epochs=2"]
    (code, output, errors), (other_code, other_output, other_errors) = ends(
        start(tmp_path, *words, "--name", "two", "--trace")
    )
    assert (code, other_code) == (0, 0), (errors, other_errors)
    assert "2 ranks (home) sent" in output
    # They share the cores, without a launcher that says so.
    assert f"train {max(1, available_cores() // 2)}" in output
    assert not other_output
    assert not other_errors
    told = summary(tmp_path / "runs" / "two")["distributed"]
    assert len({each["pid"] for each in told["by_rank"]}) == 2
    # On one machine, rows are read where they lie.
    assert "ranks on the same machine share their feature rows (0 and 1)" in output
    assert told["bytes_sent"]["rows"] == 0 < told["bytes_sent"]["gradients"]
    assert "Their steps are bounded by " in (tmp_path / "runs" / "two" / "report.html").read_text()
    traced = json.loads(gzip.decompress((tmp_path / "runs" / "two" / "trace.json.gz").read_bytes()))
    events = traced["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {1: "rank 0", 1001: "rank 1"}
    ended = {
        (event["pid"], event["args"]["step"]): event["ts"] + event["dur"]
        for event in events
        if event["name"] == "synchronize"
    }
    off = max(rank["clock_uncertainty_us"] for rank in traced["otherData"]["ranks"])
    starts = {
        (event["pid"], event["args"]["step"]): event["ts"]
        for event in events
        if event["name"] == "synchronize"
    }
    assert len(starts) == 2 * summary(tmp_path / "runs" / "two")["steps"]
    # No rank has the sums of a step before the other has come to add its own.
    for (pid, step), end in ended.items():
        assert end + 2 * off >= starts[1002 - pid, step]
    assert min(event["ts"] for event in events if "ts" in event) >= 0
    hyrt("run", *words, "--name", "one", cwd=tmp_path)
    two, one = tmp_path / "runs" / "two", tmp_path / "runs" / "one"
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    for run in (one, two):
        hyrt("run", "--resume", run, "train.epochs=3", cwd=tmp_path)
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert summary(two)["steps"] == summary(one)["steps"]


def test_a_killed_rank_ends_the_other_with_its_name(parts: Path, tmp_path: Path) -> None:
    ranks = start(tmp_path, "--data", str(parts), *SMALL, "train.epochs=2000", "--name", "run")
    end = time.monotonic() + 90
    while last_step(tmp_path / "runs" / "run") == 0 and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(ranks[1].pid, signal.SIGKILL)
    killed = time.monotonic()
    (code, _, errors), _ = ends(ranks)
    assert time.monotonic() - killed < 10
    assert code == 1
    assert "rank 0: rank 1 was lost" in errors
    kept, lost = summary(tmp_path / "runs" / "run")["distributed"]["by_rank"]
    assert kept["devices"] == ["cpu:0"]
    assert lost is None
    assert "lost, or no statistics received" in (tmp_path / "runs" / "run" / "report.html").read_text()


def test_where_rank_0_is_killed_another_writes_the_records(parts: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    words = ["--data", str(parts), *SMALL, "train.epochs=2000", "--name", "run", "--trace"]
    ranks = start(tmp_path, *words, "checkpoint.every_steps=5")
    end = time.monotonic() + 90
    while not list(run.glob("checkpoints/step-*")) and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(ranks[0].pid, signal.SIGKILL)
    killed = time.monotonic()
    _, (code, _, errors) = ends(ranks)
    assert time.monotonic() - killed < 10
    assert code == 1
    assert "error: rank 1: rank 0 was lost" in errors
    assert f"Resume with: hyrt run --resume {run}" in errors
    told = summary(run)
    assert told["status"] == "failed"
    assert "rank 0 was lost" in told["error"]
    lost, left = told["distributed"]["by_rank"]
    assert lost is None
    assert left["pid"] == ranks[1].pid
    assert told["distributed"]["bytes_sent_by_rank"][0]["rows"] == 0
    assert "lost, or no statistics received" in (run / "report.html").read_text()
    traced = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))
    assert [rank["rank"] for rank in traced["otherData"]["ranks"]] == [1]
    assert {event["pid"] for event in traced["traceEvents"]} == {1001}
    # Nobody holds the folder any more.
    assert not (run / ".lock").read_bytes()


def test_a_rank_that_fails_is_in_the_records_of_the_run(
    parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYRT_FAULT", "load:rank1.*:20:raise")
    words = ["--data", str(parts), *SMALL, "train.epochs=3", "--name", "run", "--trace"]
    words += ["distributed.shared_memory_features=false"]
    for code, _, errors in ends(start(tmp_path, *words)):
        assert code == 1
        assert "injected in load" in errors
    run = tmp_path / "runs" / "run"
    told = summary(run)
    assert told["status"] == "failed"
    first, second = told["distributed"]["by_rank"]
    assert first["pid"] != second["pid"]
    assert second["stage_s"]["load"] > 0
    assert second["bytes_sent"]["rows"] == told["distributed"]["bytes_sent_by_rank"][1]["rows"] > 0
    traced = json.loads(gzip.decompress((run / "trace.json.gz").read_bytes()))
    assert [rank["rank"] for rank in traced["otherData"]["ranks"]] == [0, 1]
    marks = {(event["pid"], event["name"]) for event in traced["traceEvents"] if event["ph"] == "i"}
    assert any(pid > 1000 and "injected in load" in name for pid, name in marks)
    last = dict.fromkeys((1, 1001), 0.0)
    for event in traced["traceEvents"]:
        if event["name"] == "load":
            last[event["pid"]] = max(last[event["pid"]], event["ts"])
    # On one clock: neither loads on for long after the other.
    assert abs(last[1] - last[1001]) < 5e6


def test_ranks_with_other_settings_do_not_begin(parts: Path, tmp_path: Path) -> None:
    words = ["--data", str(parts), *SMALL, "train.epochs=2"]
    for rank, (code, _, errors) in enumerate(ends(start(tmp_path, *words, differing="train.lr=0.5"))):
        assert code == 2
        assert f"error: rank {rank}: train.lr is 0.5 on rank 1" in errors
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nosuchfolder", "nosuchfolder: no such file or folder; use "),
        ("http://a/b", "http://a/b: hyrt cannot read URLs"),
        ("synthetic:tiny", "is not partitioned, but 2 ranks need 2 parts: run hyrt partition"),
        ("file.npz", "is not partitioned, but 2 ranks need 2 parts: run hyrt partition"),
    ],
)
def test_ranks_say_whether_data_is_missing_or_not_in_parts(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.npz").touch()
    config = build_config({"data": {"source": source}})
    session = RankSession(
        config=config,
        launch=LaunchInfo(0, 2),
        signals=cast(Any, None),
        progress=cast(Any, None),
        folder=cast(Any, None),
    )
    with pytest.raises(DataError, match=re.escape(says)):
        session._part()


def test_a_rank_whose_words_are_wrong_ends_all_with_its_reason(parts: Path, tmp_path: Path) -> None:
    # It ends before it joins the others.
    (code, _, errors), (other_code, _, other_errors) = ends(
        start(tmp_path, "--data", str(parts), *SMALL, differing="train.lrr=0.5")
    )
    assert (code, other_code) == (1, 2)
    assert errors.startswith("error: rank 0: rank 1 failed: unknown setting 'train.lrr'")
    assert other_errors.startswith("error: rank 1: unknown setting 'train.lrr'")


def test_a_network_is_measured_for_predictions(tmp_path: Path) -> None:
    (code, output, errors), (other_code, other_output, other_errors) = ends(
        start(tmp_path, "--network", "lan.yaml", "--json", command="calibrate")
    )
    assert (code, other_code) == (0, 0), (errors, other_errors)
    assert not other_output
    found = json.loads(output)
    kept = find_network(str(tmp_path / "lan.yaml"))
    assert (kept.latency_s, kept.gb_s, kept.name) == (found["latency_s"], found["gb_s"], "lan")
    assert "between 2 ranks on one machine" in kept.source
    # Through sockets of one machine: no faster than its memory, no slower than a disk.
    assert 0.01 < kept.gb_s < 100


def test_two_ranks_share_a_full_graph(parts: Path, tmp_path: Path) -> None:
    words = ["--data", str(parts), "--model", "gcn", "--full-graph", "model.dropout=0.4", "train.epochs=3"]
    (code, output, errors), (other_code, _, other_errors) = ends(
        start(tmp_path, *words, "--name", "two", "--trace")
    )
    assert (code, other_code) == (0, 0), (errors, other_errors)
    assert "2 ranks (1d) sent" in output
    told = summary(tmp_path / "runs" / "two")
    assert [each["rows"] for each in told["products"]] == [1000, 1000]
    assert told["distributed"]["bytes_sent"]["rows"] > 0
    traced = json.loads(gzip.decompress((tmp_path / "runs" / "two" / "trace.json.gz").read_bytes()))
    steps = [event["pid"] for event in traced["traceEvents"] if event["name"] == "propagate"]
    assert sorted(steps) == [1] * 3 + [1001] * 3
    hyrt("run", *words, "--name", "one", cwd=tmp_path)
    two, one = tmp_path / "runs" / "two", tmp_path / "runs" / "one"
    assert losses(two) == pytest.approx(losses(one), rel=1e-5)
    resumed = ends(start(tmp_path, "--resume", two, "train.epochs=5"))
    assert [code for code, _, _ in resumed] == [0, 0]
    # What is no warning is said by rank 0 alone.
    assert "continuing after step 3" in resumed[0][1]
    assert resumed[1][1:] == ("", "")
    hyrt("run", "--resume", one, "train.epochs=5", cwd=tmp_path)
    assert losses(two) == pytest.approx(losses(one), rel=1e-4)
    assert len(losses(two)) == 5
    # The folder of the run need be at rank 0 alone.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = ["--resume", "runs/two", "train.epochs=6"]
    told = ends(start(tmp_path, *again, elsewhere=elsewhere, differing="devices=cpu:1"))
    assert [code for code, _, _ in told] == [0, 0], told
    assert len(losses(two)) == 6
