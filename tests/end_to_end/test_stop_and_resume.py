"""A run that was stopped, however, goes on bit-equal to one that was not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml
from compare_runs import compare_runs, read_records
from end_to_end.terminal import BegunRun, begin, hyrt, last_step, records, summary, wait_until

from hyrt.graph.formats.convert import Conversion, convert

# 19 steps an epoch; everything that could depend on what came before is on.
LONG = [
    *("--data", "synthetic:tiny", "data.batch_size=64", "train.epochs=12", "model.dropout=0.4"),
    *("train.schedule=ReduceLROnPlateau", "train.schedule_options={patience: 0, factor: 0.9}"),
    *("model.input_dropout=0.1", "train.patience=50", "train.class_weights=balanced", "evaluate.every=3"),
]
EPOCHS_ONE = [word if word != "train.epochs=12" else "train.epochs=2" for word in LONG]
ONE_EPOCH = 19


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that was not stopped."""
    folder = tmp_path_factory.mktemp("whole")
    hyrt("run", *LONG, "--name", "run", cwd=folder)
    return folder / "runs" / "run"


def stop(process: BegunRun, number: signal.Signals, says: str = "") -> tuple[str, str]:
    """Send a signal; the process ends within 10 s with 128 + its number, and these words."""
    sent = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert time.monotonic() - sent < 10
    assert process.returncode == 128 + number, (output, errors)
    assert errors == says
    return output, errors


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def written(run: Path) -> dict[Path, int]:
    """When each file was written; whoever looks at a run names itself in its lock for as long."""
    return {path: path.stat().st_mtime_ns for path in run.rglob("*") if path.name != ".lock"}


def assert_equal_runs(one: Path, other: Path) -> None:
    assert compare_runs(one, other) == []


def test_interrupted_twice_in_one_epoch(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = begin("run", *LONG, "--name", "run", cwd=tmp_path)
    wait_until(lambda: last_step(run) > 0, process)
    output, _ = stop(process, signal.SIGINT)
    assert "stopping after this step" in output
    assert "Resume with: hyrt run --resume runs/run" in output
    assert summary(run)["status"] == "interrupted"
    first = last_step(run)
    assert 0 < first < 12 * ONE_EPOCH

    process = begin("run", "--resume", run, cwd="/")
    wait_until(lambda: last_step(run) > first, process)
    output, _ = stop(process, signal.SIGTERM)
    assert f"continuing after step {first}" in output

    memory = summary(run)["peak_memory_bytes"]
    hyrt("run", "--resume", "runs/run", cwd=tmp_path)
    assert_equal_runs(run, whole)
    # Of all steps, whichever process did them.
    told_of = summary(run)
    assert told_of["iteration_s"] * told_of["steps"] == pytest.approx(told_of["trained_s"])
    by_groups = [
        (len(line["losses"]), line["stage_s"]["propagate"])
        for line in records(run)
        if line["event"] == "steps"
    ]
    propagated = sum(count * seconds for count, seconds in by_groups)
    assert told_of["stages_s"]["propagate"] * told_of["steps"] == pytest.approx(propagated, rel=1e-3)
    assert told_of["peak_memory_bytes"] >= memory
    before = written(run)
    assert "has already ended" in hyrt("run", "--resume", "runs/run", cwd=tmp_path).stdout
    assert written(run) == before


def test_killed_between_checkpoints(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = begin("run", *LONG, "checkpoint.every_steps=7", "--name", "run", cwd=tmp_path)
    wait_until(lambda: last_step(run) > 20, process)
    process.kill()
    process.communicate()
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"event":"steps","step":1')  # As a kill leaves a line.
    hyrt("run", "--resume", "runs/run", cwd=tmp_path)
    assert_equal_runs(run, whole)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs that has ended."""
    folder = tmp_path_factory.mktemp("short")
    hyrt("run", *EPOCHS_ONE, "--name", "run", cwd=folder)
    return folder / "runs" / "run"


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_damaged_newest_checkpoint(whole: Path, short: Path, tmp_path: Path, quiet: list[str]) -> None:
    run = tmp_path / "runs" / "run"
    shutil.copytree(short, run)
    newest = max((run / "checkpoints").iterdir())
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    environment = json.loads((run / "env.json").read_text())
    environment["versions"]["torch"] = "1.0"
    (run / "env.json").write_text(json.dumps(environment))
    done = hyrt("run", "--resume", "runs/run", "train.epochs=12", *quiet, cwd=tmp_path)
    shown, silent = (done.stderr, done.stdout) if quiet else (done.stdout, done.stderr)
    changed = f"torch 1.0 (now {torch.__version__})"
    assert f"warning: the run was started with {changed}, so its results will not be bit-identical" in shown
    assert f"warning: runs/run/checkpoints/{newest.name} is damaged, because" in shown
    assert "warning" not in silent
    # The run of two epochs was evaluated after its second, this one after its third.
    assert read_records(run)["losses"][: 2 * ONE_EPOCH] == read_records(whole)["losses"][: 2 * ONE_EPOCH]
    assert summary(run)["steps"] == 12 * ONE_EPOCH
    assert yaml.safe_load((run / "config.yaml").read_text())["train"]["epochs"] == 12


def test_killed_before_the_first_checkpoint(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = begin("run", *LONG, "checkpoint.every_epochs=0", "--name", "run", cwd=tmp_path)
    wait_until(lambda: last_step(run) > 0, process)
    process.kill()
    process.communicate()
    shown = hyrt("run", "--resume", "runs/run", cwd=tmp_path).stdout
    assert "restarting from step 0" in shown
    assert_equal_runs(run, whole)


def test_second_signal_leaves_at_once(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    # A step so large that it takes a while.
    words = ["--data", "synthetic:community", "data.batch_size=60000", "sampler.fanout=[-1,-1]"]
    process = begin("run", *words, "model.hidden=384", "train.epochs=50", "--name", "run", cwd=tmp_path)
    wait_until(lambda: any((run / "checkpoints").glob("step-*.safetensors")), process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert time.monotonic() - sent < 2
    assert process.returncode == 130
    # On standard output where the step, or an evaluation, happened to end between the two.
    assert (errors or output).endswith("Resume with: hyrt run --resume runs/run\n")


def test_signal_while_data_is_made(tmp_path: Path) -> None:
    process = begin("run", "--data", "synthetic:community,edges=40M,vertices=2M", cwd=tmp_path)
    time.sleep(3)
    stop(process, signal.SIGINT, "interrupted before the run began\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_a_dataset_is_written_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = begin("data", "generate", "community,edges=40M,vertices=2M", "made", cwd=tmp_path)
    wait_until(lambda: any(tmp_path.iterdir()), process)
    stop(process, number)
    assert not list(tmp_path.iterdir())


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "run"
    process = begin("run", *LONG, "train.epochs=2000", "--name", "run", cwd=tmp_path)
    wait_until(lambda: last_step(run) > 0, process)
    refused = hyrt("run", "--resume", "runs/run", cwd=tmp_path, code=1)
    assert "another process is training the run" in refused.stderr
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


@pytest.mark.parametrize("override", ["model.hidden=8", "data={}", "seed=1"])
def test_what_may_not_change(whole: Path, override: str) -> None:
    refused = hyrt("run", "--resume", whole, override, cwd=whole, code=2)
    assert f"{override.partition('=')[0]} cannot change" in refused.stderr


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("train", "lr", 0.5, "train.lr is 0.5 in config.yaml, but the checkpoint was trained with 0.01"),
        ("model", "kind", "gcn", 'but the checkpoint was trained with "graphsage"'),
        (
            "data",
            "source",
            "synthetic:tiny,seed=7",
            "has different labels or training vertices from the graph",
        ),
        ("train", "schedule_options", {}, "train.schedule_options"),
    ],
)
def test_an_edited_config_is_refused(
    whole: Path, tmp_path: Path, section: str, key: str, value: object, message: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings[section][key] = value
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    before = contents(run)
    assert message in hyrt("run", "--resume", run, "train.epochs=13", cwd=tmp_path, code=2).stderr
    assert contents(run) == before


@pytest.mark.parametrize("gone", ["emptied", "deleted"])
def test_a_refused_resume_loses_nothing(tmp_path: Path, gone: str) -> None:
    """The metrics were lost, and the data has another width now: the checkpoints must stay."""
    data = tmp_path / "tiny.npz"
    convert(Conversion("synthetic:tiny", data), lambda line: None)
    hyrt("run", *EPOCHS_ONE[2:], "--data", "tiny.npz", "--name", "run", cwd=tmp_path)
    run = tmp_path / "runs" / "run"
    data.rename(tmp_path / "kept.npz")
    convert(Conversion("synthetic:tiny,features=7", data), lambda line: None)
    if gone == "emptied":
        (run / "metrics.jsonl").write_text("")
    else:
        (run / "metrics.jsonl").unlink()
    before = contents(run)
    done = hyrt("run", "--resume", run, "train.epochs=3", cwd=tmp_path, code=2)
    assert "different feature rows" in done.stderr
    assert contents(run) == before
    (tmp_path / "kept.npz").replace(data)
    hyrt("run", "--resume", run, "train.epochs=3", cwd=tmp_path)
    assert summary(run)["epochs"] == 3


# A thousand chunks an epoch: what is stopped is in the middle of one.
IN_CHUNKS = [
    *("--data", "synthetic:products-s,vertices=3000", "--model", "gcn", "--full-graph", "--devices", "cpu"),
    *("fullgraph.chunks=30", "train.epochs=9", "evaluate.every=9", "model.hidden=16", "model.dropout=0.3"),
]


def test_a_long_epoch_that_is_stopped_goes_on_between_its_columns(tmp_path: Path) -> None:
    hyrt("run", *IN_CHUNKS, "--name", "whole", cwd=tmp_path)
    run, whole = (tmp_path / "runs" / name for name in ("stopped", "whole"))
    words: list[str | Path] = ["run", *IN_CHUNKS, "--name", "stopped"]
    step = ""
    while not step:
        # One that comes between two epochs, of which there are nine, ends the run there.
        before = last_step(run)
        process = begin(*words, cwd=tmp_path)
        wait_until(partial(lambda before: last_step(run) > before, before), process)
        output, _ = stop(process, signal.SIGTERM)
        step = output.partition("stopped in ")[2].partition(",")[0]
        words = ["run", "--resume", run]
    assert [file.name[-5:] for file in (run / "checkpoints").glob("unfinished-*")] == [f"{step[-1]}.npz"]
    resumed = hyrt("run", "--resume", "runs/stopped", cwd=tmp_path)
    assert f"continuing in {step}, in pass" in resumed.stdout
    assert_equal_runs(run, whole)
    assert not list((run / "checkpoints").glob("unfinished-*"))
