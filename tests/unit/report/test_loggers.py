"""What TensorBoard, MLflow and Weights & Biases would show of a run, and what becomes of loggers that fail.

MLflow and wandb are heavy, so that stand-ins with their documented calls take their place where they are not
installed.
"""

from __future__ import annotations

import importlib.util
import json
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from unit.report.run_events import BALANCED, STARTED, epoch_ended, evaluated, steps
from unit.report.stand_in_mlflow import stand_in_mlflow
from unit.report.stand_in_wandb import stand_in_wandb

import hyrt
from hyrt.errors import ConfigError
from hyrt.report.loggers.logger import LoggedRun, RunLoggers, check_loggers
from hyrt.telemetry.events import Event, Notice, RunEnded

SETTINGS = {"train.lr": 0.01, "model.kind": "gcn", "sampler.fanout": [5, 5]}
EVENTS = (steps(6, queued={"sampled": 1.5}), steps(12, loss=0.5), evaluated(1), epoch_ended(1), BALANCED)
ENDED = RunEnded(status="finished")


def read_scalars(folder: Path) -> dict[tuple[str, int], float]:
    """All scalars of a folder's event files.

    A record is a length, its checksum, an Event message, and its checksum.
    """
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = {}
    for path in sorted(folder.glob("events.out.tfevents.*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = event_pb2.Event.FromString(data[at + 12 : at + 12 + length])
            for value in event.summary.value:
                found[value.tag, event.step] = value.simple_value
            at += 12 + length + 4
    return found


def logged(folder: Path, *names: str, events: tuple[Event, ...] = (STARTED, *EVENTS, ENDED)) -> list[str]:
    """Log a run of some events; the warnings."""
    folder.mkdir(exist_ok=True)
    warnings: list[str] = []
    with RunLoggers(names, LoggedRun(folder.name, folder, SETTINGS), warnings.append) as loggers:
        for event in events:
            loggers.handle(event)
    return warnings


def test_scalars_for_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    for _ in range(2):  # A resumed run adds a file.
        assert logged(tmp_path / "run", "tensorboard") == []
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2
    found = read_scalars(tmp_path / "run" / "tensorboard")
    assert found["train/loss", 6] == pytest.approx(1.0234)
    assert found["train/loss", 12] == pytest.approx(0.5)
    assert found["stage_s/propagate", 6] == pytest.approx(0.0409)
    assert found["split/cpu", 6] == 1024
    assert found["queued/sampled", 6] == 1.5
    assert found["waiting_s/load.input", 6] == pytest.approx(0.03)
    assert {tag.split("/")[0] for tag, _ in found} == {
        *("train", "speed", "memory", "stage_s", "waiting_s", "queued", "busy_s", "split", "threads"),
        *("val", "test", "epoch", "balance"),
    }
    assert found["busy_s/cpu_0", 12] == pytest.approx(0.030)
    assert found["balance/expected_s", BALANCED.step] == pytest.approx(0.024)
    assert found["val/accuracy", 59] == pytest.approx(0.92)
    assert found["epoch/seconds", 59] == pytest.approx(3.5)


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The package, or what stands in for it; its store is a folder of the test."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    if importlib.util.find_spec("mlflow") is None:
        for name, module in stand_in_mlflow().items():
            monkeypatch.setitem(sys.modules, name, module)
    return pytest.importorskip("mlflow")


def test_a_run_in_mlflow(mlflow: Any, tmp_path: Path) -> None:
    """Settings, metrics by step, the end; and a resumed run goes on in the same one."""
    folder = tmp_path / "my run"
    assert logged(folder, "mlflow", events=(STARTED, *EVENTS, RunEnded(status="interrupted"))) == []
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("hyrt").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_name == "my run"
    assert run.info.status == "KILLED"
    assert run.data.params == {"train.lr": "0.01", "model.kind": "gcn", "sampler.fanout": "[5, 5]"}
    assert run.data.metrics["val/accuracy"] == pytest.approx(0.92)
    assert json.loads((folder / "loggers.json").read_text()) == {"mlflow": run.info.run_id}
    assert logged(folder, "mlflow", events=(STARTED, steps(70, loss=0.25), ENDED)) == []
    (run,) = client.search_runs([experiment])
    assert (run.info.status, run.data.tags["status"]) == ("FINISHED", "finished")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == [(6, 1.0234), (12, 0.5), (70, 0.25)]
    assert [metric.value for metric in client.get_metric_history(run.info.run_id, "train/epoch")][-1] == 2


def test_a_run_in_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, runs = stand_in_wandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    folder = tmp_path / "mine"
    assert logged(folder, "wandb") == []
    loggers = RunLoggers(["wandb"], LoggedRun("mine", folder, {}), print)
    loggers.handle(STARTED)
    loggers.__exit__(RuntimeError, RuntimeError("broken"), None)
    first, second = runs
    assert first.given["config"] == SETTINGS
    assert (first.given["mode"], first.given["dir"], first.given["resume"]) == ("offline", str(folder), None)
    assert (first.step_metric, first.exit_code, first.summary) == ("step", 0, {"status": "finished"})
    assert [(line["step"], line["train/loss"]) for line in first.logged if "train/loss" in line] == [
        (6, 1.0234),
        (12, 0.5),
    ]
    assert (second.id, second.given["resume"]) == (first.id, "allow")
    assert (second.exit_code, second.summary["status"]) == (1, "failed")


def test_wandb_writes_offline_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    folder = tmp_path / "mine"
    for _ in range(2):
        assert logged(folder, "wandb") == []
    known = json.loads((folder / "loggers.json").read_text())["wandb"]
    written = list(folder.glob(f"wandb/offline-run-*/run-{known}.wandb"))
    assert written
    assert all(b"val/accuracy" in path.read_bytes() and b"train.lr" in path.read_bytes() for path in written)


class Failing:
    """A logger that fails, or hangs, where it is told to."""

    def __init__(self, where: str, hang: threading.Event | None = None) -> None:
        self.where, self.hang = where, hang

    def _do(self, what: str) -> None:
        if what == self.where:
            if self.hang is not None:
                self.hang.wait(60)
            raise SystemExit("no\nserver")

    def start(self, run: LoggedRun, previous_id: str | None) -> None:
        self._do("start")

    def log(self, metrics: Any, step: int, epoch: int | None) -> None:
        self._do("log")

    def end(self, status: str) -> None:
        self._do("end")


@pytest.mark.parametrize("where", ["start", "log", "end"])
def test_one_that_fails_is_named_and_ends_nothing(where: str, tmp_path: Path) -> None:
    made = {"bad": Failing(where), "good": Failing("never")}
    warnings: list[str] = []
    run = LoggedRun("run", tmp_path, SETTINGS)
    with RunLoggers(list(made), run, warnings.append, made.__getitem__) as loggers:
        for event in (STARTED, *EVENTS, ENDED):
            loggers.handle(event)
    assert warnings == ["logger bad failed and is disabled: SystemExit: no server"]


def test_one_that_hangs_is_left(tmp_path: Path) -> None:
    hang, warnings = threading.Event(), list[str]()
    loggers = RunLoggers(
        ["slow"], LoggedRun("run", tmp_path, SETTINGS), warnings.append, lambda name: Failing("log", hang)
    )
    for event in (STARTED, *EVENTS, ENDED):
        loggers.handle(event)
    loggers.close(timeout_s=0.05)
    hang.set()
    assert warnings == ["logger slow has not finished after 0 s and is no longer awaited"]


def test_a_refused_run_is_not_logged(tmp_path: Path) -> None:
    assert logged(tmp_path / "run", "tensorboard", events=(Notice(kind="info", text="no"),)) == []
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboardX"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_without_the_package(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyrt.report.loggers.logger.find_spec", lambda asked: None)
    with pytest.raises(ConfigError, match=rf'loggers={name} needs {package}: pip install "hyrt\[{name}\]"'):
        check_loggers([name])


def test_a_training_of_python_is_logged(mlflow: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="loggers need a folder to store the name of the run: pass folder="):
        hyrt.train("synthetic:tiny", loggers=["mlflow"])
    hyrt.train(
        "synthetic:tiny",
        "gcn",
        train={"epochs": 1},
        data={"batch_size": 2000},
        loggers=["mlflow"],
        folder=tmp_path / "a",
    )
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("hyrt").experiment_id])
    assert (run.info.run_name, run.info.status, run.data.params["train.epochs"]) == ("a", "FINISHED", "1")
    assert run.data.metrics["val/accuracy"] > 0
