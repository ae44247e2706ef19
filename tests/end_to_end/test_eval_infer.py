from __future__ import annotations

import csv
import errno
import json
import os
import re
import stat
from pathlib import Path

import numpy as np
import pytest
from end_to_end.terminal import TINY, hyrt, summary
from in_process import refused, run_here
from sklearn.metrics import f1_score

import hyrt as package
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.metadata import write_names


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    hyrt("run", *TINY, "train.epochs=4", "--name", "run", cwd=folder)
    return folder / "runs" / "run"


def test_eval_repeats_the_summary(run: Path, tmp_path: Path) -> None:
    found = json.loads(hyrt("eval", run, "--json", cwd=tmp_path).stdout)
    assert found["mode"] == "full"
    for split, values in summary(run)["metrics"].items():
        assert found["metrics"][split] == pytest.approx(values, rel=1e-6)
    text = hyrt("eval", run, "--mode", "sampled", cwd=tmp_path).stdout
    assert "sampled" in text
    assert "test  accuracy 0." in text


def test_other_data_need_not_have_the_metric_that_chose_the_epoch(tmp_path: Path) -> None:
    words = ("--data", "synthetic:tiny,classes=2", "train.metric=roc_auc", "train.epochs=1", "--name", "two")
    hyrt("run", *words, "--quiet", cwd=tmp_path)
    convert(Conversion("synthetic:tiny,classes=2", tmp_path / "one.npz"), print)
    with np.load(tmp_path / "one.npz") as file:
        arrays = dict(file)
    # The area under the curve is of two classes.
    arrays["labels"][arrays["val_mask"].reshape(len(arrays["labels"]), -1)[:, 0]] = 0
    np.savez(tmp_path / "one.npz", **arrays)
    done = hyrt("eval", "runs/two", "--data", "one.npz", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)["metrics"]
    assert "roc_auc" not in found["val"]
    assert found["val"]["accuracy"] <= 1


def test_other_data_have_other_splits(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    convert(Conversion("synthetic:tiny,seed=7", tmp_path / "plain.npz"), print)
    with np.load(tmp_path / "plain.npz") as file:
        arrays = dict(file)
    labels, parts = arrays["labels"], np.random.default_rng(4).integers(0, 5, (2000, 3))
    columns = {f"{name}_mask": parts == part for part, name in enumerate(("train", "val", "test"))}
    columns["test_mask"][:, 1] = False
    np.savez(tmp_path / "many.npz", **{**arrays, **columns})
    words = ("--data", "many.npz")
    run_here("infer", run, "-o", "all.npy", *words, cwd=tmp_path)
    right = np.load(tmp_path / "all.npy").argmax(1) == labels
    capsys.readouterr()
    for split in (None, 0, 2):
        chosen = [] if split is None else ["--split", str(split)]
        run_here("eval", run, *words, *chosen, "--json", cwd=tmp_path)
        found = json.loads(capsys.readouterr().out)["metrics"]
        for name in ("val", "test"):
            wanted = right[columns[f"{name}_mask"][:, split or 0]].mean()
            assert found[name]["accuracy"] == pytest.approx(wanted)
    run_here("eval", run, *words, "--split", "1", cwd=tmp_path)
    assert "test  the dataset has no test vertices in split 1" in capsys.readouterr().out
    run_here("infer", run, "-o", "c.npy", *words, "--vertices", "test", "--split", "2", cwd=tmp_path)
    assert len(np.load(tmp_path / "c.npy")) == columns["test_mask"][:, 2].sum()
    told = "many.npz has no split 3, only 3 splits: set --split, from 0"
    assert told in refused("eval", run, *words, "--split", "3", cwd=tmp_path)
    assert "--split has no effect without --vertices train, val or test" in refused(
        "infer", run, "-o", "d.npy", *words, "--split", "2", cwd=tmp_path
    )
    settings = run / "config.yaml"
    before = settings.read_text()
    settings.write_text(re.sub(r"(?m)^  split: 0$", "  split: 2", before))
    told = "plain.npz has no split 2, the split of the run, only 1 split: set --split, from 0"
    try:
        assert told in refused("eval", run, "--data", "plain.npz", cwd=tmp_path)
        run_here("eval", run, "--data", "plain.npz", "--split", "0", cwd=tmp_path)
    finally:
        settings.write_text(before)
    np.savez(tmp_path / "none.npz", **{key: arrays[key] for key in ("indptr", "indices", "features")})
    assert "none.npz has no labels that can be compared with the run's outputs (4 classes): add" in refused(
        "eval", run, "--data", "none.npz", cwd=tmp_path
    )


def test_infer_agrees_with_the_summary(run: Path, tmp_path: Path) -> None:
    graph = package.load("synthetic:tiny")
    test = graph.split("test", 0)
    shown = hyrt("infer", run, "-o", "all.npy", cwd=tmp_path).stdout
    assert "scores 2,000 x 4" in shown
    scores = np.load(tmp_path / "all.npy")
    assert scores.dtype == np.float32
    predicted = scores[test].argmax(1)
    expected = summary(run)["metrics"]["test"]
    assert np.mean(predicted == graph.labels[test]) == pytest.approx(expected["accuracy"])
    assert f1_score(graph.labels[test], predicted, average="macro") == pytest.approx(expected["macro_f1"])

    run_here("infer", run, "-o", "test.npy", "--output-kind", "classes", "--vertices", "test", cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "test.npy"), predicted)
    assert np.load(tmp_path / "test.npy").dtype == np.int32
    run_here("infer", run, "-o", "hidden.npy", "--output-kind", "embeddings", cwd=tmp_path)
    assert np.load(tmp_path / "hidden.npy").shape == (2000, 128)

    wanted = np.array([7, 3, 3, 1999])
    np.save(tmp_path / "wanted.npy", wanted)
    run_here("infer", run, "-o", "some.npy", "--vertices", "wanted.npy", cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "some.npy"), scores[wanted], rtol=1e-5, atol=1e-6)


def test_a_table_has_names(run: Path, tmp_path: Path) -> None:
    """Of vertices in another order, too; the classes of a run without names stay numbers."""
    convert(Conversion("synthetic:tiny", tmp_path / "plain"))
    names = [f"vertex, {number}" for number in range(2000)]
    write_names(tmp_path / "plain" / "ids.csv", ["id"], ([name] for name in names))
    write_names(tmp_path / "plain" / "classes.csv", ["class"], (["red"], ["green"], ["blue"], ["grey"]))
    convert(Conversion(str(tmp_path / "plain"), tmp_path / "named.npz", order="degree"))
    np.save(tmp_path / "some.npy", np.array([7, 3, 1999, 3]))
    run_here("infer", run, "-o", "scores.npy", "--data", "plain", cwd=tmp_path)
    scores = np.load(tmp_path / "scores.npy")

    def table(*words: str) -> list[list[str]]:
        run_here("infer", run, "-o", "out.csv", "--force", *words, cwd=tmp_path)
        return list(csv.reader((tmp_path / "out.csv").read_text().splitlines()))

    found = table("--data", "named.npz", "--output-kind", "classes")
    assert found == [["id", "class"], *map(list, zip(names, scores.argmax(1).astype(str), strict=True))]
    found = table("--data", "named.npz", "--vertices", "some.npy")
    assert found[0] == ["id", "0", "1", "2", "3"]
    assert [row[0] for row in found[1:]] == ["vertex, 7", "vertex, 3", "vertex, 1999", "vertex, 3"]
    rows = np.array([row[1:] for row in found[1:]], np.float32)
    np.testing.assert_allclose(rows, scores[[7, 3, 1999, 3]], rtol=1e-5, atol=1e-6)
    assert table("--vertices", "some.npy", "--output-kind", "classes")[1][0] == "7"
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == ["out.csv"]
    (tmp_path / "plain" / "ids.csv").write_text("id\na\n")
    message = refused("infer", run, "-o", "x.csv", "--data", "plain", cwd=tmp_path)
    assert "ids.csv has fewer lines than the graph has vertices" in message
    assert not (tmp_path / "x.csv").exists()


def test_infer_refuses(run: Path, tmp_path: Path) -> None:
    (tmp_path / "there.npy").write_text("mine")
    assert "--force" in refused("infer", run, "-o", "there.npy", cwd=tmp_path)
    assert (tmp_path / "there.npy").read_text() == "mine"
    message = refused("infer", run, "-o", "x.npy", "--output-kind", "embedding", cwd=tmp_path)
    assert message == "--output-kind embedding must be scores, classes or embeddings"
    message = refused("infer", run, "-o", "x.npy", "--vertices", "foo", cwd=tmp_path)
    assert message.endswith(
        "--vertices foo does not exist: use all, train, val, test or a .npy file of vertex numbers"
    )
    np.save(tmp_path / "far.npy", [0, 5000])
    message = refused("infer", run, "-o", "x.npy", "--vertices", "far.npy", cwd=tmp_path)
    assert "far.npy: 5000 at position 1 is not below the vertex count 2,000" in message
    words = ["--data", "synthetic:tiny,features=8"]
    message = refused("infer", run, "-o", "x.npy", *words, cwd=tmp_path)
    assert "found 8 columns, but the run was trained with 16: use the same columns" in message
    np.save(tmp_path / "far.npy", [3, -1])
    message = refused("infer", run, "-o", "x.npy", "--vertices", "far.npy", cwd=tmp_path)
    assert "far.npy: -1 at position 1 is below 0" in message
    assert {path.name for path in tmp_path.iterdir()} == {"there.npy", "far.npy"}


@pytest.mark.parametrize("shape", ["(4611686018427387904,)", "(9223372036854775808000,)", "(1099511627776,)"])
def test_a_header_of_more_numbers_than_there_are(run: Path, tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    (tmp_path / "huge.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    message = refused("infer", run, "-o", "x.npy", "--vertices", "huge.npy", cwd=tmp_path)
    assert message.startswith("--vertices huge.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["huge.npy"]


def test_infer_replaces_regular_files_only(run: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("fifo")
    (tmp_path / "loop").symlink_to("loop")
    for name, kind in (("fifo", "special"), ("folder", "folder"), ("link", "special"), ("loop", "special")):
        message = refused("infer", run, "-o", name, "--force", cwd=tmp_path)
        assert message.startswith(f"{name} is a {kind}")
    assert stat.S_ISFIFO((tmp_path / "fifo").stat().st_mode)
    assert {path.name for path in tmp_path.iterdir()} == {"fifo", "folder", "link", "loop"}


def test_infer_on_a_full_disk_names_the_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hyrt.inference.output_rows.infer_layerwise", full)
    assert refused("infer", run, "-o", "scores.npy", cwd=tmp_path, code=1) == (
        "scores.npy cannot be written: No space left on device. Free space, or choose another --output."
    )


def test_infer_writes_through_a_link(run: Path, tmp_path: Path) -> None:
    (tmp_path / "link.npy").symlink_to("folder/file.npy")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file.npy").touch()
    hyrt("infer", run, "-o", "link.npy", "--output-kind", "classes", "--force", cwd=tmp_path)
    assert (tmp_path / "link.npy").is_symlink()
    assert np.load(tmp_path / "folder" / "file.npy").shape == (2000,)
