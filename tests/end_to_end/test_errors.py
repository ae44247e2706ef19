"""An error is one line, with exit code 2 (1 where it is the machine's fault), and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import numpy as np
import pytest
from end_to_end.terminal import HYRT, TINY, environment, hyrt, installed_hyrt, summary
from in_process import refused

from hyrt.graph.formats.convert import Conversion, convert


def test_an_error_is_one_line(tmp_path: Path) -> None:
    done = installed_hyrt("run", "train.epoch=5", cwd=tmp_path, code=2)
    assert done.stderr == "error: unknown setting 'train.epoch': did you mean 'train.epochs'?\n"
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train.epoch=5"], "unknown setting 'train.epoch': did you mean 'train.epochs'?"),
        (["train.epochs=none"], "setting train.epochs='none'"),
        (["no.yaml"], "no.yaml: no such settings file"),
        (["--model", "gni"], "unknown model.kind 'gni' (did you mean 'gin'?)"),
        (["--resume", "nothing"], "nothing does not exist"),
        (["--data", ""], "--data is empty: set a value, or remove it"),
        (["data.source=''"], "the dataset name is empty: use a .npz file"),
        (["--resume", "."], "is not the folder of a run"),
        (["--data", "nothing.npz"], "nothing.npz: no such file or folder"),
        ([*TINY, "--devices", "cpu,cuda:99"], "cuda:99 is not available ("),
        ([*TINY, "--devices", "cpu:99"], "cpu:99 is not available"),
        ([*TINY, "train.optimizer=Adamm"], "train.optimizer='Adamm' is not in torch.optim"),
        ([*TINY, "train.metric=roc_auc"], "needs two classes"),
        ([*TINY, "--name", "../out"], "run name '../out'"),
        ([*TINY, "--name", "a\nb"], "run name 'a\\nb'"),
        (["ok.npz"], "ok.npz is a dataset, not a settings file: write --data ok.npz"),
        (["synthetic:tiny"], "write --data synthetic:tiny"),
    ],
)
def test_wrong_words(words: list[str], message: str, tmp_path: Path) -> None:
    assert message in refused("run", *words, cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--patience", "5"], "--patience is not an option of hyrt run: write train.patience=5"),
        (["run", "--num-epochs=5"], "--num-epochs is not an option of hyrt run: did you mean --epochs?"),
        (["run", "--epochs", "five"], "setting train.epochs='five' must be an integer"),
        (["run", "--lr="], "--lr is empty: set a value, or remove it"),
        (["run", "--seed", "1", "--seed", "2"], "--seed is specified more than once: specify it once"),
        (["predict", "--learning-rate", "0.01"], "of hyrt predict: write train.lr=0.01"),
        (["run", "--hidden-dim", "64"], "did you mean --hidden?"),
        (["run", "--weight-decay", "1e-4"], "write train.weight_decay=1e-4"),
        (["run", "--fanout", "25,10"], "write sampler.fanout='[25,10]'"),
        (["run", "--sampler", "saint"], "write sampler.kind=saint"),
        (["run", "--data.split", "3"], "write data.split=3"),
        (["fpga", "explore", "--patience"], "of hyrt fpga explore: write train.patience=..."),
        (
            ["run", "--train", "3"],
            "use --help to list the options, and `hyrt run --print-config` to list the settings",
        ),
        (["run", "--device", "cpu:0"], "--device is not an option of hyrt run: did you mean --devices?"),
        (
            ["report", "--epochs", "5"],
            "--epochs is not an option of hyrt report: use --help to list the options",
        ),
        (
            ["run", "--devices", "cpu:0", "--devices", "cpu:1"],
            "specify it once, with names separated by commas",
        ),
        (
            ["infer", "a", "-o", "x", "--output", "y"],
            "--output or -o is specified more than once: specify it once",
        ),
    ],
)
def test_wrong_options(words: list[str], message: str, tmp_path: Path) -> None:
    assert message in refused(*words, cwd=tmp_path)


def test_an_option_that_other_programs_have_and_a_flag_twice(tmp_path: Path) -> None:
    assert "-x" in hyrt("run", "-x", "5", cwd=tmp_path, code=2).stderr
    assert hyrt("run", "--print-config", "--print-config", cwd=tmp_path).stdout.startswith("seed: 0")


def test_the_traceback_is_there_when_asked_for(tmp_path: Path) -> None:
    words = [str(HYRT), "run", "train.epoch=5"]
    done = subprocess.run(
        words, cwd=tmp_path, env=environment(HYRT_TRACEBACK="1"), capture_output=True, text=True
    )
    assert "Traceback" in done.stderr


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "tiny.npz"
    path.parent.mkdir()
    convert(Conversion("synthetic:tiny", path), lambda line: None)
    return path


def test_broken_data(tiny: Path, tmp_path: Path) -> None:
    arrays = dict(np.load(tiny))
    arrays["indices"][100] = 1_000_000
    np.savez(tiny, **arrays)
    message = refused("run", "--data", tiny, cwd=tmp_path)
    assert "tiny.npz" in message
    assert "'indices'" in message
    assert "1000000 at position 100" in message
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_truncated_and_flipped_files(tiny: Path, tmp_path: Path) -> None:
    whole = tiny.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 0x10
    for data in (whole[: len(whole) // 2], bytes(flipped)):
        tiny.write_bytes(data)
        assert "tiny.npz" in refused("run", "--data", tiny, cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def _small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: the checkpoint does not fit, the records do."""
    hyrt("run", *TINY, "--output", "before", cwd=tmp_path)  # Compiled code is written to a cache once.
    done = subprocess.run(
        [str(HYRT), "run", *TINY, "--name", "run"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=_small_files_only,
    )
    assert done.returncode == 1, done.stderr
    assert "the checkpoint of step 5" in done.stderr
    assert "Traceback" not in done.stderr
    run = tmp_path / "runs" / "run"
    assert summary(run)["status"] == "failed"
    assert "checkpoint of step 5" in summary(run)["error"]
    assert not list((run / "checkpoints").iterdir())


def test_converted_data_that_does_not_fit_the_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [str(HYRT), "data", "generate", "tiny", "tiny.npz"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=150,
        preexec_fn=_small_files_only,
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (1, []), done.stderr
    assert "tiny.npz cannot be written" in done.stderr


def test_an_output_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    assert "out is a file: set --output to a folder" in refused("run", *TINY, "--output", "out", cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o500)
    message = refused("run", *TINY, "--output", "out", cwd=tmp_path, code=1)
    assert "out/" in message
    assert "cannot be written" in message


def test_diverging(tmp_path: Path) -> None:
    done = hyrt("run", *TINY, "train.optimizer=SGD", "train.lr=1e30", "--name", "run", cwd=tmp_path, code=1)
    assert "not finite" in done.stderr
    assert summary(tmp_path / "runs" / "run")["status"] == "failed"


def test_stalling(tmp_path: Path) -> None:
    """With hardly any patience the guard ends even a healthy run, and says where everything was."""
    words = ["--data", "synthetic:community", "sampler.fanout=[-1,-1]", "data.batch_size=5000"]
    words += ["model.hidden=64", "runtime.stall_timeout_s=0.05", "--name", "run"]
    done = hyrt("run", *words, cwd=tmp_path, code=1)
    assert "nothing moved for 0.05 s" in done.stderr
    assert "runs/run/stacks.txt" in done.stderr
    assert "thread hyrt.propagate" in (tmp_path / "runs" / "run" / "stacks.txt").read_text()
