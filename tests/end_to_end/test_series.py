"""`hyrt run --seeds --splits`: many runs, a folder each, and what they come to."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from end_to_end.terminal import begin, hyrt, last_step, records, summary, wait_until
from in_process import refused

from hyrt.graph.formats.convert import Conversion, convert

WORDS = ["--data", "two.npz", "data.batch_size=256", "train.epochs=2", "model.dropout=0.3"]
NAMES = [f"split-{split}-seed-{seed}" for split in (0, 1) for seed in (3, 4)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset with two splits, the second of which trains on what the first tests."""
    file = tmp_path_factory.mktemp("data") / "two.npz"
    convert(Conversion("synthetic:tiny", file), lambda text: None)
    with np.load(file) as one:
        arrays = dict(one)
    masks = {name: arrays[f"{name}_mask"].reshape(-1) for name in ("train", "val", "test")}
    for name, other in (("train", "test"), ("val", "val"), ("test", "train")):
        arrays[f"{name}_mask"] = np.stack([masks[name], masks[other]], axis=1)
    np.savez(file, **arrays)
    return file


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    shutil.copy(data, tmp_path)
    return tmp_path


def losses(run: Path) -> list[float]:
    return [loss for line in records(run) if line["event"] == "steps" for loss in line["losses"]]


def test_mean_and_deviation_over_seeds_and_splits(folder: Path) -> None:
    words = [*WORDS, "seed=3", "--seeds", "2", "--splits", "all"]
    shown = hyrt("run", *words, "--name", "s", cwd=folder).stdout
    series = folder / "runs" / "s"
    told = json.loads((series / "summary.json").read_text(encoding="utf-8"))
    assert (told["status"], told["seeds"], told["splits"]) == ("finished", [3, 4], [0, 1])
    assert [run["run"] for run in told["runs"]] == NAMES
    ended = [summary(series / name) for name in NAMES]
    assert "4 of 4 runs · seeds 3, 4 · splits 0, 1" in shown
    for split in ("val", "test"):
        for metric in ("accuracy", "macro_f1", "loss"):
            values = [run["metrics"][split][metric] for run in ended]
            found = told["metrics"][split][metric]
            assert found["mean"] == pytest.approx(np.mean(values))
            assert found["deviation"] == pytest.approx(np.std(values, ddof=1))
            assert (found["lowest"], found["highest"], found["runs"]) == (min(values), max(values), 4)
    accuracy = told["metrics"]["test"]["accuracy"]
    (line,) = [line for line in shown.splitlines() if line.startswith("test accuracy ") and "±" in line]
    assert line.split()[2:5] == [f"{accuracy['mean']:.4f}", "±", f"{accuracy['deviation']:.4f}"]
    # Each is the run that one gets alone, and no two are the same.
    hyrt("run", *WORDS, "seed=4", "data.split=1", "--name", "alone", cwd=folder)
    assert losses(series / NAMES[3]) == losses(folder / "runs" / "alone")
    assert len({tuple(losses(series / name)) for name in NAMES}) == 4
    assert "use one of the run folders in it" in refused("report", series, cwd=folder)
    # Nothing is left to do; with more epochs there is.
    stamps = [(series / name / "summary.json").stat().st_mtime_ns for name in NAMES]
    again = hyrt("run", "--resume", series, cwd=folder).stdout
    assert "run 1 of 4" not in again
    assert line in again
    assert stamps == [(series / name / "summary.json").stat().st_mtime_ns for name in NAMES]
    hyrt("run", "--resume", series, "train.epochs=3", "--quiet", cwd=folder)
    assert {summary(series / name)["epochs"] for name in NAMES} == {3}


def test_one_that_is_stopped_keeps_what_is_done(folder: Path) -> None:
    long = [word if word != "train.epochs=2" else "train.epochs=40" for word in WORDS]
    process = begin("run", *long, "seed=3", "--seeds", "2", "--name", "s", cwd=folder)
    series = folder / "runs" / "s"
    first, second = (series / name for name in NAMES[:2])
    wait_until(lambda: (first / "summary.json").exists() and last_step(second) > 0, process)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, (output, errors)
    assert "Resume with: hyrt run --resume runs/s\n" in output
    assert "1 of 2 runs" in output
    assert json.loads((series / "summary.json").read_text(encoding="utf-8"))["status"] == "unfinished"
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    shown = hyrt("run", "--resume", "runs/s", cwd=folder).stdout
    assert "run 1 of 2" not in shown
    assert "run 2 of 2: split 0, seed 4" in shown
    assert "2 of 2 runs · seeds 3, 4 · split 0" in shown
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before
    hyrt("run", *long, "seed=4", "--name", "alone", cwd=folder)
    assert losses(second) == losses(folder / "runs" / "alone")


def test_a_run_that_was_only_begun_is_made_again(folder: Path) -> None:
    hyrt("run", *WORDS, "seed=3", "--seeds", "2", "--name", "s", "--quiet", cwd=folder)
    begun = folder / "runs" / "s" / NAMES[1]
    before = losses(begun)
    shutil.rmtree(begun)
    (begun / "checkpoints").mkdir(parents=True)
    hyrt("run", "--resume", "runs/s", "--quiet", cwd=folder)
    assert losses(begun) == before


def test_settings_that_are_only_shown_change_nothing(folder: Path) -> None:
    hyrt("run", *WORDS, "seed=3", "--seeds", "1", "--name", "s", "--quiet", cwd=folder)
    kept = (folder / "runs" / "s" / "config.yaml").read_bytes()
    shown = hyrt("run", "--resume", "runs/s", "train.epochs=3", "--print-config", cwd=folder).stdout
    assert "epochs: 3" in shown
    assert (folder / "runs" / "s" / "config.yaml").read_bytes() == kept
    (folder / "mine.yaml").write_text("train: {epochs: 3}\n", encoding="utf-8")
    message = refused("run", "mine.yaml", "--resume", "runs/s", cwd=folder)
    assert "mine.yaml cannot be used, because a resumed run keeps its settings" in message


def test_what_was_done_before_a_failure_is_summarized(folder: Path) -> None:
    hyrt("run", *WORDS, "seed=3", "--seeds", "2", "--name", "s", "--quiet", cwd=folder)
    series = folder / "runs" / "s"
    (series / "summary.json").unlink()
    (series / NAMES[1] / "summary.json").unlink()
    shutil.rmtree(series / NAMES[1] / "checkpoints")
    assert "checkpoints/ is missing" in refused("run", "--resume", series, cwd=folder)
    told = json.loads((series / "summary.json").read_text(encoding="utf-8"))
    assert told["status"] == "unfinished"
    assert [run["run"] for run in told["runs"]] == NAMES[:1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--splits", "0,2"], "two.npz has 2 splits, numbered from 0: use each number only once"),
        (["--splits", "1,1"], "use each number only once"),
        (["--splits", "some"], "--splits some must be all, or numbers such as 0,1,2"),
        (
            ["--seeds", "2", "--resume", "x"],
            "--seeds and --splits start a new series: to resume a series, remove them",
        ),
        (["--seeds", "2", "train.metric=roc_auc"], "needs two classes"),
    ],
)
def test_what_is_refused_leaves_nothing(words: list[Any], message: str, folder: Path) -> None:
    given = words if "--resume" in words else [*WORDS, *words]
    assert message in refused("run", *given, cwd=folder)
    assert not list(folder.glob("runs/*"))
