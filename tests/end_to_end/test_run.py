from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from end_to_end.terminal import HYRT, TINY, environment, hyrt, installed_hyrt, only_run, records, summary

import hyrt as package
from hyrt.config import build_config
from hyrt.telemetry.events import Event, StepMetrics

CORA = Path(__file__).parents[3] / "shared" / "data" / "cora.npz"


def test_the_default_command_learns_a_generated_graph(tmp_path: Path) -> None:
    shown = installed_hyrt("run", "train.epochs=2", cwd=tmp_path).stdout
    run = only_run(tmp_path)
    assert run.name.endswith("-graphsage-community")
    found = summary(run)
    assert found["status"] == "finished"
    assert found["metrics"]["test"]["accuracy"] > 0.75  # 16 classes.
    assert f"test accuracy {found['metrics']['test']['accuracy']:.3f} (best validation" in shown
    assert f"run folder runs/{run.name}" in shown
    assert {path.name for path in run.iterdir()} == {
        ".lock", "checkpoints", "config.yaml", "env.json", "metrics.jsonl", "report.html", "summary.json"
    }  # fmt: skip
    kinds = {record["event"] for record in records(run)}
    # Threads may be moved, where the clock suggests it.
    assert kinds - {"balanced"} == {"steps", "epoch_ended", "evaluated", "checkpointed"}
    losses = [loss for record in records(run) for loss in record.get("losses", [])]
    assert len(losses) == found["steps"]
    assert losses[-1] < losses[0]


def test_file_and_overrides_in_any_order(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("data: {source: 'synthetic:tiny'}\nmodel: {kind: gcn}\nseed: 4\n")
    words = ["model.hidden=16", "mine.yaml", "train.lr=1e-2", "train.epochs=1"]
    shown = hyrt("run", *words, "--output", "kept", "--name", "one", cwd=tmp_path).stdout
    assert "gcn 16-16-4" in shown
    config = yaml.safe_load((tmp_path / "kept" / "one" / "config.yaml").read_text())
    assert (config["model"]["hidden"], config["train"]["lr"], config["seed"]) == (16, 0.01, 4)


def test_printed_config_makes_the_same_config(tmp_path: Path) -> None:
    first = hyrt("run", "--print-config", "--model", "gat", "train.lr=0.5", cwd=tmp_path).stdout
    (tmp_path / "all.yaml").write_text(first)
    assert hyrt("run", "all.yaml", "--print-config", cwd=tmp_path).stdout == first
    assert build_config(yaml.safe_load(first)).model.kind == "gat"
    assert not (tmp_path / "runs").exists()


def test_real_data(tmp_path: Path) -> None:
    if not CORA.exists():
        pytest.skip(f"{CORA.name} does not lie beside the checkout")
    words = ["--model", "gcn", "data.normalize=row", "model.dropout=0.5", "data.batch_size=140"]
    words += ["train.epochs=40", "train.lr=0.02", "train.weight_decay=5e-4", "sampler.fanout=[-1,-1]"]
    hyrt("run", "--data", CORA, *words, cwd=tmp_path)
    assert summary(only_run(tmp_path))["metrics"]["test"]["accuracy"] > 0.77


@pytest.mark.parametrize("sampler", ["neighbor", "saint"])
def test_two_trainers(tmp_path: Path, sampler: str) -> None:
    kind = ["sampler.kind=saint", "sampler.roots=100", "sampler.units=3"] if sampler == "saint" else []
    hyrt("run", *TINY, *kind, "--devices", "cpu:0,cpu:1", "balance.policy=static", cwd=tmp_path)
    steps = [record for record in records(only_run(tmp_path)) if record["event"] == "steps"]
    shares = {"cpu:0": 128, "cpu:1": 128} if sampler == "neighbor" else {"cpu:0": 2, "cpu:1": 1}
    assert steps[0]["split"] == shares


def test_python_m_hyrt_is_hyrt(tmp_path: Path) -> None:
    outputs = [
        subprocess.run([*start, "run", "--help"], cwd=tmp_path, env=environment(), capture_output=True).stdout
        for start in ([str(HYRT)], [sys.executable, "-m", "hyrt"])
    ]
    assert outputs[0]
    assert outputs[0] == outputs[1]


def test_help_and_import_wait_for_nothing_heavy() -> None:
    code = (
        "import sys, hyrt\n"
        "def check(what):\n"
        "    heavy = {'torch', 'numba', 'numpy', 'scipy'} & set(sys.modules)\n"
        "    assert not heavy, f'{what}: {heavy}'\n"
        "check('import hyrt')\n"
        "from hyrt.cli.commands import app\n"
        "for words in ('', 'run', 'eval', 'infer', 'data', 'data info'):\n"
        "    print('\\f' + words)\n"
        "    try:\n        app([*words.split(), '--help'])\n"
        "    except SystemExit as end:\n        assert not end.code\n"
        "    check(words)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    _, *pages = done.stdout.split("\f")
    assert len(pages) == 6
    for page in pages:
        words = page.splitlines()[0]
        assert "Usage: " in page
        assert ("Example" in page) == (words not in ("", "data")), words


def test_version(tmp_path: Path) -> None:
    import hyrt as package

    assert installed_hyrt("--version", cwd=tmp_path).stdout == f"hyrt {package.__version__}\n"


def test_output_that_is_no_terminal_is_plain(tmp_path: Path) -> None:
    shown = hyrt("run", *TINY, cwd=tmp_path).stdout
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert [line.split("  ")[0] for line in shown.splitlines() if line.startswith("epoch")] == [
        "epoch 1/2",
        "epoch 2/2",
    ]
    assert len(hyrt("run", *TINY, "--quiet", cwd=tmp_path).stdout.splitlines()) == 2


def test_output_on_a_terminal_is_redrawn(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(HYRT), "run", *TINY], cwd=tmp_path, env=environment(TERM="xterm"), stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # Linux reports the end of a terminal so.
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait(60) == 0
    shown = b"".join(parts)
    assert b"\x1b[?25l" in shown
    assert shown.count(b"\x1b[?25h") >= shown.count(b"\x1b[?25l")  # The cursor is back.
    assert "best validation" in shown.decode()


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [str(HYRT), "run", *TINY],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline().startswith(b"hyrt ")
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(90), errors) == (0, b"")
    assert summary(only_run(tmp_path))["status"] == "finished"


def test_a_run_without_standard_output(tmp_path: Path) -> None:
    command = f"{HYRT} run {' '.join(TINY)} --name run >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert summary(tmp_path / "runs" / "run")["status"] == "finished"


def test_simulated_devices_are_told_at_the_end(tmp_path: Path) -> None:
    shown = hyrt("run", *TINY, "--devices", "null", "--quiet", cwd=tmp_path).stdout
    assert shown.splitlines()[0].endswith("per epoch · on simulated devices")


@pytest.mark.parametrize(("kept", "place"), [((), None), (("test",), "(epoch 2)")])
def test_data_without_validation_vertices(tmp_path: Path, kept: tuple[str, ...], place: str | None) -> None:
    hyrt("data", "generate", "tiny", "tiny.npz", cwd=tmp_path)
    arrays = dict(np.load(tmp_path / "tiny.npz"))
    for split in {"val", "test"} - set(kept):
        arrays[f"{split}_mask"] = np.zeros_like(arrays[f"{split}_mask"])
    np.savez(tmp_path / "tiny.npz", **arrays)
    shown = hyrt("run", *TINY[2:], "--data", "tiny.npz", cwd=tmp_path).stdout
    assert "best validation" not in shown
    last = shown.splitlines()[-2]
    if place is None:
        assert "no validation or test vertices" in shown
        assert last.endswith(" per epoch")
        assert "·" not in last
    else:
        assert last.startswith("test accuracy 0.")
        assert place in last


def test_data_commands(tmp_path: Path) -> None:
    hyrt("data", "generate", "tiny", "tiny.npz", cwd=tmp_path)
    facts = json.loads(hyrt("data", "info", "tiny.npz", "--json", cwd=tmp_path).stdout)
    assert facts["vertices"] == 2000
    hyrt("data", "convert", "tiny.npz", "folder", cwd=tmp_path)
    losses = []
    for source in (tmp_path / "tiny.npz", tmp_path / "folder", "synthetic:tiny"):
        heard: list[Event] = []
        package.train(source, emit=heard.append, train={"epochs": 1}, data={"batch_size": 256})
        losses.append([event.losses for event in heard if isinstance(event, StepMetrics)])
    assert losses[0] == losses[1] == losses[2]
