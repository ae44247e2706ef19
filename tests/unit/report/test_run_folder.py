"""Run folders: their files, their names, resuming, and disks that cannot be written."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from unit.report.run_events import BALANCED, PREDICTED, STARTED, epoch_ended, evaluated, steps

from hyrt.config import Config, build_config
from hyrt.errors import CheckpointError, ConfigError, DataError, HyrtError
from hyrt.objective.classification import Classification
from hyrt.report.run_folder import RunFolder, default_name, read_metrics, short_name
from hyrt.report.run_record import read_run
from hyrt.report.trained_run import open_trained_run
from hyrt.sampling.settings.neighbor_settings import NeighborSettings
from hyrt.telemetry.events import CheckpointWritten, Event, Notice, RunEnded


class Away(Classification):
    name = "away"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_create(tmp_path: Path) -> None:
    config = build_config(
        {"data": {"source": "../data/cora.npz"}, "model": {"kind": "gcn"}, "train": {"lr": 1e-4}}
    )
    with RunFolder.create(tmp_path / "runs", None, config) as run:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-gcn-cora", run.path.name)
        assert run.path.parent == tmp_path / "runs"
        assert {path.name for path in run.path.iterdir()} == {
            *("config.yaml", "env.json", "metrics.jsonl", "checkpoints"),
        }
        assert run.config() == config
        assert json.loads((run.path / "env.json").read_text())["versions"]["python"]
        assert list(run.checkpoints.iterdir()) == []
        assert read_metrics(run.metrics_path) == []


def test_what_a_killed_start_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / "left"
    (left / "checkpoints").mkdir(parents=True)
    (left / "metrics.jsonl").touch()
    (left / ".config.yaml.123.partial").write_text("seed: 0")
    RunFolder.remove_incomplete(left)
    assert not left.exists()
    RunFolder.remove_incomplete(left)
    for name, text in {
        "checkpoints/step-1": "",
        "metrics.jsonl": "{}",
        "config.yaml": "",
        "notes": "",
    }.items():
        kept = tmp_path / name.replace("/", "-")
        (kept / "checkpoints").mkdir(parents=True)
        (kept / name).write_text(text)
        RunFolder.remove_incomplete(kept)
        assert (kept / name).exists()


def test_default_name() -> None:
    moment = datetime(2026, 11, 21, 10, 15, 2)
    assert default_name(Config(), moment) == "2026-11-21-101502-graphsage-community"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("synthetic:community", "community"),
        ("synthetic:community,vertices=1000", "community"),
        ("synthetic:vertices=1000,degree=3", "synthetic"),
        ("synthetic:", "synthetic"),
        ("ogbn-products", "ogbn-products"),
        ("../shared/data/coauthor_physics.npz", "coauthor_physics"),
        ("/data/my graph/", "my-graph"),
        ("/", "data"),
        ("x" * 100 + ".npz", "x" * 40),
    ],
)
def test_short_names(source: str, name: str) -> None:
    assert short_name(source) == name


def test_a_taken_name_gets_a_number(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path, "mine", Config()).path.name for _ in range(3)]
    assert names == ["mine", "mine-2", "mine-3"]


def test_concurrent_creation(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: RunFolder.create(tmp_path / "runs", "run", Config()), range(16)))
    assert len({run.path for run in runs}) == 16
    assert all(RunFolder.open(run.path).config() == Config() for run in runs)


@pytest.mark.parametrize("name", ["", "a/b", "../up", "..", ".hidden", "/root", "a\0b", "a\nb"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="run name"):
        RunFolder.create(tmp_path, name, Config())


def test_open_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "data.npz").touch()
    with pytest.raises(CheckpointError, match=r"data\.npz is a file: use the folder of a run"):
        RunFolder.open(tmp_path / "data.npz")
    with pytest.raises(CheckpointError, match="none does not exist"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(CheckpointError, match=r"config\.yaml is missing"):
        RunFolder.open(tmp_path)
    (tmp_path / "config.yaml").touch()
    with pytest.raises(CheckpointError, match="checkpoints/ is missing"):
        RunFolder.open(tmp_path)


def test_settings_of_another_version_are_named_with_their_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    (run.path / "config.yaml").write_text("train: {from_the_future: 1}\n")
    with pytest.raises(ConfigError, match=r"run/config\.yaml: unknown setting 'train\.from_the_future'"):
        run.config()


def test_a_dataset_that_has_moved_is_asked_for(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    for source, says in (
        ("/gone/g.npz", "the dataset /gone/g.npz of .* no longer exists: specify its new path with --data"),
        (str(tmp_path), "no such key"),
        ("gone.npz", "no such key"),
    ):
        config = build_config({"data": {"source": source}})
        with pytest.raises(DataError, match=says), run.explain_moved_dataset(config):
            raise DataError("no such key")


def test_records(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    clock = Clock()
    run = RunFolder(run.path, clock)
    events: list[Event] = [
        STARTED,
        steps(2, loss=math.nan, losses=(math.inf, 0.5)),
        Notice(kind="info", text="moved 96 targets → cuda:0"),
        epoch_ended(1),
        evaluated(1),
        CheckpointWritten(step=59, path=run.checkpoints / "step-59"),
        CheckpointWritten(step=60, path=Path("/elsewhere/step-60")),
    ]
    for event in events:
        clock.now += 0.25
        run.handle(event)
    # Each line is in the file as soon as it is written, and is strict JSON.
    text = run.metrics_path.read_text()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert lines == read_metrics(run.metrics_path)
    assert [line["event"] for line in lines] == [
        *("steps", "notice", "epoch_ended", "evaluated", "checkpointed", "checkpointed"),
    ]
    assert [line["time_s"] for line in lines] == [0.5, 0.75, 1.0, 1.25, 1.5, 1.75]
    assert lines[0]["loss"] is None
    assert lines[0]["losses"] == [None, 0.5]
    assert lines[0]["stage_s"]["propagate"] == 0.0409
    assert lines[1]["text"] == "moved 96 targets → cuda:0"
    assert lines[3]["metrics"]["test"]["accuracy"] == 0.9134
    assert [line["path"] for line in lines[4:]] == ["checkpoints/step-59", "/elsewhere/step-60"]
    run.close()
    run.close()


def test_predictions_and_moves_are_records(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run", Config()) as run:
        for event in (STARTED, PREDICTED, steps(20), BALANCED, steps(30), replace(BALANCED, step=30)):
            run.handle(event)
        run.truncate_metrics(20)
        lines = read_metrics(run.metrics_path)
    assert [line["event"] for line in lines] == ["predicted", "steps", "balanced"]
    assert lines[0]["epoch_s"] == 3.4
    assert lines[0]["stages_s"] == dict(PREDICTED.stages_s)
    moved = {key: value for key, value in lines[2].items() if key not in ("event", "time_s")}
    assert moved == asdict(BALANCED)


def test_summary(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    for status in ("interrupted", "finished"):
        run.handle(RunEnded(status=status, summary={"test": {"accuracy": 0.9}, "loss": math.nan}))
    assert json.loads((run.path / "summary.json").read_text()) == {
        "status": "finished",
        "test": {"accuracy": 0.9},
        "loss": None,
    }
    assert not list(run.path.glob(".*"))


def test_resuming_reads_like_one_run(tmp_path: Path) -> None:
    def train(run: RunFolder, clock: Clock, numbers: range) -> None:
        for step in numbers:
            clock.now += 1
            run.handle(steps(step))
            run.handle(Notice(kind="info", text=f"after {step}"))
        run.close()

    through, clock = RunFolder.create(tmp_path, "through", Config()), Clock()
    train(RunFolder(through.path, clock), clock, range(1, 21))

    cut, clock = RunFolder.create(tmp_path, "cut", Config()), Clock()
    run = RunFolder(cut.path, clock)
    train(run, clock, range(1, 16))
    for stop, end in ((12, 14), (13, 21)):
        with run.metrics_path.open("ab") as file:
            file.write(b'{"event":"steps","ti')
        clock = Clock()
        run = RunFolder(RunFolder.open(cut.path).path, clock)
        clock.now += 0.123
        run.truncate_metrics(stop)
        train(run, clock, range(stop + 1, end))
    assert read_metrics(cut.metrics_path) == read_metrics(through.metrics_path)


def test_truncating_an_open_file_or_a_missing_one(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    for step in (1, 2, 3):
        run.handle(steps(step))
    run.truncate_metrics(1)
    run.handle(steps(2))
    assert [line["step"] for line in read_metrics(run.metrics_path)] == [1, 2]
    run.close()
    run.metrics_path.unlink()
    run.truncate_metrics(1)
    run.handle(steps(2))
    assert [line["step"] for line in read_metrics(run.metrics_path)] == [2]
    run.close()


def test_a_torn_or_zeroed_last_line_is_left_out(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    for step in (1, 2):
        run.handle(steps(step))
    run.close()
    whole = run.metrics_path.read_bytes()
    second = whole.index(b"\n") + 1
    for size in range(second, len(whole)):
        run.metrics_path.write_bytes(whole[:size])
        assert len(read_metrics(run.metrics_path)) == 1
    for tail in (b"\0" * 100, b"\0" * 100 + b"\n", b"{}\n", b"7\n"):
        run.metrics_path.write_bytes(whole + tail)
        assert len(read_metrics(run.metrics_path)) == 2


class AwaySettings(NeighborSettings):
    """Of a package that is there while the run is made."""


@pytest.mark.parametrize(
    ("where", "declared", "settings", "says"),
    [
        ("hyrt.samplers", f"{__name__}:AwaySettings", {"sampler": {"kind": "away"}}, "sampler.kind=away"),
        ("hyrt.models", "hyrt.nn.models.gcn:Gcn", {"model": {"kind": "away"}}, "model.kind=away"),
        ("hyrt.objectives", f"{__name__}:Away", {"train": {"objective": "away"}}, "train.objective=away"),
    ],
)
def test_a_run_of_a_package_that_is_gone(
    where: str, declared: str, settings: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, more = entry_points, EntryPoint("away", declared, where)
    with monkeypatch.context() as patch:
        patch.setattr(
            "hyrt.runtime.entry_points.entry_points",
            lambda group: [*real(group=group), *([more] if group == where else [])],
        )
        config = build_config(settings)
        with RunFolder.create(tmp_path, "run", config) as run:
            run.handle(steps(1))
        assert run.config() == config
    with pytest.raises(
        ConfigError, match=rf"{says}, which belongs to a package that is no longer installed: install"
    ):
        run.config()
    # A report needs none of it.
    assert read_run(run.path).settings == json.loads(json.dumps(config.model_dump(mode="json")))


def test_a_damaged_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", Config())
    for step in (1, 2, 3):
        run.handle(steps(step))
    run.close()
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    run.metrics_path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(DataError, match=r"line 2 of .*metrics\.jsonl is damaged"):
        read_metrics(run.metrics_path)
    with pytest.raises(DataError, match="line 2"):
        run.truncate_metrics(2)
    with pytest.raises(DataError, match="No such file"):
        read_metrics(tmp_path / "none.jsonl")


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk(tmp_path: Path) -> None:
    with file_size_limit(10), pytest.raises(HyrtError, match=r"run cannot be written: File too large"):
        RunFolder.create(tmp_path, "run", Config())
    assert list(tmp_path.iterdir()) == []
    run = RunFolder.create(tmp_path, "run", Config())
    run.handle(RunEnded(status="interrupted"))
    with file_size_limit(10):
        with pytest.raises(HyrtError, match=r"metrics\.jsonl cannot be written: File too large.*Free space"):
            run.handle(steps(1))
        with pytest.raises(HyrtError, match=r"summary\.json cannot be written"):
            run.handle(RunEnded(status="finished"))
    assert json.loads((run.path / "summary.json").read_text())["status"] == "interrupted"
    run.close()


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_folder_that_goes_away(tmp_path: Path, is_moved: bool) -> None:
    with RunFolder.create(tmp_path, "run", Config()) as run:
        run.handle(steps(1))
        if is_moved:
            run.path.rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(run.path)
        with pytest.raises(HyrtError, match=r"run/metrics.jsonl was removed or moved during the run"):
            run.handle(steps(2))


def test_an_unwritable_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "runs"):
        with pytest.raises(ConfigError, match="file is a file: set --output to a folder"):
            RunFolder.create(root, None, Config())
    with pytest.raises(ConfigError, match="is too long: use at most 200 bytes"):
        RunFolder.create(tmp_path, "é" * 101, Config())
    with pytest.raises(ConfigError, match=r"run name 'a\\xfa' is invalid: use a UTF-8 name without '/'"):
        RunFolder.create(tmp_path, "a\udcfa", Config())

    def read_only(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", read_only)
    with pytest.raises(HyrtError, match="runs/a cannot be written: Read-only file system"):
        RunFolder.create(tmp_path / "runs", "a", Config())


def test_an_undecodable_command_line(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from hyrt.config import Config;"
        "from hyrt.report.run_folder import RunFolder;"
        "RunFolder.create(Path(sys.argv[1]), 'run', Config())"
    )
    root = Path(__file__).parents[3]
    command = [sys.executable.encode(), b"-c", code.encode(), str(tmp_path).encode(), b"\xff.npz"]
    subprocess.run(command, cwd=root, check=True)
    assert json.loads((tmp_path / "run/env.json").read_bytes())["command"][-1] == "\udcff.npz"


def test_a_run_without_its_settings_is_not_one_with_the_defaults(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "run", build_config({})) as run:
        run.handle(steps(1))
    (run.path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match=r"config\.yaml contains no settings: restore an intact copy"):
        run.config()


def test_a_run_without_its_settings_is_told_from_a_training_of_python(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "lost", build_config({}))
    (run.checkpoints / f"step-00000001.{'0' * 32}.safetensors").touch()
    (run.path / "config.yaml").unlink()
    with pytest.raises(ConfigError, match=r"lost no longer has its config\.yaml.*restore it, or specify"):
        open_trained_run(run.path, [], "best")
    run.metrics_path.unlink()
    with pytest.raises(ConfigError, match=r"lost was trained from Python and does not name its dataset"):
        open_trained_run(run.path, [], "best")
