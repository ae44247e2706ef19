"""`hyrt run` on labels of 0 and 1: the objective is chosen and said, and every later command knows it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from end_to_end.terminal import hyrt, summary
from in_process import refused

from hyrt.graph.formats.convert import Conversion, convert


def test_labels_of_zero_and_one_from_the_first_command_to_the_last(tmp_path: Path) -> None:
    convert(Conversion("synthetic:tiny", tmp_path / "tiny.npz"), lambda text: None)
    with np.load(tmp_path / "tiny.npz") as file:
        arrays = dict(file)
    classes = arrays["labels"]
    arrays["labels"] = np.stack([classes == 0, classes < 2, classes == 3], axis=1).astype(np.int8)
    np.savez(tmp_path / "flags.npz", **arrays)
    words = ("--data", "flags.npz", "data.batch_size=256", "train.epochs=3", "train.class_weights=balanced")
    shown = hyrt("run", *words, "--name", "flags", cwd=tmp_path).stdout
    assert "3 labels of 0 and 1" in shown
    assert "-3 · multilabel · fan-out" in shown
    assert "val micro F1 0." in shown
    run = tmp_path / "runs" / "flags"
    metrics = summary(run)["metrics"]
    assert metrics["val"]["micro_f1"] > 0.6
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("train_micro_f1" in line for line in lines)
    found = json.loads(hyrt("eval", run, "--json", cwd=tmp_path).stdout)
    assert found["metrics"] == metrics
    hyrt("infer", run, "-o", "c.npy", "--output-kind", "classes", "--vertices", "test", cwd=tmp_path)
    predicted, test = np.load(tmp_path / "c.npy"), arrays["test_mask"].reshape(len(classes), -1)[:, 0]
    wanted = arrays["labels"][test]
    assert predicted.dtype == np.int8
    hits = np.count_nonzero(predicted & wanted)
    assert 2 * hits / (predicted.sum() + wanted.sum()) == metrics["test"]["micro_f1"]
    assert "micro" in (run / "report.html").read_text()
    told = refused("run", "--data", "flags.npz", "train.objective=classification", cwd=tmp_path)
    assert "remove train.objective to use multilabel, or convert the labels" in told
