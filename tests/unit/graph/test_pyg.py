from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hyrt.errors import DataError
from hyrt.graph import open_graph


def _data(**changes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (30,), generator=generator)
    labels[:3] = torch.arange(3)
    part = torch.randint(0, 3, (30,), generator=generator)
    values = {
        "x": torch.randn(30, 4, generator=generator),
        "edge_index": torch.randint(0, 30, (2, 100), generator=generator),
        "y": labels,
        "train_mask": part == 0,
        "val_mask": part == 1,
        "test_mask": part == 2,
    }
    return SimpleNamespace(**(values | changes))


def _assert_same(graph, data):
    np.testing.assert_array_equal(graph.features.values, data.x.numpy().astype(np.float32))
    np.testing.assert_array_equal(graph.labels, data.y.reshape(-1).numpy())
    np.testing.assert_array_equal(graph.masks["val"], data.val_mask.numpy())
    pairs = sorted({(int(v), int(u)) for u, v in data.edge_index.T if u != v})
    targets = np.repeat(np.arange(30), graph.topology.in_degrees)
    assert list(zip(targets.tolist(), graph.topology.indices.tolist(), strict=True)) == pairs


def test_data():
    data = _data()
    _assert_same(open_graph(data), data)
    column = _data(y=data.y[:, None], x=data.x.double())
    _assert_same(open_graph(column), column)
    half = open_graph(_data(x=data.x.half()))
    assert half.features.values.dtype == np.float16
    empty = open_graph(_data(edge_index=torch.empty(2, 0, dtype=torch.int64)))
    assert empty.num_edges == 0
    several = open_graph(
        _data(
            **{
                f"{s}_mask": getattr(data, f"{s}_mask")[:, None].repeat(1, 3)
                for s in ("train", "val", "test")
            }
        )
    )
    assert several.num_splits == 3


def test_missing_labels():
    data = _data()
    labels = data.y.float()
    labels[data.train_mask] = float("nan")
    graph = open_graph(_data(y=labels, train_mask=torch.zeros(30, dtype=torch.bool)))
    assert (graph.labels == -1).sum() == data.train_mask.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": None}, "attribute 'x' is missing"),
        ({"train_mask": None}, "attribute 'train_mask' is missing .*RandomNodeSplit"),
        ({"edge_index": torch.zeros(3, 5, dtype=torch.int64)}, r"key 'edge_index': int64 of shape \[3, 5\]"),
        ({"edge_index": torch.zeros(2, 5)}, "key 'edge_index': float32"),
        (
            {"edge_index": torch.tensor([[0], [30]])},
            r"edge 0 \(0 → 30\) does not join two of the 30 vertices",
        ),
        ({"y": torch.zeros(30, 2)}, "key 'y': shape"),
        ({"y": torch.full((30,), 0.5)}, "key 'y': value 0.5 at position 0 is not a class"),
        ({"x": torch.full((30, 2), float("nan"))}, "key 'features': value nan at row 0, column 0"),
        ({"x": torch.zeros(30)}, "key 'x': shape"),
        ({"x": torch.eye(30).to_sparse()}, "attribute 'x' is sparse"),
        ({"y": torch.zeros(29, dtype=torch.int64)}, "key 'labels' has 29 rows for 30"),
    ],
)
def test_bad_data(changes, message):
    with pytest.raises(DataError, match=message):
        open_graph(_data(**changes))


@pytest.mark.parametrize("key", ["edge_weight", "edge_attr", "edge_type", "weight"])
def test_what_belongs_to_edges_is_not_dropped(key):
    with pytest.raises(DataError, match=f"attribute '{key}': hyrt cannot use .* `del data.{key}`"):
        open_graph(_data(**{key: torch.ones(100)}))
    assert open_graph(_data(**{key: None})).num_vertices == 30


def test_real_pyg_object():
    geometric = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    data = _data()
    _assert_same(open_graph(geometric.Data(**vars(data))), data)
    with pytest.raises(DataError, match="attribute 'edge_attr'"):
        open_graph(geometric.Data(**vars(data), edge_attr=torch.ones(100, 2)))
    hetero = geometric.HeteroData()
    with pytest.raises(DataError, match="a heterogeneous graph"):
        open_graph(hetero)
