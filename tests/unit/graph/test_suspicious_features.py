"""Feature columns that number the rows or give the label away are warned of, wherever a graph is from."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from unit.graph.hetero_datasets import make_hetero

import hyrt
from hyrt.errors import DataWarning
from hyrt.graph.row_source import DenseFeatures, SparseFeatures

COUNTS, IS_LABEL, GIVES_LABEL = "contains row numbers", "equals the label", "has one value for each class"
NUM = 3000
RNG = np.random.default_rng(0)
LABELS = RNG.integers(0, 3, NUM)


def arrays(features: Any, labels: Any = LABELS, num: int = NUM) -> dict[str, Any]:
    """A ring of vertices, in the schema of files; a tenth of the vertices are in a split."""
    part = np.arange(num) % 30
    known = np.isfinite(labels) if labels.dtype.kind == "f" else labels >= 0
    return {
        "indptr": np.arange(num + 1, dtype=np.int64),
        "indices": np.roll(np.arange(num), 1).astype(np.int32),
        "labels": labels.astype(np.float32 if labels.dtype.kind == "f" else np.int16),
        "features": features,
        **{f"{name}_mask": (part == place) & known for place, name in enumerate(("train", "val", "test"))},
    }


def file_of(tmp_path: Any, values: dict[str, Any]) -> str:
    np.savez(tmp_path / "graph.npz", **values)
    return str(tmp_path / "graph.npz")


def features_with(column: Any, at: int = 2, dtype: Any = np.float32) -> Any:
    features = RNG.standard_normal((len(column), 5)).astype(dtype)
    features[:, at] = column
    return features


def pyg_of(values: dict[str, Any]) -> SimpleNamespace:
    num = len(values["labels"])
    return SimpleNamespace(
        x=torch.from_numpy(values["features"]),
        y=torch.from_numpy(values["labels"].astype(np.int64)),
        edge_index=torch.stack([torch.arange(num).roll(1), torch.arange(num)]),
        **{f"{name}_mask": torch.from_numpy(values[f"{name}_mask"]) for name in ("train", "val", "test")},
    )


def load_graph(values: dict[str, Any]) -> hyrt.Graph:
    masks = {name: values[f"{name}_mask"] for name in ("train", "val", "test")}
    features = DenseFeatures(values["features"])
    return hyrt.load(
        hyrt.Graph.from_arrays("mine", values["indptr"], values["indices"], features, values["labels"], masks)
    )


LEAKS = {
    COUNTS: np.arange(NUM),
    f"{COUNTS}, from 1": np.arange(1, NUM + 1),
    IS_LABEL: LABELS,
    GIVES_LABEL: np.array([0.5, -3, 7])[LABELS],
}


@pytest.mark.parametrize("kind", LEAKS)
@pytest.mark.parametrize("source", ["npz", "pyg", "graph"])
def test_each_source_warns_of_the_column(kind: str, source: str, tmp_path: Any) -> None:
    values = arrays(features_with(LEAKS[kind]))
    opened = {
        "npz": lambda: hyrt.load(file_of(tmp_path, values), normalize="standard"),
        "pyg": lambda: hyrt.load(pyg_of(values)),
        "graph": lambda: load_graph(values),
    }
    with pytest.warns(DataWarning) as caught:
        opened[source]()
    (text,) = [str(each.message) for each in caught]
    assert (
        f"columns 2 ({kind.partition(',')[0]}) look like row numbers or copies of the label: remove" in text
    )


def test_columns_of_half_precision_and_sparse_columns(tmp_path: Any) -> None:
    with pytest.warns(DataWarning, match=rf"4 \({COUNTS}\)"):
        hyrt.load(file_of(tmp_path, arrays(features_with(np.arange(NUM), 4, np.float16))))
    values = arrays(None)
    del values["features"]
    rows = [[0] * int(label > 0) + [3] for label in LABELS]
    values |= {
        "feat_indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        "feat_indices": np.concatenate(rows).astype(np.int32),
        "feat_values": np.concatenate([[label] * int(label > 0) + [RNG.random()] for label in LABELS]).astype(
            np.float32
        ),
        "feat_shape": np.array([NUM, 6]),
    }
    with pytest.warns(DataWarning, match=rf"columns 0 \({IS_LABEL}\) look like .*: remove"):
        assert isinstance(hyrt.load(file_of(tmp_path, values)).features, SparseFeatures)


def test_the_type_with_labels_is_compared_with_them(tmp_path: Any) -> None:
    values = make_hetero(1, counts=(20, 200, 20))
    papers = slice(*values["type_starts"][1:3])
    values["features:paper"][:, 3] = 5 - 2 * values["labels"][papers]
    with pytest.warns(DataWarning, match=rf"type 'paper': .* columns 3 \({GIVES_LABEL}\)"):
        hyrt.load(file_of(tmp_path, values))


def test_row_numbers_from_before_a_new_order_are_found(tmp_path: Any) -> None:
    order = RNG.permutation(NUM)
    values = arrays(features_with(order)) | {"vertex_ids": order.astype(np.int64)}
    with pytest.warns(DataWarning, match=rf"2 \({COUNTS}\)"):
        hyrt.load(file_of(tmp_path, values))


def test_a_graph_is_looked_at_once() -> None:
    with pytest.warns(DataWarning):
        graph = load_graph(arrays(features_with(LABELS)))
    hyrt.load(graph)


def test_few_labels_among_many_rows_are_found() -> None:
    num = 200_000
    labels = np.full(num, -1)
    known = RNG.choice(num, 60, replace=False)
    labels[known] = RNG.integers(0, 2, 60)
    column = RNG.standard_normal(num)
    column[known] = labels[known]
    values = arrays(features_with(column), labels, num)
    values |= {f"{name}_mask": labels >= 0 for name in ("train",)}
    values |= {f"{name}_mask": np.zeros(num, np.bool_) for name in ("val", "test")}
    with pytest.warns(DataWarning, match=rf"2 \({IS_LABEL}\)"):
        load_graph(values)


@given(st.integers(1, 2000), st.integers(0, 2**32), st.sampled_from(["few", "many", "numbers", "none"]))
def test_random_features_are_not_suspicious(num: int, seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    labels = {
        "few": rng.integers(-1, 2, num),
        "many": rng.permutation(num) // 2,
        "numbers": rng.permutation(num).astype(np.float32),
        "none": np.full(num, -1),
    }[kind]
    features = np.concatenate(
        [rng.standard_normal((num, 3)), rng.permutation(num)[:, None], np.zeros((num, 1))], axis=1
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_graph(arrays(features.astype(np.float32), labels, num))
