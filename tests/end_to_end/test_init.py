"""`hyrt init`: the file that it writes trains, and says what the data asks for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from end_to_end.terminal import hyrt, summary
from in_process import refused, run_here

from hyrt.config import load_settings
from hyrt.graph import open_graph


def one_sided(folder: Path) -> Path:
    """A small graph with two splits, in which nine of ten labels are of class 0."""
    graph = open_graph("synthetic:tiny,vertices=300")
    labels = np.where(np.arange(300) % 10 == 0, 1, 0).astype(np.int16)
    # Of every ten, one vertex of class 1 and others of class 0 are in each part of both splits.
    group = np.arange(300) // 10 % 3
    masks = {
        f"{name}_mask": np.stack([(group + shift) % 3 == number for shift in (0, 1)], axis=1)
        for number, name in enumerate(("train", "val", "test"))
    }
    path = folder / "mine.npz"
    np.savez(
        path,
        indptr=graph.topology.indptr,
        indices=graph.topology.indices,
        labels=labels,
        features=np.asarray(graph.features.values),
        **masks,
    )
    return path


def test_the_file_trains(tmp_path: Path) -> None:
    one_sided(tmp_path)
    words = ("--data", "mine.npz", "--model", "gcn", "model.hidden=8", "train.epochs=2")
    told = hyrt("init", *words, cwd=tmp_path).stdout
    assert told == "wrote hyrt.yaml. Edit it, then run: hyrt run hyrt.yaml\n"
    text = (tmp_path / "hyrt.yaml").read_text()
    assert "300" in text
    assert "One class has 90% of the labels" in text
    assert "consider train.metric: roc_auc, or train.class_weights: balanced." in text
    assert "There are 2 splits: use --splits all to train on each of them." in text
    (tmp_path / "hyrt.yaml").write_text(text.replace("  # clip_norm: 0.0", "  clip_norm: 1.5"))
    hyrt("run", "hyrt.yaml", "--name", "run", cwd=tmp_path)
    ran = load_settings(tmp_path / "runs" / "run" / "config.yaml")
    assert summary(tmp_path / "runs" / "run")["status"] == "finished"
    assert (ran["model"]["hidden"], ran["train"]["epochs"], ran["train"]["clip_norm"]) == (8, 2, 1.5)


def test_the_number_of_epochs_is_what_a_run_would_take(tmp_path: Path) -> None:
    run_here("init", "--data", "synthetic:tiny", "--batch-size", "100", cwd=tmp_path)
    run_here("init", "--data", "synthetic:tiny", "--full-graph", "-o", "whole.yaml", cwd=tmp_path)
    targets = len(open_graph("synthetic:tiny").split("train", 0))
    steps = -(-targets // 100)
    assert load_settings(tmp_path / "hyrt.yaml")["train"]["epochs"] == -(-400 // steps)
    whole = load_settings(tmp_path / "whole.yaml")
    assert (whole["sampler"]["kind"], whole["train"]["epochs"]) == ("full", 400)


def test_a_file_that_exists_stays(tmp_path: Path) -> None:
    kept = tmp_path / "hyrt.yaml"
    kept.write_text("seed: 7\n")
    message = refused("init", "--data", "synthetic:tiny", cwd=tmp_path)
    assert message == "hyrt.yaml already exists: choose another --output, or add --force"
    assert kept.read_text() == "seed: 7\n"
    run_here("init", "--data", "synthetic:tiny", "--force", cwd=tmp_path)
    assert load_settings(kept)["data"]["source"] == "synthetic:tiny"


def test_wrong_words_leave_nothing_behind(tmp_path: Path) -> None:
    assert "nothing.npz: no such file or folder" in refused("init", "--data", "nothing.npz", cwd=tmp_path)
    assert "did you mean 'gin'" in refused("init", "--model", "gni", cwd=tmp_path)
    assert "no/where does not exist" in refused("init", "-o", "no/where/a.yaml", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_typed_graph_is_given_a_model_for_its_types(tmp_path: Path) -> None:
    run_here("init", "--data", "synthetic:hetero,vertices=300", cwd=tmp_path)
    assert load_settings(tmp_path / "hyrt.yaml")["model"]["kind"] == "rgcn"


def test_devices_of_no_kind_are_refused_and_those_of_other_machines_are_not(tmp_path: Path) -> None:
    message = refused("init", "--data", "synthetic:tiny", "--devices", "gpu:0", cwd=tmp_path)
    assert message.startswith("unknown device kind 'gpu' (did you mean 'cuda'?)")
    assert "use kind or kind:number" in refused("init", "--devices", "cuda:first", cwd=tmp_path)
    assert not list(tmp_path.iterdir())
    run_here("init", "--data", "synthetic:tiny", "--devices", "cuda:7", cwd=tmp_path)
    assert "cuda:7" in (tmp_path / "hyrt.yaml").read_text()
