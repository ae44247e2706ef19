"""What a run has fitted is used again on other data, beside a computation in float64 by numpy."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from in_process import run_here

import hyrt
from hyrt.errors import CheckpointError, DataError, RunWarning
from hyrt.graph.conform import ScaledRows
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.schema import SPARSE_KEYS
from hyrt.graph.graph import Graph
from hyrt.graph.hetero.dataset import build_hetero_graph, get_edge_lists
from hyrt.graph.metadata import write_names
from hyrt.graph.partition.read_parts import open_part
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.graph.row_source import DenseFeatures, HeteroRows
from hyrt.graph.run_schema import RunSchema, build_run_schema
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.operators.aggregate import aggregate
from hyrt.report.trained_run import TrainedRun, open_trained_run, write_export
from hyrt.training.checkpoint import load_checkpoint, load_newest_checkpoint, save_checkpoint

V, F = 120, 5
COLUMNS = ["age", "balance", "calls", "days", "emails"]


def arrays_of(graph: Graph) -> dict[str, Any]:
    """The arrays of a dataset, with features that need to be scaled."""
    x = graph.features.values.astype(np.float64)  # type: ignore[attr-defined]
    x = x * [1, 50, 0.1, 1, 7] + [3, -100, 0, 5, 1000]
    arrays = {
        "indptr": graph.topology.indptr,
        "indices": graph.topology.indices,
        "labels": graph.labels,
        "features": x.astype(np.float32),
    }
    return arrays | {f"{name}_mask": mask for name, mask in graph.masks.items()}


ARRAYS = arrays_of(random_graph(V, features=F, symmetric=False))


def larger(arrays: dict[str, Any], more: int = 40) -> dict[str, Any]:
    """The same graph without labels and splits, and isolated vertices with large features."""
    x = arrays["features"]
    return {
        "indptr": np.append(arrays["indptr"], np.full(more, arrays["indptr"][-1])),
        "indices": arrays["indices"],
        "features": np.concatenate([x, 1000 * np.abs(x[:more]) + 77]).astype(x.dtype),
    }


def write(arrays: dict[str, Any], path: Path, **names: list[str]) -> Path:
    """A folder with these arrays, and files of names such as `classes=[...]`."""
    path.mkdir()
    for key, array in arrays.items():
        np.save(path / f"{key}.npy", np.ascontiguousarray(array))
    for file, some in names.items():
        rows = [["", name] if file == "columns" else [name] for name in some]
        write_names(path / f"{file}.csv", ["type", "column"] if file == "columns" else [file], rows)
    return path


def train(source: Any, folder: Path, **sections: Any) -> TrainedRun:
    """A run of one epoch, opened again on its data."""
    model = sections.pop("model", {"kind": "graphsage", "hidden": 8})
    sections = {"train": {"epochs": 1}, "balance": {"predict": False}} | sections
    hyrt.train(source, model, folder=folder, **sections)
    run = hyrt.load_run(folder, graph=source)
    saved = load_newest_checkpoint(folder / "checkpoints", print).state
    assert saved["edges"] == run.graph.fingerprint.edges
    assert run.graph.fingerprint.find_changes(saved) == []
    return run


def layers_of(run: TrainedRun) -> list[tuple[np.ndarray, np.ndarray]]:
    state = {name: tensor.double().numpy() for name, tensor in run.model.state_dict().items()}
    count = sum(name.endswith("weight") for name in state)
    return [(state[f"layers.{i}.weight"], state[f"layers.{i}.bias"]) for i in range(count)]


def graphsage(run: TrainedRun, arrays: dict[str, Any], x: np.ndarray) -> np.ndarray:
    """[V, classes] float64: means over neighbours beside the own row, times the weights."""
    counts = np.diff(arrays["indptr"])
    adjacency = np.zeros((len(counts), len(counts)))
    adjacency[np.repeat(np.arange(len(counts)), counts), arrays["indices"]] = 1
    layers = layers_of(run)
    for number, (weight, bias) in enumerate(layers):
        means = adjacency @ x / np.maximum(counts, 1)[:, None]
        x = np.concatenate([x, means], 1) @ weight.T + bias
        x = x if number == len(layers) - 1 else np.maximum(x, 0)
    return x


def standard(x: np.ndarray, of: np.ndarray) -> np.ndarray:
    """The columns with the means and deviations of others."""
    wide = of.astype(np.float64)
    return (x.astype(np.float64) - wide.mean(0)) / wide.std(0)


def lengths(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True))


def shares(x: np.ndarray) -> np.ndarray:
    return x / x.astype(np.float64).sum(1, keepdims=True)


def plain(x: np.ndarray) -> np.ndarray:
    return x


def test_scaling_is_that_of_the_training_wherever_it_was_set(tmp_path: Path) -> None:
    data, new = write(ARRAYS, tmp_path / "a"), larger(ARRAYS)
    other = write(new, tmp_path / "b")
    x, of = new["features"], ARRAYS["features"]
    hyrt.save(data, tmp_path / "scaled.npz", normalize="standard")
    write_parts(PartitionJob(str(data), tmp_path / "parts", 3, "random", normalize="standard"))
    fitted = {
        "settings": (data, {"normalize": "standard"}, standard(x, of)),
        "loaded": (hyrt.load(data, normalize="standard"), {}, standard(x, of)),
        "converted": (tmp_path / "scaled.npz", {}, standard(x, of)),
        "parts": (tmp_path / "parts", {}, standard(x, of)),
        "twice": (hyrt.load(data, normalize="standard"), {"normalize": "length"}, lengths(standard(x, of))),
        "length": (data, {"normalize": "length"}, lengths(x)),
        "row": (hyrt.load(data, normalize="row"), {}, shares(x)),
        "none": (data, {}, x),
    }
    for name, (source, settings, rows) in fitted.items():
        run = train(source, tmp_path / f"run-{name}", data=settings)
        wanted = graphsage(run, new, rows)
        for graph in (other, hyrt.load(other)):
            found = hyrt.load_run(tmp_path / f"run-{name}", graph=graph).scores()
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(run.scores(), wanted[:V], rtol=1e-4, atol=1e-5, err_msg=name)
    run = tmp_path / "run-settings"
    with pytest.raises(
        DataError, match="features were scaled by 'standard', but the run's features by 'standard' wi"
    ):
        hyrt.load_run(run, graph=hyrt.load(other, normalize="standard"))
    assert hyrt.load_run(run, graph=hyrt.load(data, normalize="standard")).scores().shape == (V, 3)


def test_bags_of_words_are_scaled_as_in_the_training(tmp_path: Path) -> None:
    """One count of 2 in the new data does not switch `auto` off; its columns stand in another order."""
    words = (np.random.default_rng(1).random((V, 6)) < 0.5).astype(np.float32)
    words[:, 0] = 1
    new = words.copy()
    new[3, 4] = 2

    def sparse(x: np.ndarray) -> dict[str, Any]:
        rows, columns = np.nonzero(x)
        values = (columns.astype(np.int32), x[rows, columns], np.array(x.shape))
        pointers = np.concatenate([[0], np.cumsum((x != 0).sum(1))])
        return dict(zip(SPARSE_KEYS, (pointers, *values), strict=True))

    order = [5, 2, 0, 1, 4, 3]
    names = [f"word{i}" for i in range(6)]
    edges = {key: array for key, array in ARRAYS.items() if key != "features"}
    data = write(edges | sparse(words), tmp_path / "a", columns=names)
    other = write(edges | sparse(new[:, order]), tmp_path / "b", columns=[names[i] for i in order])
    run = train(data, tmp_path / "run")
    wanted = graphsage(run, ARRAYS, lengths(new))
    found = hyrt.load_run(tmp_path / "run", graph=other).scores()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    order = [3, 0, 4, 2, 1]
    data = write(ARRAYS, tmp_path / "a", columns=COLUMNS)
    wanted = train(data, tmp_path / "run", data={"normalize": "standard"}).scores()
    names, x = [COLUMNS[i] for i in order], ARRAYS["features"][:, order]
    for form in ("folder", "file", "parts", "graph"):
        other = write(ARRAYS | {"features": x}, tmp_path / form, columns=names)
        source: Any = other
        if form == "file":
            source = tmp_path / "file.npz"
            hyrt.save(other, source)
        elif form == "parts":
            source = tmp_path / "cut"
            write_parts(PartitionJob(str(other), source, 2, "random"))
        elif form == "graph":
            source = hyrt.load(other)
        np.testing.assert_allclose(hyrt.load_run(tmp_path / "run", graph=source).scores(), wanted, atol=1e-5)
    more = write(
        ARRAYS | {"features": np.insert(x, 2, 9.0, 1)},
        tmp_path / "more",
        columns=[*names[:2], "new", *names[2:]],
    )
    with pytest.warns(RunWarning, match="columns that the run was not trained with are ignored: new"):
        found = hyrt.load_run(tmp_path / "run", graph=more).scores()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    renamed = write(ARRAYS, tmp_path / "renamed", columns=["age", "balance", "calls", "days", "mails"])
    with pytest.raises(DataError, match=r"columns differ .* \(missing: emails; new: mails\): add"):
        hyrt.load_run(tmp_path / "run", graph=renamed)
    narrow = write(ARRAYS | {"features": x[:, :4]}, tmp_path / "narrow")
    with pytest.raises(DataError, match="found 4 columns, but the run was trained with 5: use the same col"):
        hyrt.load_run(tmp_path / "run", graph=narrow)
    unnamed = write(ARRAYS, tmp_path / "unnamed")
    order_of_names = "age, balance, calls, days, emails, in this order"
    with pytest.warns(RunWarning, match=f"columns have no names, so they are assumed to be {order_of_names}"):
        found = hyrt.load_run(tmp_path / "run", graph=unnamed).scores()
    np.testing.assert_array_equal(found, wanted)
    train(unnamed, tmp_path / "of unnamed", data={"normalize": "standard"})
    with pytest.warns(RunWarning, match=f"the run's columns have no names, .* {order_of_names}"):
        hyrt.load_run(tmp_path / "of unnamed", graph=data)


def test_edge_features_types_and_weights_are_those_of_the_training(tmp_path: Path) -> None:
    rng, edges = np.random.default_rng(2), len(ARRAYS["indices"])
    values = rng.random((edges, 3)).astype(np.float32)
    data = write(ARRAYS | {"edge_features": values}, tmp_path / "a", edge_columns=["p", "q", "r"])
    wanted = train(data, tmp_path / "gine", model={"kind": "gine", "hidden": 8}).scores()
    other = write(
        ARRAYS | {"edge_features": values[:, [2, 0, 1]]}, tmp_path / "b", edge_columns=["r", "p", "q"]
    )
    np.testing.assert_allclose(hyrt.load_run(tmp_path / "gine", graph=other).scores(), wanted, atol=1e-6)

    types = rng.integers(0, 3, edges).astype(np.int32)
    data = write(ARRAYS | {"edge_type": types}, tmp_path / "c", edge_types=["buys", "likes", "sees"])
    model = {"kind": "ggnn", "hidden": 8, "options": {"edge_types": 3}}
    wanted = train(data, tmp_path / "ggnn", model=model).scores()
    new_types = np.array([2, 0, 1], np.int32)[types]
    other = write(ARRAYS | {"edge_type": new_types}, tmp_path / "d", edge_types=["likes", "sees", "buys"])
    np.testing.assert_allclose(hyrt.load_run(tmp_path / "ggnn", graph=other).scores(), wanted, atol=1e-6)
    new = write(ARRAYS | {"edge_type": types}, tmp_path / "e", edge_types=["buys", "likes", "loves"])
    with pytest.raises(DataError, match="not trained with edges of type loves"):
        hyrt.load_run(tmp_path / "ggnn", graph=new)
    plain = write(ARRAYS | {"edge_type": types}, tmp_path / "f")
    with pytest.warns(
        RunWarning,
        match="edge types have no names, so they are matched by number: 0 as buys, 1 as likes, 2 as sees",
    ):
        found = hyrt.load_run(tmp_path / "ggnn", graph=plain)
    np.testing.assert_array_equal(found.scores(), wanted)
    train(plain, tmp_path / "plain", model=model)
    with pytest.warns(
        RunWarning,
        match="run's edge types have no names, so they are matched by number: likes as 0, sees as 1",
    ):
        hyrt.load_run(tmp_path / "plain", graph=other)

    graph = with_values(random_graph(V, features=F, symmetric=False))
    bare = replace(graph, topology=replace(graph.topology, edge_weights=None, edge_features=None))
    timed = replace(graph, topology=replace(graph.topology, edge_times=np.arange(graph.num_edges)))
    train(graph, tmp_path / "weighted", model={"kind": "gcn", "hidden": 8})
    with pytest.raises(DataError, match="edges have no weights, but the run was trained with edge weights"):
        hyrt.load_run(tmp_path / "weighted", graph=bare)
    wanted = train(bare, tmp_path / "bare", model={"kind": "gcn", "hidden": 8}).scores()
    with pytest.warns(RunWarning, match="edge weights are ignored"):
        opened = hyrt.load_run(tmp_path / "bare", graph=timed)
    np.testing.assert_array_equal(opened.scores(), wanted)
    np.testing.assert_array_equal(opened.graph.topology.edge_times, np.arange(graph.num_edges))


def accuracy(run: TrainedRun, folder: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    run_here("eval", folder, "--data", data, "--json", cwd=data.parent)
    metrics: dict[str, Any] = json.loads(capsys.readouterr().out)["metrics"]
    return metrics


def test_classes_keep_their_names_and_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(ARRAYS, tmp_path / "a", classes=["ant", "bee", "cat"])
    folder = tmp_path / "run"
    hyrt.train(data, {"kind": "graphsage", "hidden": 8}, folder=folder, train={"epochs": 5})
    run = hyrt.load_run(folder, graph=data)
    scores, labels, test = run.scores(), ARRAYS["labels"], ARRAYS["test_mask"]
    right = scores.argmax(1) == labels
    # bee, cat and dog take the numbers 0, 1 and 2: ants of the training are dogs now.
    renamed = ARRAYS | {"labels": np.array([2, 0, 1], np.int16)[labels]}
    other = write(renamed, tmp_path / "b", classes=["bee", "cat", "dog"])
    with pytest.warns(RunWarning, match=r"vertices have classes that the run was not trained with \(dog\)"):
        opened = hyrt.load_run(folder, graph=other)
    np.testing.assert_array_equal(opened.graph.labels, np.where(labels == 0, -1, labels))
    assert (opened.graph.num_outputs, opened.schema.classes) == (3, ("ant", "bee", "cat"))
    np.testing.assert_array_equal(opened.scores(), scores)
    found = accuracy(run, folder, other, capsys)
    assert found["test"]["accuracy"] == pytest.approx(right[test & (labels != 0)].mean())
    for name, what in (("one.csv", data), ("two.csv", other)):
        run_here(
            "infer", folder, "-o", tmp_path / name, "--data", what, "--output-kind", "classes", cwd=tmp_path
        )
    assert (tmp_path / "one.csv").read_text() == (tmp_path / "two.csv").read_text()
    # The same classes in another order.
    turned = write(renamed, tmp_path / "c", classes=["bee", "cat", "ant"])
    found = accuracy(run, folder, turned, capsys)
    assert found["test"]["accuracy"] == pytest.approx(right[test].mean())
    # Numbers are the run's, and a class that nobody has is no gap.
    two = np.where(labels == 1, -1, labels)
    masks = {f"{name}_mask": ARRAYS[f"{name}_mask"] & (two >= 0) for name in ("train", "val", "test")}
    found = accuracy(run, folder, write(ARRAYS | masks | {"labels": two}, tmp_path / "d"), capsys)
    assert found["test"]["accuracy"] == pytest.approx(right[test & (two >= 0)].mean())
    with pytest.warns(
        RunWarning,
        match="the classes have no names, so they are matched by number: 0 as ant, 1 as bee, 2 as cat",
    ):
        opened = hyrt.load_run(folder, graph=tmp_path / "d")
    np.testing.assert_array_equal(opened.graph.labels, two)
    names = ["ant", "bee", "cow", "dog", "eel"]
    five = write(ARRAYS | {"labels": np.where(labels == 2, 4, labels)}, tmp_path / "e", classes=names)
    with pytest.warns(RunWarning, match=r"not trained with \(eel\)"):
        hyrt.load_run(folder, graph=five)


def test_labels_of_every_kind_may_be_missing_or_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    kinds: dict[str, np.ndarray] = {
        "classes": ARRAYS["labels"],
        "flags": rng.integers(0, 2, (V, 4)).astype(np.int8),
        "number": rng.standard_normal(V).astype(np.float32),
        "numbers": rng.standard_normal((V, 2)).astype(np.float32),
    }
    columns = {"flags": ["p", "q", "r", "s"], "numbers": ["x", "y"]}
    data = {
        name: write(ARRAYS | {"labels": labels}, tmp_path / name, classes=columns.get(name, []))
        for name, labels in kinds.items()
    }
    bare = {key: ARRAYS[key] for key in ("indptr", "indices", "features")}
    data["bare"] = write(bare, tmp_path / "bare")
    data["unmasked"] = write(bare | {"labels": ARRAYS["labels"]}, tmp_path / "unmasked")
    data["unlabelled"] = write({k: a for k, a in ARRAYS.items() if k != "labels"}, tmp_path / "unlabelled")
    for name in kinds:
        folder = tmp_path / f"run-{name}"
        wanted = train(data[name], folder).scores()
        for other, source in data.items():
            run_here("infer", folder, "-o", "x.npy", "--data", source, "--force", cwd=tmp_path)
            np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), wanted, err_msg=f"{name} {other}")
    flipped = ARRAYS | {"labels": kinds["flags"][:, [2, 0, 3, 1]]}
    turned = write(flipped, tmp_path / "turned", classes=["r", "p", "s", "q"])
    opened = hyrt.load_run(tmp_path / "run-flags", graph=turned).graph
    np.testing.assert_array_equal(opened.labels, kinds["flags"])


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gat", "gin"])
def test_one_vertex_is_scored(tmp_path: Path, kind: str) -> None:
    data = write(ARRAYS, tmp_path / "a")
    folder = tmp_path / "run"
    train(data, folder, model={"kind": kind, "hidden": 8}, data={"normalize": "standard"})
    alone = {
        "indptr": np.zeros(2, np.int64),
        "indices": np.empty(0, np.int32),
        "features": ARRAYS["features"][7:8],
    }
    # A vertex without edges has the scores that it has beside others.
    beside = alone | {"indptr": np.zeros(3, np.int64), "features": ARRAYS["features"][6:8]}
    found = hyrt.load_run(folder, graph=write(alone, tmp_path / "b")).scores()
    wanted = hyrt.load_run(folder, graph=write(beside, tmp_path / "c")).scores([1])
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    assert found.shape == (1, 3)


@pytest.mark.parametrize("rows", ["int8-columns", "int8", "float16", "bfloat16"])
def test_rounded_features_keep_the_scales_of_the_training(tmp_path: Path, rows: str) -> None:
    data = write(ARRAYS, tmp_path / "a")
    folder = tmp_path / "run"
    wanted = train(data, folder, data={"normalize": "standard", "feature_dtype": rows}).scores()
    other = larger(ARRAYS)
    other["features"][V:] = 3 * other["features"][:40]
    found = hyrt.load_run(folder, graph=write(other, tmp_path / "b")).scores()
    np.testing.assert_allclose(found[:V], wanted, atol=1e-6)
    exported = module_of(hyrt.load_run(folder, graph=data), tmp_path / "out")
    scores = apply(exported, other)
    np.testing.assert_allclose(scores, found, rtol=1e-5, atol=1e-5)


def module_of(run: TrainedRun, folder: Path) -> Any:
    """The module that a run is exported as."""
    write_export(run, folder)
    spec = util.spec_from_file_location("exported", folder / "model.py")
    assert spec is not None
    module: ModuleType = util.module_from_spec(spec)
    assert spec.loader is not None
    sys.modules.pop("exported", None)
    spec.loader.exec_module(module)
    return module.load(folder)


def apply(module: Any, arrays: dict[str, Any], columns: list[str] | None = None) -> np.ndarray:
    ends = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
    edges = torch.from_numpy(np.stack([arrays["indices"].astype(np.int64), ends]))
    x = torch.from_numpy(arrays["features"])
    with torch.no_grad():
        found: np.ndarray = module(
            x if columns is None else module.features.ordered(x, columns), edges
        ).numpy()
    return found


def test_features_that_stay_in_files_are_scaled_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = [1, 0, 4, 2, 3]
    arrays = ARRAYS | {"features": ARRAYS["features"].astype(np.float16)}
    data = write(arrays, tmp_path / "a", columns=COLUMNS)
    wanted = train(data, tmp_path / "run", data={"normalize": "standard"}).scores()
    turned = arrays | {"features": arrays["features"][:, order]}
    other = write(turned, tmp_path / "b", columns=[COLUMNS[i] for i in order])
    monkeypatch.setattr("hyrt.graph.conform.LARGE_BYTES", 100)
    opened = hyrt.load_run(tmp_path / "run", graph=other)
    assert isinstance(opened.graph.features, ScaledRows)
    np.testing.assert_allclose(opened.scores(), wanted, atol=1e-6)


@pytest.mark.parametrize("normalize", ["standard", "length", "row", "none"])
def test_the_exported_module_scales_inside(tmp_path: Path, normalize: str) -> None:
    data = write(ARRAYS, tmp_path / "a", columns=COLUMNS, classes=["ant", "bee", "cat"])
    run = train(data, tmp_path / "run", data={"normalize": normalize})
    module = module_of(run, tmp_path / "out")
    new, order = larger(ARRAYS), [4, 1, 0, 3, 2]
    new["features"] = new["features"][:, order]
    names = [COLUMNS[i] for i in order]
    found = hyrt.load_run(tmp_path / "run", graph=write(new, tmp_path / "b", columns=names)).scores()
    np.testing.assert_allclose(apply(module, new, names), found, rtol=1e-5, atol=1e-5)
    assert module.classes == ["ant", "bee", "cat"]
    with pytest.raises(ValueError, match="columns emails are missing: pass age, balance"):
        apply(module, new, ["a", *names[1:]])
    with pytest.raises(ValueError, match="x has 4 columns, but the model was trained with 5"):
        module(torch.zeros(3, 4), torch.zeros((2, 0), dtype=torch.int64))


def shop(
    order: list[str], *, learned: bool = True, shift: int = 0, empty: str = "", without: str = ""
) -> Graph:
    """Customers buy and see goods of shops; types come in some order."""
    rng = np.random.default_rng(5)
    tables: dict[str, Any] = {
        "customer": (100 * rng.standard_normal((30, 4)) + 5).astype(np.float32),
        "good": rng.standard_normal((20, 3)).astype(np.float32),
        "shop": 6 if learned else rng.standard_normal((6, 2)).astype(np.float32),
    }
    edges = {
        ("customer", "buys", "good"): rng.integers(0, (30, 20), (90, 2)),
        ("good", "bought", "customer"): rng.integers(0, (20, 30), (90, 2)),
        ("shop", "sells", "good"): rng.integers(0, (6, 20), (40, 2)),
    }
    pairs = {
        names: tuple(np.unique(each if names[1] != empty else each[:0], axis=0).T)
        for names, each in edges.items()
        if names[1] != without
    }
    labels = rng.integers(0, 3, 30).astype(np.int16)
    part = rng.integers(0, 3, 30)
    masks = {name: part == number for number, name in enumerate(("train", "val", "test"))}
    turned = list(pairs.items())[shift:] + list(pairs.items())[:shift]
    return build_hetero_graph(
        *("shop", {name: tables[name] for name in order}, dict(turned), labels, masks, "customer"),  # type: ignore[arg-type]
    )


def test_an_exported_typed_module_scales_each_type(tmp_path: Path) -> None:
    graph = shop(["customer", "good", "shop"])
    run = train(graph, tmp_path / "run", model={"kind": "rgcn", "hidden": 8}, data={"normalize": "standard"})
    module = module_of(run, tmp_path / "out")
    assert isinstance(graph.features, HeteroRows)
    tables = zip(("customer", "good"), graph.features.tables, strict=False)
    x = {name: torch.from_numpy(table.values) for name, table in tables}  # type: ignore[union-attr]
    edges = {
        (r.source, r.name, r.destination): torch.from_numpy(np.stack(ends).astype(np.int64))
        for r, ends in get_edge_lists(graph).items()
    }
    with torch.no_grad():
        found = module(x, edges)["customer"].numpy()
    np.testing.assert_allclose(found, run.scores()[:30], rtol=1e-5, atol=1e-5)


def test_every_part_knows_what_the_whole_was_scaled_by(tmp_path: Path) -> None:
    data = write(ARRAYS, tmp_path / "a", columns=COLUMNS, classes=["ant", "bee", "cat"])
    write_parts(PartitionJob(str(data), tmp_path / "parts", 3, "random", normalize="standard"))
    wanted = build_run_schema(hyrt.load(data, normalize="standard")).to_dict()
    assert wanted["tables"][""]["scaling"]
    assert build_run_schema(hyrt.load(tmp_path / "parts")).to_dict() == wanted
    for number in range(3):
        assert build_run_schema(open_part(tmp_path / "parts", number).graph).to_dict() == wanted


@pytest.mark.parametrize("kind", ["rgcn", "hgt", "rgat"])
def test_types_and_relations_in_another_order(tmp_path: Path, kind: str) -> None:
    graph = shop(["customer", "good", "shop"])
    model = {"kind": kind, "hidden": 8} | ({} if kind == "rgcn" else {"heads": 2})
    wanted = train(graph, tmp_path / "run", model=model, data={"normalize": "standard"}).scores()
    turned = shop(["shop", "customer", "good"], shift=2)
    found = hyrt.load_run(tmp_path / "run", graph=turned)
    # Rows come in the order of the data: shops are first there.
    order = np.concatenate([np.arange(50, 56), np.arange(50)])
    np.testing.assert_allclose(found.scores(), wanted[order], atol=1e-5)
    np.testing.assert_array_equal(found.graph.labels[:30], graph.labels[:30])
    with pytest.warns(
        RunWarning, match="has no edges of some relations that the run was trained on: good bought customer"
    ):
        found = hyrt.load_run(tmp_path / "run", graph=shop(["customer", "good", "shop"], without="bought"))
    # All of the relation's edges are missing.
    empty = hyrt.load_run(tmp_path / "run", graph=shop(["customer", "good", "shop"], empty="bought"))
    np.testing.assert_allclose(found.scores(), empty.scores(), atol=1e-5)
    assert np.abs(found.scores() - wanted).max() > 1e-3
    with pytest.raises(DataError, match=r"type 'shop' has features, but the run .* without any"):
        hyrt.load_run(tmp_path / "run", graph=shop(["customer", "good", "shop"], learned=False))
    with pytest.raises(DataError, match="is homogeneous, but the run was trained on a heterogeneous"):
        hyrt.load_run(tmp_path / "run", graph=random_graph(V, features=F))


def test_learned_rows_belong_to_ids(tmp_path: Path) -> None:
    hyrt.save(shop(["customer", "good", "shop"]), tmp_path / "a")
    ids = [("customer", f"c{i}") for i in range(30)] + [("good", f"g{i}") for i in range(20)]
    shops = [f"shop {i}" for i in range(6)]
    write_names(tmp_path / "a" / "ids.csv", ["type", "id"], [*ids, *(("shop", each) for each in shops)])
    model = {"kind": "rgcn", "hidden": 8}
    wanted = train(tmp_path / "a", tmp_path / "run", model=model).scores()
    graph = hyrt.load(tmp_path / "a")
    # The same shops with other numbers.
    order = np.array([4, 2, 0, 5, 1, 3])
    arrays = {key: np.load(tmp_path / "a" / f"{key}.npy") for key in ("indptr", "indices", "edge_type")}
    for key, array in arrays.items():
        assert len(array) in (57, graph.num_edges), key
    place = np.concatenate([np.arange(50), 50 + np.argsort(order)])
    renumbered = {**{path.stem: np.load(path) for path in (tmp_path / "a").glob("*.npy")}}
    renumbered["indices"] = place[arrays["indices"]].astype(np.int32)
    for row in range(56):
        start, stop = arrays["indptr"][row : row + 2]
        part = np.lexsort((renumbered["indices"][start:stop], arrays["edge_type"][start:stop]))
        renumbered["indices"][start:stop] = renumbered["indices"][start:stop][part]
        renumbered["edge_type"][start:stop] = arrays["edge_type"][start:stop][part]
    # Shops have no incoming edges, so their rows need no other place.
    other = write(renumbered, tmp_path / "b")
    named = [("shop", shops[i]) for i in order]
    write_names(other / "ids.csv", ["type", "id"], [*ids, *named])
    found = hyrt.load_run(tmp_path / "run", graph=other).scores()
    np.testing.assert_allclose(found[:50], wanted[:50], atol=1e-5)
    write_names(other / "ids.csv", ["type", "id"], [*ids, *named[:5], ("shop", "corner")])
    with pytest.raises(
        DataError, match=r"1 vertex of type 'shop' without features or a learned embedding \(corner\)"
    ):
        hyrt.load_run(tmp_path / "run", graph=other)


def test_learned_rows_belong_to_original_numbers(tmp_path: Path) -> None:
    """A model of a plain dataset scores it in another order, and the other way round, as exported too."""
    graph = shop(["customer", "good", "shop"])
    hyrt.save(graph, tmp_path / "plain")
    convert(Conversion(str(tmp_path / "plain"), tmp_path / "ordered", order="degree"), lambda text: None)
    numbers = hyrt.load(tmp_path / "ordered").vertices.vertex_ids
    assert numbers is not None
    assert (numbers[50:] != np.arange(50, 56)).any()
    for own, other in itertools.permutations(["plain", "ordered"]):
        wanted = train(tmp_path / own, tmp_path / f"run {own}", model={"kind": "rgcn", "hidden": 8}).scores()
        run = hyrt.load_run(tmp_path / f"run {own}", graph=tmp_path / other)
        np.testing.assert_allclose(run.scores(), wanted, atol=1e-5)
        rows = run.model.state_dict()["input.learned.2.values"]
        saved = hyrt.load_run(tmp_path / f"run {own}", graph=tmp_path / own).model.state_dict()
        place = numbers[50:] - 50 if own == "plain" else np.argsort(numbers[50:])
        assert torch.equal(rows, saved["input.learned.2.values"][torch.from_numpy(place).long()])
    # Earlier versions stored no numbers of a reordered dataset, whose rows are in its order.
    older(tmp_path / "run ordered", ids=None)
    again = hyrt.load_run(tmp_path / "run ordered", graph=tmp_path / "ordered").model.state_dict()
    assert torch.equal(again["input.learned.2.values"], rows[torch.from_numpy(numbers[50:] - 50).long()])


def test_links_of_other_data_all_carry_messages(tmp_path: Path) -> None:
    data = write(ARRAYS, tmp_path / "a")
    objective = {"objective": "links", "epochs": 1}
    run = train(data, tmp_path / "run", data={"normalize": "standard"}, train=objective)
    new = larger(ARRAYS)
    other = write(new, tmp_path / "b")
    wanted = graphsage(run, new, standard(new["features"], ARRAYS["features"]))
    run_here("infer", tmp_path / "run", "-o", "x.npy", "--data", other, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), wanted, rtol=1e-4, atol=1e-4)
    alone = {
        "indptr": np.zeros(2, np.int64),
        "indices": np.empty(0, np.int32),
        "features": new["features"][:1],
    }
    found = hyrt.load_run(tmp_path / "run", graph=hyrt.load(write(alone, tmp_path / "c"))).scores()
    assert found.shape == (1, wanted.shape[1])


def words_of_run(name: str) -> tuple[str, ...]:
    return "balance.predict=false", "train.epochs=1", "--name", name, "--quiet"


def test_training_vertices_in_other_splits_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A warning counts training vertices of the run among test vertices, in any storage and order."""
    part = np.random.default_rng(3).integers(0, 3, (V, 2))
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    data = write(ARRAYS | masks, tmp_path / "a")
    run_here("run", "--data", data, *words_of_run("r"), cwd=tmp_path)
    write(ARRAYS | {key: mask[:, 1] for key, mask in masks.items()}, tmp_path / "second")
    convert(Conversion(str(tmp_path / "second"), tmp_path / "ordered", order="degree"), lambda text: None)
    counts = {n: int(((part[:, 0] == 0) & (part[:, 1] == n)).sum()) for n in (1, 2)}
    texts = [
        f"{counts[n]} of {(part[:, 1] == n).sum()} {word} vertices were training vertices of this run"
        for n, word in ((1, "validation"), (2, "test"))
    ]
    folder = tmp_path / "runs" / "r"
    for words in (("--split", "1"), ("--data", "second"), ("--data", "ordered"), ()):
        capsys.readouterr()
        run_here("eval", folder, *words, cwd=tmp_path)
        shown = capsys.readouterr().err
        assert [text in shown for text in texts] == [bool(words)] * 2, words
    # A run of the second split stores the training vertices of this split.
    run_here("run", "--data", data, "data.split=1", *words_of_run("r1"), cwd=tmp_path)
    counts = {n: int(((part[:, 1] == 0) & (part[:, 0] == n)).sum()) for n in (1, 2)}
    for split, expected in (("0", True), ("1", False)):
        capsys.readouterr()
        run_here("eval", tmp_path / "runs" / "r1", "--split", split, cwd=tmp_path)
        text = f"{counts[2]} of {(part[:, 0] == 2).sum()} test vertices were training vertices of this run"
        assert (text in capsys.readouterr().err) == expected, split
    # Vertices of another graph with the same numbers are others.
    other = {"labels": (ARRAYS["labels"] + 1) % 3, "indptr": ARRAYS["indptr"].clip(0, 20)}
    write(ARRAYS | masks | other | {"indices": ARRAYS["indices"][:20]}, tmp_path / "other")
    run_here("eval", folder, "--data", "other", "--split", "1", cwd=tmp_path)
    assert "training vertices of this run" not in capsys.readouterr().err


def test_changes_of_the_dataset_of_a_run_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Features and masks that were changed in place cause a warning, also for a resumed run."""
    data = write(ARRAYS, tmp_path / "a")
    run_here("run", "--data", data, *words_of_run("r"), cwd=tmp_path)
    folder = tmp_path / "runs" / "r"
    for keys, text in (
        ((), ""),
        (("features",), "a has other features than when"),
        (("val_mask", "test_mask"), "a has other validation or test vertices than when"),
    ):
        for key in keys:
            new = (
                ARRAYS[key][::-1]
                if key == "features"
                else ARRAYS["val_mask" if key[0] == "t" else "test_mask"]
            )
            np.save(data / f"{key}.npy", np.ascontiguousarray(new))
        capsys.readouterr()
        run_here("eval", folder, cwd=tmp_path)
        run_here("infer", folder, "-o", "x.npy", "--force", cwd=tmp_path)
        shown = capsys.readouterr().err
        assert shown.count("warning") == (2 if keys else 0)
        assert shown.count(text) == 2 or not keys
        if text:
            with pytest.warns(RunWarning, match=text):
                hyrt.load_run(folder)
        if keys == ("val_mask", "test_mask"):
            run_here("run", "--resume", folder, "train.epochs=2", "--quiet", cwd=tmp_path)
            assert "other validation or test vertices" in "".join(capsys.readouterr())
        for key in keys:
            np.save(data / f"{key}.npy", ARRAYS[key])


@pytest.mark.parametrize("symmetric", [True, False])
def test_held_out_links_belong_to_vertices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, symmetric: bool
) -> None:
    """The dataset of a run in another order has its held-out links; other edges are split again."""
    arrays = arrays_of(random_graph(V, features=F, symmetric=symmetric))
    data = write(arrays, tmp_path / "a")
    ids = [[f"v{i}"] for i in range(V)]
    write_names(data / "ids.csv", ["id"], ids)
    words = ("balance.predict=false", "train.objective=links", "train.epochs=3", "--name", "r", "--quiet")
    run_here("run", "--data", data, *words, cwd=tmp_path)
    folder = tmp_path / "runs" / "r"
    wanted = hyrt.load_run(folder)
    auc = wanted.metrics["test"]["roc_auc"]
    convert(Conversion(str(data), tmp_path / "ordered", order="degree"), lambda text: None)
    # An import of the same tables with rows in another order, which has ids but no original numbers.
    shuffled = hyrt.load(tmp_path / "ordered")
    numbers = shuffled.vertices.vertex_ids
    assert numbers is not None
    again = write(arrays_of(shuffled), tmp_path / "again")
    np.save(again / "features.npy", arrays["features"][numbers])
    write_names(again / "ids.csv", ["id"], [ids[number] for number in numbers])
    for other in (tmp_path / "ordered", again):
        capsys.readouterr()
        run_here("eval", folder, "--data", other, "--json", cwd=tmp_path)
        shown = capsys.readouterr()
        assert json.loads(shown.out)["metrics"]["test"]["roc_auc"] == pytest.approx(auc, abs=1e-6)
        assert "training links of the run" not in shown.err
        run = hyrt.load_run(folder, graph=other)
        scores = run.scores() if other is not again else run.scores()[np.argsort(numbers)]
        np.testing.assert_allclose(scores, wanted.scores(), rtol=1e-4, atol=1e-2)
    # One edge less.
    stored = {path.stem: np.load(path) for path in again.glob("*.npy")}
    stored["indptr"] = np.minimum(stored["indptr"], len(stored["indices"]) - 1)
    less = write(stored | {"indices": stored["indices"][:-1]}, tmp_path / "less")
    shutil.copy(again / "ids.csv", less)
    run_here("eval", folder, "--data", less, cwd=tmp_path)
    shown = capsys.readouterr().err
    new = open_trained_run(folder, [f"data.source={less}"], "best").graph.links
    old = wanted.graph.links
    assert new is not None
    assert old is not None

    def pairs(links: list[np.ndarray]) -> list[tuple[int, ...]]:
        rows = np.concatenate(links).tolist()
        return [tuple(sorted(row)) for row in rows] if symmetric else [tuple(row) for row in rows]

    trained = set(pairs([old.split.train]))
    held_out = pairs([numbers[part] for part in new.held_out])
    known = {(a, b) for pair in trained for a, b in (pair, pair[::-1])}
    count = sum(pair in known for pair in held_out)
    assert f"{count:,} of {len(held_out):,} held-out links were training links of the run" in shown


def older(folder: Path, **entries: Any) -> None:
    """The checkpoints of a run as versions wrote them that kept no schema, or other entries of tables."""
    for path in list((folder / "checkpoints").glob("*.safetensors")):
        found = load_checkpoint(path)
        path.unlink()
        state = {key: value for key, value in found.state.items() if key != "schema"}
        if entries:
            tables = {name: {**each, **entries} for name, each in found.state["schema"]["tables"].items()}
            state["schema"] = {**found.state["schema"], "tables": tables}
        save_checkpoint(folder / "checkpoints", found.step, state, keep=9)


def test_older_runs_find_what_they_did_not_keep_in_their_dataset(tmp_path: Path) -> None:
    data, other = write(ARRAYS, tmp_path / "a"), write(larger(ARRAYS), tmp_path / "b")
    words = ("balance.predict=false", "data.normalize=standard", "train.epochs=1", "--name", "r", "--quiet")
    run_here("run", "--data", data, *words, cwd=tmp_path)
    folder = tmp_path / "runs" / "r"
    wanted = hyrt.load_run(folder, graph=other).scores()
    older(folder)
    np.testing.assert_array_equal(hyrt.load_run(folder).scores(), wanted[:V])
    np.testing.assert_array_equal(hyrt.load_run(folder, graph=other).scores(), wanted)
    data.rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match="did not store means and deviations"):
        hyrt.load_run(folder, graph=other)


SCHEMAS: dict[str, Callable[[], Graph]] = {
    "plain": lambda: random_graph(40),
    "sparse": lambda: random_graph(40, sparse=True),
    "weighted": lambda: with_values(random_graph(40), 3),
    "typed": lambda: shop(["good", "customer", "shop"]),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_comes_back_from_json(name: str) -> None:
    saved = build_run_schema(SCHEMAS[name]()).to_dict()
    assert RunSchema.from_dict(json.loads(json.dumps(saved))).to_dict() == saved


def test_a_constant_column_stays_of_no_account(tmp_path: Path) -> None:
    """Its deviation is 0, so that the model has learned nothing of it, whatever other data have there."""
    arrays = ARRAYS | {"features": ARRAYS["features"].copy()}
    arrays["features"][:, 2] = 4
    data = hyrt.load(write(arrays, tmp_path / "a"))
    wanted = train(data, tmp_path / "run", data={"normalize": "standard"}).scores()
    assert isinstance(data.features, DenseFeatures)
    moved = data.features.values.copy()
    moved[:, 2] = 3 * np.arange(V)
    found = hyrt.load_run(tmp_path / "run", graph=data.with_features(DenseFeatures(moved))).scores()
    np.testing.assert_array_equal(found, wanted)


class _Reversed(torch.nn.Module):
    """Sums of rows, in another order of columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(F, 3)

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        for block in blocks:
            x = aggregate(block, x, "sum") + x[: block.num_dst]
        return self.layer(x).flip(1)


class _ReversedStack(GNN):
    def forward(self, blocks: Any, x: Any) -> torch.Tensor:
        return super().forward(blocks, x).flip(1)


def _reversed_stack() -> GNN:
    model = GNN(Architecture(in_features=F, hidden=8, num_classes=3))
    model.__class__ = _ReversedStack
    return model


@pytest.mark.parametrize("full_graph", [False, True])
@pytest.mark.parametrize("make", [_Reversed, _reversed_stack])
def test_scores_of_modules_are_those_that_forward_computes(
    make: Callable[[], torch.nn.Module], full_graph: bool, tmp_path: Path
) -> None:
    """Also of a stack of layers whose `forward` does more than its layers; counted again from the scores."""
    graph = random_graph(V, features=F, classes=3, symmetric=False)
    torch.manual_seed(3)
    given: dict[str, Any] = {} if full_graph else {"sampler": {"fanout": [2, 2]}}
    result = hyrt.train(
        graph, make(), folder=tmp_path / "run", train={"epochs": 2}, full_graph=full_graph, **given
    )
    run = hyrt.load_run(tmp_path / "run", graph=graph, model=make())
    scores = run.scores()
    test = graph.split("test")
    logs = scores[test] - np.logaddexp.reduce(scores[test].astype(np.float64), axis=1, keepdims=True)
    labels = graph.labels[test]
    loss = -logs[np.arange(len(test)), labels].mean()
    assert result.metrics["test"]["loss"] == pytest.approx(loss, abs=1e-5)
    assert result.metrics["test"]["accuracy"] == pytest.approx((logs.argmax(1) == labels).mean())
    np.testing.assert_allclose(run.scores([5, 3, 3]), scores[[5, 3, 3]], atol=1e-6)
    if make is _Reversed:
        state = {name: tensor.double().numpy() for name, tensor in run.model.state_dict().items()}
        x = graph.features.values.astype(np.float64)  # type: ignore[attr-defined]
        for _ in range(2):
            rows = itertools.pairwise(graph.topology.indptr)
            x = x + np.stack([x[graph.topology.indices[start:stop]].sum(0) for start, stop in rows])
        wanted = (x @ state["layer.weight"].T + state["layer.bias"])[:, ::-1]
        np.testing.assert_allclose(scores, wanted, atol=1e-4)
