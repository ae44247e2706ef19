"""What is done of a long epoch is kept beside its checkpoint: a run that is killed loses little of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from graphs import random_graph

from hyrt.config import build_config, settings
from hyrt.config.settings import CheckpointConfig
from hyrt.fullgraph.step_checkpoint import StepPosition
from hyrt.nn.torch_threads import torch_threads
from hyrt.runtime.stage_threads import StageThreads
from hyrt.telemetry.events import Event, Notice, StepMetrics
from hyrt.training import run_state as step_checkpoint
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.run_state import RunState, RunStepCheckpointer
from hyrt.training.train import Training

GRAPH = random_graph(150, features=12)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture
def without_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that may be kept is kept at once."""
    monkeypatch.setattr(settings, "_CHECKPOINT_S", 0.0)
    monkeypatch.setattr(settings, "_WRITE_INTERVAL_FACTOR", 0.0)


def training(
    folder: Path, heard: list[Event], should_stop: Callable[[], bool] = lambda: False, **more: Any
) -> Training:
    config = build_config(
        {
            "sampler": {"kind": "full"},
            "model": {"kind": "gcn", "hidden": 9, "dropout": 0.3},
            "fullgraph": {"chunks": 5},
            "train": {"epochs": 2},
            "balance": {"predict": False},
            "runtime": {"train_threads": 1},
            **more,
        }
    )
    checkpoints = folder / "checkpoints"
    return Training(
        build_run(config, GRAPH, emit=heard.append, checkpoints=checkpoints, should_stop=should_stop)
    )


def resumed(folder: Path, heard: list[Event], **more: Any) -> Training:
    found = training(folder, heard, **more)
    found.resume(load_newest_checkpoint(folder / "checkpoints", pytest.fail))
    return found


def losses(heard: list[Event]) -> list[float]:
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


def said(heard: list[Event]) -> str:
    return "\n".join(event.text for event in heard if isinstance(event, Notice))


@pytest.mark.usefixtures("without_delay")
def test_a_run_that_is_killed_in_an_epoch_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in the folder when a step was kept is what a killed process leaves."""
    write, left = step_checkpoint.write_step_checkpoint, []

    def noted(path: Path, *rest: Any) -> None:
        write(path, *rest)
        left.append(tmp_path / f"after {len(left)}")
        shutil.copytree(path.parent, left[-1] / "checkpoints")

    monkeypatch.setattr(step_checkpoint, "write_step_checkpoint", noted)
    heard: list[Event] = []
    result = training(tmp_path / "run", heard).run()
    assert len(losses(heard)) == 2
    assert not list((tmp_path / "run" / "checkpoints").glob("unfinished-*"))
    monkeypatch.setattr(step_checkpoint, "write_step_checkpoint", write)
    for folder in left[1::8]:
        again: list[Event] = []
        other = resumed(folder, again)
        first = other.state.step
        found = other.run()
        assert f"continuing in step {first}, in pass" in said(again)
        assert losses(again) == losses(heard)[first:]
        assert found.metrics == result.metrics
        assert found.summary["trained_s"] > 0


@pytest.mark.usefixtures("without_delay")
@pytest.mark.parametrize("fails", ["no room", "write"])
def test_a_disk_without_room_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    if fails == "no room":
        usage = shutil.disk_usage(tmp_path)._replace(free=1000)
        monkeypatch.setattr(step_checkpoint.shutil, "disk_usage", lambda folder: usage)
    else:

        def full(*given: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(step_checkpoint, "write_step_checkpoint", full)
    heard: list[Event] = []
    assert training(tmp_path, heard).run().status == "finished"
    warned = [line for line in said(heard).splitlines() if "could not be saved" in line]
    assert len(warned) == 1
    assert "A resumed run restarts the step" in warned[0]
    assert ("1000 bytes are free" if fails == "no room" else "No space left on device: free space") in warned[
        0
    ]


def test_a_run_that_is_stopped_says_where_and_goes_on(tmp_path: Path) -> None:
    asked, heard = [], []

    def soon() -> bool:
        asked.append(1)
        return len(asked) > 8

    assert training(tmp_path, heard, soon).run().status == "interrupted"
    assert "stopped in step 0, in pass " in said(heard)
    assert not losses(heard)
    wanted: list[Event] = []
    training(tmp_path / "whole", wanted).run()
    again: list[Event] = []
    resumed(tmp_path, again).run()
    assert losses(again) == losses(wanted)


def test_other_chunks_and_a_damaged_file_begin_the_step_again(tmp_path: Path) -> None:
    for number, more in enumerate(({"fullgraph": {"chunks": 6}}, {})):
        folder, asked = tmp_path / str(number), []
        training(folder, [], lambda asked=asked: bool(asked.append(1)) or len(asked) > 8).run()
        (file,) = (folder / "checkpoints").glob("unfinished-*")
        if not more:
            file.write_bytes(file.read_bytes()[:-400])
        wanted: list[Event] = []
        training(tmp_path / f"whole {number}", wanted, **more).run()
        heard: list[Event] = []
        resumed(folder, heard, **more).run()
        assert losses(heard) == losses(wanted)
        assert ("step 0 is restarted" if more else "Restarting step 0") in said(heard)
        assert ("computed with different intervals" if more else "damaged") in said(heard)


def test_when_a_step_is_kept() -> None:
    usual, never = CheckpointConfig(), CheckpointConfig(every_epochs=0)
    assert not usual.is_due_within(59.0, 0.0)
    assert usual.is_due_within(61.0, 3.0)
    # Writing takes a twentieth of the time at the most.
    assert not usual.is_due_within(61.0, 4.0)
    assert usual.is_due_within(81.0, 4.0)
    assert not never.is_due_within(1e6, 0.0)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.write_s = 0.0
        """How long writing takes."""

    def __call__(self) -> float:
        return self.now

    def written(self, stage: str, step: int, work: Callable[[], None]) -> None:
        self.now += self.write_s
        work()


def keeper_of(folder: Path, clock: Clock, warned: list[str], checkpoint: str = "a") -> RunStepCheckpointer:
    """One of a run that is in step 3, which began from a checkpoint."""
    parts: Any = SimpleNamespace(
        config=build_config({}),
        should_stop=lambda: False,
        hooks=[],
        call=clock.written,
        warn=warned.append,
        emit=lambda event: None,
    )
    whole = folder / checkpoint
    found = RunStepCheckpointer(parts, RunState(step=3, checkpoint=whole), folder, clock)
    found.save_whole = lambda: whole
    return found


POSITION = StepPosition(plan={"intervals": 4}, number=1, columns=(2,), num_passes=5)


def test_the_time_of_earlier_processes_counts_once(tmp_path: Path) -> None:
    clock = Clock()
    for began, took, before in ((100.0, 7.0, 0.0), (1000.0, 2.5, 7.0), (5000.0, 1.0, 9.5)):
        clock.now = began
        keeper = keeper_of(tmp_path, clock, [])
        keeper.start_step(POSITION.plan, keeper.take_resumed_step(3))
        assert [keeper.take_seconds_before(), keeper.take_seconds_before()] == [before, 0]
        clock.now += took
        keeper.save(POSITION, {})


def test_what_was_kept_counts_once_and_for_its_checkpoint_alone(tmp_path: Path) -> None:
    warned: list[str] = []
    keeper_of(tmp_path, Clock(), warned, "a").save(POSITION, {})
    assert keeper_of(tmp_path, Clock(), warned, "b").take_resumed_step(3) is None
    keeper = keeper_of(tmp_path, Clock(), warned, "a")
    assert keeper.take_resumed_step(3) is not None
    assert keeper.take_resumed_step(3) is None
    assert keeper_of(tmp_path, Clock(), warned, "a").take_resumed_step(4) is None
    assert not warned


def test_what_is_kept_of_other_steps_goes(tmp_path: Path) -> None:
    for name in ("unfinished-00000002.npz", ".unfinished-00000003.npz.77.partial", "step-00000003.x"):
        (tmp_path / name).touch()
    keeper = keeper_of(tmp_path, Clock(), [])
    keeper.save(POSITION, {})
    mine = {"unfinished-00000003.npz", "step-00000003.x"}
    assert {path.name for path in tmp_path.iterdir()} == mine
    keeper.saved(3)
    assert {path.name for path in tmp_path.iterdir()} == mine
    keeper.saved(4)
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000003.x"}


def test_a_step_is_kept_after_a_minute_and_writing_takes_little_of_the_time(tmp_path: Path) -> None:
    clock = Clock()
    keeper, clock.write_s = keeper_of(tmp_path, clock, []), 4.0
    for wait, is_due in ((59.0, False), (2.0, True)):
        clock.now += wait
        assert keeper.is_due == is_due
    keeper.save(POSITION, {})
    for wait, is_due in ((79.0, False), (2.0, True)):
        clock.now += wait
        assert keeper.is_due == is_due
    keeper.saved(3)
    assert not keeper.is_due


def test_a_disk_that_fills_up_says_from_where_a_resumed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, warned = Clock(), list[str]()
    keeper = keeper_of(tmp_path, clock, warned)
    keeper.save(POSITION, {})
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(step_checkpoint.shutil, "disk_usage", lambda folder: usage)
    keeper.save(POSITION, {"rows": np.zeros((1000, 3), np.float32)})
    assert warned[0].endswith("1000 bytes are free. A resumed run continues from the previously saved part")
    assert keeper_of(tmp_path, clock, warned).take_resumed_step(3) is not None
    # No more is tried, but where the run is stopped.
    clock.now += 1e6
    assert not keeper.is_due
    keeper.start_step(POSITION.plan, None)
    keeper.save(POSITION, {"rows": np.zeros((1000, 3), np.float32)})
    assert warned[1].endswith("A resumed run restarts the step")


def test_columns_that_end_in_a_step_are_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a step would be a stall that takes longer than `runtime.stall_timeout_s`."""
    moved, more = StageThreads.record_progress, list[int]()

    def noted(threads: StageThreads) -> None:
        before = threads._activity()
        moved(threads)
        more.append(threads._activity() - before)

    monkeypatch.setattr(StageThreads, "record_progress", noted)
    training(tmp_path, []).run()
    # Two steps: forward, at the targets, and back. A column is heard of once the next one was enqueued.
    of_targets = -(-len(GRAPH.split("train")) // 30)
    assert len(more) == 2 * (4 + of_targets - 1 + 4)
    assert min(more) > 0
