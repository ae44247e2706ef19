"""`hyrt run` for links, from the first command to the last."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from end_to_end.terminal import hyrt, summary
from in_process import refused, run_here

import hyrt as package
from hyrt.graph.formats.convert import Conversion, convert


def test_links_from_the_first_command_to_the_last(tmp_path: Path) -> None:
    convert(Conversion("synthetic:tiny", tmp_path / "tiny.npz"), lambda text: None)
    words = ("--data", "tiny.npz", "train.objective=links", "links.decoder=distmult", "train.epochs=2")
    shown = hyrt("run", *words, "--name", "links", "--seed", "3", cwd=tmp_path).stdout
    assert " links to train on, " in shown
    assert " · links · fan-out" in shown
    assert "val ROC AUC 0." in shown
    run = tmp_path / "runs" / "links"
    metrics = summary(run)["metrics"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("train_links_above" in line for line in lines)
    assert "roc_auc" in (run / "report.html").read_text()
    found = json.loads(hyrt("eval", run, "--json", cwd=tmp_path).stdout)
    assert found["metrics"] == metrics
    with np.load(run / "links.npz") as file:
        test, others = file["test"], file["test_neg"]
    np.save(tmp_path / "pairs.npy", np.concatenate([test, others]))
    run_here("infer", run, "-o", "scores.npy", "--links", "pairs.npy", cwd=tmp_path)
    scores = np.load(tmp_path / "scores.npy")
    above = scores[: len(test), None] > scores[None, len(test) :]
    assert abs(above.mean() - metrics["test"]["roc_auc"]) < 1e-3
    # A pair's score is what the embeddings and the decoder's weights make of it.
    run_here("infer", run, "-o", "rows.npy", cwd=tmp_path)
    rows = np.load(tmp_path / "rows.npy")
    relation = package.load_run(run).model.head.relation.detach().numpy()
    wanted = np.sum(rows[test[:, 0]] * relation * rows[test[:, 1]], axis=1)
    assert np.allclose(scores[: len(test)], wanted, rtol=1e-4, atol=1e-4)
    told = refused("infer", run, "-o", "c.npy", "--output-kind", "classes", cwd=tmp_path)
    assert "the run predicts links: use --links PAIRS.npy" in told
