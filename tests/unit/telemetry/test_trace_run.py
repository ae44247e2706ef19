"""Traces of whole runs in this process: how they end, and what they then say."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import random_graph
from hyrt_devices.null import NullDevice
from hyrt_devices.opencl import OpenclDevice
from hyrt_perfmodel.policy import Decision
from trace_checks import Trace

from hyrt.config import build_config
from hyrt.errors import ConfigError, DeviceOutOfMemoryError, DivergenceError, StageError
from hyrt.telemetry.events import AssignmentChanged, CheckpointWritten, Event, Notice, RunEnded, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.train import Training

STAGES = ["sample", "load", "transfer", "propagate", "synchronize"]
STEPS = 10


def train(
    folder: Path, *, trace: bool = True, should_stop: Callable[[], bool] | None = None, **sections: Any
) -> list[Event]:
    """Train ten steps, 4 an epoch at most; returns the events."""
    graph = random_graph()
    targets = len(graph.split("train"))
    settings: dict[str, Any] = {
        "data": {"batch_size": -(-targets // 5)},
        "train": {"epochs": 2},
        "sampler": {"fanout": [3, 3]},
        "model": {"hidden": 8},
        "balance": {"predict": False, "policy": "static"},
    }
    for section, values in sections.items():
        settings[section] = {**settings.get(section, {}), **values} if isinstance(values, dict) else values
    settings["runtime"] = {
        "trace": trace,
        "sample_threads": 2,
        "load_threads": 2,
        **settings.get("runtime", {}),
    }
    folder.mkdir(exist_ok=True)
    (folder / "checkpoints").mkdir()
    events: list[Event] = []
    Training(
        build_run(
            build_config(settings),
            graph,
            emit=events.append,
            checkpoints=folder / "checkpoints",
            should_stop=should_stop or (lambda: False),
        )
    ).run()
    return events


def read(folder: Path) -> Trace:
    trace = Trace.read(folder / "trace.json.gz")
    trace.assert_is_whole()
    return trace


def notices(events: list[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in events if isinstance(event, Notice)]


def test_off_by_default(tmp_path: Path) -> None:
    events = train(tmp_path / "run", trace=False)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]
    assert not notices(events)


def test_a_trace_needs_a_folder() -> None:
    graph = random_graph()
    with pytest.raises(ConfigError, match=r"runtime\.trace needs a folder"):
        Training(build_run(build_config({"runtime": {"trace": True}}), graph))


def test_it_changes_no_result(tmp_path: Path) -> None:
    def losses(events: list[Event]) -> list[float]:
        return [loss for event in events if isinstance(event, StepMetrics) for loss in event.losses]

    traced = losses(train(tmp_path / "traced"))
    assert len(traced) == STEPS
    assert traced == losses(train(tmp_path / "plain", trace=False))


@pytest.mark.parametrize("pipelined", [True, False])
def test_the_way_of_each_mini_batch(tmp_path: Path, pipelined: bool) -> None:
    train(tmp_path / "run", runtime={"pipelined": pipelined})
    ways = read(tmp_path / "run").ways()
    assert [[event["name"] for event in way] for way in ways] == [STAGES] * STEPS
    assert [way[0]["args"]["step"] for way in ways] == list(range(STEPS))


class Mover:
    """A policy that moves one target to and fro."""

    name = "mover"

    def decide(self, history: Any, assignment: Any, limits: Any) -> Any:
        a, b = assignment.split
        to = 1 if len(history) % 2 else -1
        return Decision(
            assignment=replace(assignment, split=(a - to, b + to)),
            reason=f"move {len(history)}",
            expected_s=None,
        )


def test_split_counters_follow_what_is_decided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.training.open_run.configured_policy", lambda config, **_: Mover())
    events = train(tmp_path / "run", devices=["null:0", "null:1"], train={"epochs": 6})
    trace = read(tmp_path / "run")
    decided = [event for event in events if isinstance(event, AssignmentChanged)]
    assert len(decided) > 3
    marks = [event["name"] for event in trace.events if event["ph"] == "i"]
    assert marks[: len(decided)] == [event.reason for event in decided]
    sampled = trace.of("hyrt.sample", "sample")
    groups = [event for event in events if isinstance(event, StepMetrics)]
    assert [value for _, value in trace.counter("memory")] == [group.memory_bytes for group in groups]
    for group in groups:
        start = min(e["ts"] for e in sampled if e["args"]["step"] == group.step - 1)
        for trainer, units in group.split.items():
            assert [value for ts, value in trace.counter(f"split {trainer}") if ts <= start][-1] == units


def test_shares_that_are_done_again_have_ways_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transfer = NullDevice.transfer

    def short(self: NullDevice, batch: Any) -> Any:
        if self.info.index == 1 and len(batch.targets) > 4:
            raise DeviceOutOfMemoryError("full")
        return transfer(self, batch)

    monkeypatch.setattr(NullDevice, "transfer", short)
    train(tmp_path / "run", devices=["null:0", "null:1"])
    trace = read(tmp_path / "run")
    again = [way for way in trace.ways() if way[0]["args"]["share"] > 1]
    assert again
    for way in again:
        # What did not fit again was not propagated.
        fits = way[0]["args"]["units"] <= 4 or way[0]["args"]["trainer"] == "null:0"
        assert [event["name"] for event in way] == (STAGES if fits else STAGES[:3])
        assert len({event["args"]["units"] for event in way if event["name"] != "synchronize"}) == 1
        # Its second transfer is the trainer's own, between two steps.
        assert trace.threads[way[2]["pid"], way[2]["tid"]].startswith("hyrt.propagate.")
    # What did not fail of the step that was cut anew is all of it.
    first = [way[0]["args"] for way in trace.ways() if way[0]["args"]["step"] == again[0][0]["args"]["step"]]
    done = [share["units"] for share in first if share["trainer"] == "null:0" or share["units"] <= 4]
    assert sum(done) == sum(share["units"] for share in first if share["share"] < 2)


def test_the_cpu_trainers_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shared operator is a slice of every thread that worked at it, within the step's `propagate`."""
    monkeypatch.setattr("hyrt.nn.operators.linear.GRAIN", 2)
    monkeypatch.setattr("hyrt.nn.operators.linear._NUMBERS", 2)
    monkeypatch.setattr("hyrt.nn.operators.aggregate.GRAIN", 2)
    # Else short operators are seen to be faster without the others, and are no slices then.
    monkeypatch.setattr("hyrt.runtime.workers._LONG_S", 0.0)
    train(tmp_path / "run", devices=["cpu:0"], runtime={"train_threads": 3})
    trace = read(tmp_path / "run")
    steps = {e["args"]["step"]: e for e in trace.of("hyrt.propagate.cpu:0", "propagate")}
    assert list(steps) == list(range(STEPS))
    seen, calls = set(), []
    for thread in ("hyrt.propagate.cpu:0", "hyrt.cpu:0.train.1", "hyrt.cpu:0.train.2"):
        slices = [e for e in trace.of(thread) if e["name"] not in ("propagate", "update")]
        for event in slices:
            step = steps[event["args"]["step"]]
            assert step["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= step["ts"] + step["dur"]
            assert event["args"]["trainer"] == "cpu:0"
        seen |= {event["name"] for event in slices}
        calls.append(sum(e["name"] == "linear_forward" and e["args"]["step"] == 5 for e in slices))
    assert {"linear_forward", "linear_backward", "Aggregate.backward"} <= seen
    # However many chunks there are, a thread has one slice of each call: two layers.
    assert max(calls) <= 2
    assert 2 <= sum(calls) <= 6


@pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")
def test_device_queues_run_inside_their_stages(tmp_path: Path) -> None:
    train(tmp_path / "run", devices=["opencl:0"], sampler={"on_device": True})
    trace = read(tmp_path / "run")
    assert set(trace.processes.values()) == {"hyrt", "opencl:0 queues"}
    for queue, kernel, thread in (
        ("compute", "cross_entropy", "hyrt.propagate.opencl:0"),
        ("sample", "pick", "hyrt.sample"),
    ):
        ran, host = trace.of(queue, kernel), trace.of(thread, thread.split(".")[1])
        # Two layers are sampled.
        assert (
            len(ran) == len(host) * (2 if kernel == "pick" else 1) == STEPS * (2 if kernel == "pick" else 1)
        )
        for at, event in enumerate(ran):
            around = host[at * len(host) // len(ran)]
            # It had ended when it was handed over; its start is late at most by the quickest hand-over.
            assert around["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= around["ts"] + around["dur"]


def test_a_stage_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    propagate, calls = NullDevice.propagate, iter(range(100))

    def failing(self: NullDevice, staged: Any) -> Any:
        if next(calls) == 6:
            raise ValueError("broken → here")
        return propagate(self, staged)

    monkeypatch.setattr(NullDevice, "propagate", failing)
    with pytest.raises(StageError, match="error in propagate on null:0 at step 6") as raised:
        train(tmp_path / "run", devices=["null:0"])
    trace = read(tmp_path / "run")
    last = trace.of("hyrt.propagate.null:0")[-1]
    assert (last["name"], last["args"]["step"]) == ("propagate", 6)
    assert str(raised.value) in [event["name"] for event in trace.events if event["ph"] == "i"]
    # The mini-batch that failed can be followed up to there.
    assert [e["name"] for w in trace.ways() if w[0]["args"]["step"] == 6 for e in w] == STAGES[:-1]


def test_a_run_that_diverges(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError):
        train(tmp_path / "run", train={"optimizer": "SGD", "lr": 1e30, "epochs": 5})
    assert read(tmp_path / "run").of("hyrt.main", "synchronize")


def test_a_run_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        train(tmp_path / "run", devices=["cpu:0"], sampler={"on_device": True})
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_an_interrupted_run(tmp_path: Path) -> None:
    asked = iter(range(100))
    events = train(tmp_path / "run", should_stop=lambda: next(asked) == 7, evaluate={"every": 0})
    assert next(e.status for e in events if isinstance(e, RunEnded)) == "interrupted"
    trace = read(tmp_path / "run")
    assert [e["args"]["step"] for e in trace.of("hyrt.main", "synchronize")] == list(range(7))
    # What was in flight is there too.
    assert trace.of("hyrt.sample", "sample")[-1]["args"]["step"] >= 7


def full(folder: Path) -> Path:
    """Let the file that the trace is written to first stand for a device without room."""
    folder.mkdir()
    (folder / f".trace.json.gz.{os.getpid()}.partial").symlink_to("/dev/full")
    return folder


def test_a_full_disk(tmp_path: Path) -> None:
    events = train(full(tmp_path / "run"))
    ((kind, text),) = notices(events)
    assert kind == "warning"
    assert text == (
        f"the trace could not be written to {tmp_path}/run/trace.json.gz (No space left on device); "
        "the run itself is not affected"
    )
    assert next(e.status for e in events if isinstance(e, RunEnded)) == "finished"
    assert any(isinstance(event, CheckpointWritten) for event in events)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoints"]


def test_a_full_disk_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(DivergenceError) as raised:
        train(full(tmp_path / "run"), train={"optimizer": "SGD", "lr": 1e30, "epochs": 5})
    (note,) = raised.value.__notes__
    assert "the trace could not be written to" in note


def test_long_runs_keep_the_newest(tmp_path: Path) -> None:
    events = train(
        tmp_path / "run", runtime={"trace_events": 7}, evaluate={"every": 0}, checkpoint={"every_epochs": 0}
    )
    trace = read(tmp_path / "run")
    lost = trace.about["left_out"]
    assert trace.about["most_events_a_track"] == 7
    # Ten steps, an evaluation and a checkpoint.
    assert lost["hyrt.main"] == STEPS + 2 - 7
    assert [e["args"]["step"] for e in trace.of("hyrt.transfer.cpu:0")] == [3, 4, 5, 6, 7, 8, 9]
    assert all(len(trace.of(name)) <= 7 for name in trace.threads.values())
    assert all(len(trace.counter(name)) <= 7 for name in {e["name"] for e in trace.events if e["ph"] == "C"})
    marks = {(trace.threads[e["pid"], e["tid"]], e["name"]) for e in trace.events if e["ph"] == "i"}
    assert ("hyrt.main", "5 earlier events left out") in marks
    ((kind, text),) = notices(events)
    assert kind == "info"
    assert f"{sum(lost.values())} early events were dropped" in text
    # What is whole can still be followed.
    assert [way[0]["args"]["step"] for way in trace.ways() if way[0]["name"] == "sample" and len(way) == 5][
        -1
    ] == 9
