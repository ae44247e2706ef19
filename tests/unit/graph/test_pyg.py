from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hyrt.errors import DataError, DataWarning
from hyrt.graph import open_graph


def _data(**changes):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (30,), generator=generator)
    labels[:3] = torch.arange(3)
    part = torch.randint(0, 3, (30,), generator=generator)
    values = {
        "x": torch.randn(30, 4, generator=generator),
        "edge_index": _edges(generator),
        "y": labels,
        "train_mask": part == 0,
        "val_mask": part == 1,
        "test_mask": part == 2,
    }
    return SimpleNamespace(**(values | changes))


def _edges(generator):
    """100 edges, none of which repeats another or is a self loop."""
    pairs = torch.randperm(30 * 29, generator=generator)[:100]
    source, other = pairs // 29, pairs % 29
    return torch.stack([source, other + (other >= source)])


def _assert_same(graph, data):
    np.testing.assert_array_equal(graph.features.values, data.x.numpy().astype(np.float32))
    np.testing.assert_array_equal(graph.labels, data.y.reshape(-1).numpy())
    np.testing.assert_array_equal(graph.masks["val"], data.val_mask.numpy())
    pairs = sorted({(int(v), int(u)) for u, v in data.edge_index.T})
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


def test_edges_that_are_left_out_are_told():
    data = _data()
    repeated = torch.tensor([[3, 4], [3, 5]])
    data.edge_index = torch.cat([data.edge_index, data.edge_index[:, :2], repeated], 1)
    distinct = {(int(u), int(v)) for u, v in data.edge_index.T}
    left_out = data.edge_index.shape[1] - len(distinct)
    assert left_out >= 2
    with pytest.warns(DataWarning, match=f"{left_out} of 104 edges are duplicates and were merged"):
        _assert_same(open_graph(data), data)


def test_attributes_that_are_not_read_are_told():
    with pytest.warns(DataWarning, match="attribute 'train_masks' is not read: did you mean 'train_mask'"):
        open_graph(_data(train_masks=torch.zeros(30)))
    assert open_graph(_data(num_nodes=30, name="mine", pos=None)).num_vertices == 30


def test_missing_labels():
    data = _data()
    for missing, kind in ((float("nan"), "numbers"), (-1, "classes")):
        labels = data.y.float() if kind == "numbers" else data.y.clone()
        labels[data.train_mask] = missing
        graph = open_graph(_data(y=labels, train_mask=torch.zeros(30, dtype=torch.bool)))
        assert graph.vertices.label_kind == kind
        unknown = np.isnan(graph.labels) if kind == "numbers" else graph.labels == -1
        assert unknown.sum() == data.train_mask.sum()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({key: torch.tensor(3)}, f"attribute '{key}' is the number 3: use an array")
            for key in ("x", "y", "edge_index", "train_mask", "edge_weight", "edge_attr", "edge_time")
        ),
        ({"x": None}, "attribute 'x' is missing: set it to a row of numbers"),
        ({"edge_index": None}, "attribute 'edge_index' is missing: set it to integers"),
        ({"y": None}, "attribute 'y' is missing: set it to a class for each vertex, or remove the masks"),
        ({"train_mask": None}, "attribute 'train_mask' is missing: create it with .*RandomNodeSplit"),
        (
            {"edge_index": torch.zeros(3, 5, dtype=torch.int64)},
            r"key 'edge_index' is int64 of shape \[3, 5\]",
        ),
        ({"edge_index": torch.zeros(2, 5)}, "key 'edge_index' is float32"),
        (
            {"edge_index": torch.tensor([[0], [30]])},
            r"edge 0 \(0 → 30\) has an endpoint that is not one of the 30 vertices",
        ),
        ({"y": torch.zeros(30, 2, 2)}, "key 'y' has shape"),
        ({"y": torch.full((30,), float("inf"))}, "inf"),
        ({"x": torch.full((30, 2), float("nan"))}, "key 'features': value nan at row 0, column 0"),
        ({"x": torch.zeros(30)}, "key 'x' has shape"),
        ({"x": torch.eye(30).to_sparse()}, "attribute 'x' is sparse"),
        ({"y": torch.zeros(29, dtype=torch.int64)}, "key 'labels' has 29 rows for 30"),
    ],
)
def test_bad_data(changes, message):
    with pytest.raises(DataError, match=message):
        open_graph(_data(**changes))


@pytest.mark.parametrize("key", ["edge_weights", "edge_label", "weight"])
def test_what_belongs_to_edges_is_not_dropped(key):
    with pytest.raises(DataError, match=f"hyrt cannot use attribute '{key}', .* `del data.{key}`"):
        open_graph(_data(**{key: torch.ones(100)}))
    assert open_graph(_data(**{key: None})).num_vertices == 30


def test_types_stay_with_their_edges():
    ends = torch.tensor([[4, 2, 2, 7, 9, 0], [1, 1, 3, 3, 9, 1]])
    graph = open_graph(_data(edge_index=ends, edge_type=torch.tensor([5, 1, 2, 0, 8, 3])))
    topology = graph.topology
    rows = np.repeat(np.arange(30), topology.in_degrees)
    found = set(zip(topology.indices.tolist(), rows.tolist(), topology.edge_types.tolist(), strict=True))
    assert found == {(4, 1, 5), (2, 1, 1), (2, 3, 2), (7, 3, 0), (9, 9, 8), (0, 1, 3)}


@pytest.mark.parametrize(("columns", "keys"), [(0, "weights"), (1, "weights"), (3, "features")])
def test_weights_and_features_stay_with_their_edges(columns, keys):
    ends = torch.tensor([[4, 2, 2, 7, 9, 0], [1, 1, 3, 3, 9, 1]])
    # Of vertices u and v, the number 10 u + v.
    told = (10 * ends[0] + ends[1]).float()
    attributes = {"edge_weight": told} if columns == 0 else {"edge_attr": told[:, None].repeat(1, columns)}
    topology = open_graph(_data(edge_index=ends, **attributes)).topology
    rows = np.repeat(np.arange(30), topology.in_degrees)
    held = {"weights": topology.edge_weights, "features": topology.edge_features}
    found = held.pop(keys).reshape(6, -1)
    assert list(held.values()) == [None]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.tile((10 * topology.indices + rows)[:, None], max(1, columns)))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        (
            {"edge_weight": torch.ones(2)},
            r"key 'edge_weight' is float32 of shape \[2\], expected numbers \[3\]",
        ),
        ({"edge_weight": torch.ones(3, 2)}, r"key 'edge_weight' .* expected numbers \[3\]"),
        (
            {"edge_weight": torch.tensor([1.0, 0, 1])},
            "key 'edge_weight': value 0.0 at position 1 must be a fin",
        ),
        ({"edge_attr": torch.ones(3, 2, 2)}, r"key 'edge_attr' .* expected numbers \[3, d\]"),
        ({"edge_attr": torch.full((3, 2), np.inf)}, "key 'edge_features': value inf at row 0"),
    ],
)
def test_bad_weights_and_features(attributes, message):
    with pytest.raises(DataError, match=message):
        open_graph(_data(edge_index=torch.tensor([[1, 2, 5], [3, 4, 6]]), **attributes))


@pytest.mark.parametrize(
    ("types", "message"),
    [
        (torch.tensor([0, 1]), r"key 'edge_type' is int64 of shape \[2\], expected integers \[3\]"),
        (torch.tensor([0.0, 1.0, 0.0]), "key 'edge_type' is float32 of shape"),
        (torch.tensor([0, -1, 0]), "key 'edge_type': value -1 at position"),
    ],
)
def test_bad_types(types, message):
    with pytest.raises(DataError, match=message):
        open_graph(_data(edge_index=torch.tensor([[1, 2, 5], [3, 4, 6]]), edge_type=types))


def test_equal_edges_of_several_types_are_not_merged():
    data = _data(edge_index=torch.tensor([[1, 2, 2], [3, 4, 4]]), edge_type=torch.tensor([0, 1, 2]))
    with (
        pytest.warns(DataWarning, match="duplicates"),
        pytest.raises(DataError, match="has values for parallel edges"),
    ):
        open_graph(data)


def test_real_pyg_object():
    geometric = pytest.importorskip("torch_geometric.data", reason="torch_geometric is not installed")
    data = _data()
    _assert_same(open_graph(geometric.Data(**vars(data))), data)
    rows = torch.randn(data.edge_index.shape[1], 2)
    assert open_graph(geometric.Data(**vars(data), edge_attr=rows)).topology.edge_width == 2


MASKS = ["train_mask", "val_mask", "test_mask"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int64, torch.float32])
def test_masks_of_numbers_0_and_1_are_masks(dtype):
    wanted = _data()
    found = _data(**{key: getattr(wanted, key).to(dtype) for key in MASKS})
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(open_graph(found).masks[split], open_graph(wanted).masks[split])
    found.train_mask = torch.arange(len(wanted.y)).to(dtype)
    with pytest.raises(
        DataError, match="'train_mask' has values other than 0 and 1: use true or false for each"
    ):
        open_graph(found)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float64", "int32", "quantized"]
)
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_features_of_any_real_type_are_the_same_numbers(name):
    data = _data()
    values = torch.randint(-3, 4, data.x.shape, generator=torch.Generator().manual_seed(0)).float()
    is_quantized = name == "quantized"
    data.x = (
        torch.quantize_per_tensor(values, 0.5, 0, torch.qint8)
        if is_quantized
        else values.to(getattr(torch, name))
    )
    np.testing.assert_array_equal(open_graph(data).features.values, values.numpy())


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (torch.ones(3, 2, dtype=torch.complex64), "'x' is complex, but hyrt reads only real numbers"),
        (torch.ones(3, 2).to_sparse(), "'x' is sparse: make it dense"),
        ([[1.0], [2.0, 3.0]], "'x' is not an array: use one tensor"),
        (np.array([["a", "b"]] * 3), "'x' has values of type str.*: use numbers"),
    ],
    ids=["complex", "sparse", "ragged", "texts"],
)
def test_features_that_are_no_real_numbers_are_refused(value, says):
    with pytest.raises(DataError, match=says):
        open_graph(_data(x=value))


def test_bare_graphs_open_for_links():
    """Without features, labels and masks; the feature is the degree, and what is missing is said."""
    data = _data()
    whole = open_graph(data)
    with pytest.warns(DataWarning, match="has no x: using the logarithm of"):
        bare = open_graph(SimpleNamespace(edge_index=data.edge_index, num_nodes=30))
    np.testing.assert_array_equal(bare.topology.indices, whole.topology.indices)
    degrees = np.bincount(data.edge_index[1], minlength=30)
    np.testing.assert_allclose(bare.features.values[:, 0], np.log1p(degrees), rtol=1e-6)
    assert (bare.labels == -1).all()
    assert not any(mask.any() for mask in bare.masks.values())
    rows = open_graph(SimpleNamespace(edge_index=data.edge_index, x=data.x))
    np.testing.assert_array_equal(rows.features.values, data.x.numpy())
    with pytest.warns(DataWarning, match="has no masks, so vertices are in no split"):
        labelled = open_graph(SimpleNamespace(edge_index=data.edge_index, x=data.x, y=data.y))
    np.testing.assert_array_equal(labelled.labels, data.y.numpy())
    with pytest.raises(DataError, match=r"does not specify the number of vertices: set data\.num_nodes"):
        open_graph(SimpleNamespace(edge_index=data.edge_index))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("weighted", [False, True])
def test_edges_of_adj_t(weighted):
    data = _data()
    values = torch.arange(1, 101) / 4 if weighted else torch.ones(100)
    matrix = torch.sparse_coo_tensor(data.edge_index.flip(0), values, (30, 30))
    wanted = open_graph(_data(**({"edge_weight": values} if weighted else {})))
    for adj_t in (matrix, matrix.coalesce().to_sparse_csr(), matrix.coalesce().to_sparse_csc()):
        graph = open_graph(_data(edge_index=None, adj_t=adj_t))
        np.testing.assert_array_equal(graph.topology.indptr, wanted.topology.indptr)
        np.testing.assert_array_equal(graph.topology.indices, wanted.topology.indices)
        if weighted:
            np.testing.assert_array_equal(graph.topology.edge_weights, wanted.topology.edge_weights)
        else:
            assert graph.topology.edge_weights is None


def test_results_of_random_link_split_open():
    data = _data(edge_label=torch.ones(5), edge_label_index=torch.zeros(2, 5, dtype=torch.int64))
    with pytest.warns(DataWarning, match="'edge_label(_index)?' is not read"):
        graph = open_graph(data)
    np.testing.assert_array_equal(graph.topology.indices, open_graph(_data()).topology.indices)


def test_bare_typed_graphs_open_for_links():
    geometric = pytest.importorskip("torch_geometric.data")
    data = geometric.HeteroData()
    data["user"].x = torch.randn(4, 3)
    data["film"].num_nodes = 5
    data["user", "rates", "film"].edge_index = torch.tensor([[0, 1, 3], [4, 2, 0]])
    graph = open_graph(data)
    assert graph.types.target == "user"
    assert (graph.labels == -1).all()
    assert not any(mask.any() for mask in graph.masks.values())
    np.testing.assert_array_equal(graph.features.table("user").values, data["user"].x.numpy())
    data["film"].y = torch.arange(5)
    with pytest.warns(DataWarning, match="other masks are missing, so vertices are in no split"):
        assert open_graph(data).types.target == "film"
    data["film"].train_mask = torch.tensor([1, 0, 0, 1, 0])
    with pytest.raises(DataError, match=r"'film'.*val_mask is missing"):
        open_graph(data)
