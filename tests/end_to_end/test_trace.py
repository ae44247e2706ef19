"""The trace of a run, read as a viewer reads it and compared with the run's records."""

from __future__ import annotations

import signal
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from end_to_end.terminal import begin, hyrt, last_step, records, summary, wait_until
from trace_checks import Trace

STAGES = ["sample", "load", "transfer", "propagate", "synchronize"]
# 10 steps an epoch.
SMALL = ["--data", "synthetic:tiny", "data.batch_size=120", "train.epochs=2", "balance.predict=false"]
SMALL += ["runtime.sample_threads=2", "runtime.load_threads=2"]


def thread_of(stage: str, trainer: str) -> str:
    if stage == "synchronize":
        return "hyrt.main"
    return f"hyrt.{stage}" if stage in ("sample", "load") else f"hyrt.{stage}.{trainer}"


def steps_of(run: Path) -> dict[int, dict[str, int]]:
    """Of each group of steps in the records its last step and split."""
    return {line["step"] - 1: line["split"] for line in records(run) if line["event"] == "steps"}


@pytest.fixture(scope="module")
def two_trainers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    words = ["--devices", "cpu:0,null:0", "split=[80,40]", "--trace", "--name", "run"]
    shown = hyrt("run", *SMALL, *words, cwd=folder).stdout
    assert "trace written to runs/run/trace.json.gz" in shown
    return folder / "runs" / "run"


def test_every_mini_batch_can_be_followed(two_trainers: Path) -> None:
    trace = Trace.read(two_trainers / "trace.json.gz")
    trace.assert_is_whole()
    num_steps = summary(two_trainers)["steps"]
    assert num_steps == 20
    followed = set()
    for way in trace.ways():
        assert [e["name"] for e in way] == STAGES
        step, trainer = way[0]["args"]["step"], way[0]["args"]["trainer"]
        followed.add((step, trainer))
        assert {e["args"]["step"] for e in way} == {step}
        for before, after in pairwise(way):
            assert before["ts"] + before["dur"] <= after["ts"]
        for event in way:
            thread = trace.threads[event["pid"], event["tid"]]
            assert thread == thread_of(event["name"], trainer)
    assert followed == {(step, trainer) for step in range(num_steps) for trainer in ("cpu:0", "null:0")}
    assert len(trace.ways()) == len(followed)


def test_each_thread_has_its_track(two_trainers: Path) -> None:
    trace = Trace.read(two_trainers / "trace.json.gz")
    assert set(trace.processes.values()) == {"hyrt"}
    names = list(trace.threads.values())
    assert len(names) == len(set(names))
    assert set(names) - {"hyrt.sample.1", "hyrt.load.1"} == {
        "hyrt.main", "hyrt.sample", "hyrt.load",
        *(f"hyrt.transfer.{trainer}" for trainer in ("cpu:0", "null:0")),
        *(f"hyrt.propagate.{trainer}" for trainer in ("cpu:0", "null:0")),
    }  # fmt: skip
    # The master weights go to each trainer after each step.
    for trainer in ("cpu:0", "null:0"):
        updates = trace.of(f"hyrt.propagate.{trainer}", "update")
        assert [e["args"]["step"] for e in updates] == list(range(20))
    assert [e["args"]["step"] for e in trace.of("hyrt.main", "evaluate")] == [10, 20]
    assert [e["args"]["step"] for e in trace.of("hyrt.main", "checkpoint")] == [10, 20]


def test_stage_times_are_those_of_the_summary(two_trainers: Path) -> None:
    trace = Trace.read(two_trainers / "trace.json.gz")
    told = summary(two_trainers)["stages_s"]
    for stage in ("sample", "load"):
        total = sum(e["dur"] for e in trace.of(f"hyrt.{stage}", stage))
        # The slices are around what the summary adds up.
        assert told[stage] <= total / 20 * 1e-9 <= told[stage] + 2e-3
    slowest: dict[int, int] = defaultdict(int)
    for trainer in ("cpu:0", "null:0"):
        for event in trace.of(f"hyrt.propagate.{trainer}", "propagate"):
            slowest[event["args"]["step"]] = max(slowest[event["args"]["step"]], event["dur"])
    assert told["propagate"] <= sum(slowest.values()) / 20 * 1e-9 <= told["propagate"] + 2e-3


def test_counters_are_those_of_the_metrics(two_trainers: Path) -> None:
    trace = Trace.read(two_trainers / "trace.json.gz")
    lines = [line for line in records(two_trainers) if line["event"] == "steps"]
    assert [value for _, value in trace.counter("memory")] == [line["memory_bytes"] for line in lines]
    for step, split in steps_of(two_trainers).items():
        start = min(e["ts"] for e in trace.of("hyrt.sample", "sample") if e["args"]["step"] == step)
        for trainer, units in split.items():
            assert [value for ts, value in trace.counter(f"split {trainer}") if ts <= start][-1] == units
    for stage in ("sample", "load", "train"):
        assert trace.counter(f"threads {stage}")[0][1] == lines[0]["threads"][stage]
    # A channel gains or loses one item at a time, and all that came in went out.
    for channel in (
        "credits",
        "sampled",
        *(f"{n}.{name}" for n in ("loaded", "staged", "done", "next") for name in ("cpu:0", "null:0")),
    ):
        values = [value for _, value in trace.counter(f"channel {channel}")]
        assert values
        assert all(abs(after - before) == 1 for before, after in pairwise([0, *values]))
        if channel != "credits":
            assert values[-1] == 0
            items = 40 if channel == "sampled" else 20
            assert len(values) == 2 * items, channel


def test_interrupted_and_resumed(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = begin("run", *SMALL, "train.epochs=2000", "--trace", "--name", "run", cwd=tmp_path)
    wait_until(lambda: last_step(run) > 0, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, ""), output
    first = Trace.read(run / "trace.json.gz")
    first.assert_is_whole()
    done = last_step(run)
    assert [e["args"]["step"] for e in first.of("hyrt.main", "synchronize")] == list(range(done))
    epochs = done // 10 + 1
    before = (run / "trace.json.gz").read_bytes()
    hyrt("run", "--resume", "runs/run", f"train.epochs={epochs}", cwd=tmp_path)
    # The run was started with it: the part that follows has a file of its own.
    assert (run / "trace.json.gz").read_bytes() == before
    second = Trace.read(run / f"trace-from-{done}.json.gz")
    second.assert_is_whole()
    assert second.about["first_step"] == done
    steps = [e["args"]["step"] for e in second.of("hyrt.main", "synchronize")]
    assert steps == list(range(done, epochs * 10))
