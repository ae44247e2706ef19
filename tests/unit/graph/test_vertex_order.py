"""Datasets in another vertex order: the same graph under other numbers, and rows that map back."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from graph_datasets import assert_holds, datasets, make_arrays, save
from graphs import random_graph
from hetero_cases import small_typed
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hyrt.errors import DataError
from hyrt.graph import open_graph
from hyrt.graph.formats import reorder
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.schema import from_graph
from hyrt.graph.info import format_summary, summarize_graph
from hyrt.inference.output_rows import select_vertices, write_rows
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.runtime.workers import Workers

ORDERS = ["degree", "community", "rcm"]


@pytest.fixture(autouse=True, scope="module")
def _small_pieces():
    """Pieces that cut these graphs, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reorder, "ENTRIES", 50)
        patch.setattr(reorder, "_ROWS", 3)
        yield


def _needs(order):
    if order == "community" and importlib.util.find_spec("sknetwork") is None:
        pytest.skip("scikit-network is not installed")


def _back(graph):
    """The arrays of a graph under its original numbers, by scipy alone."""
    ids = graph.vertices.vertex_ids
    data = from_graph(graph)
    arrays = dict(data.arrays)
    del arrays["vertex_ids"]
    shape = (len(ids), len(ids))
    edges = sparse.csr_matrix(
        (np.ones(graph.num_edges), graph.topology.indices, graph.topology.indptr), shape
    ).tocoo()
    rows = sparse.csr_matrix((edges.data, (ids[edges.row], ids[edges.col])), shape)
    rows.sort_indices()
    arrays["indptr"], arrays["indices"] = rows.indptr, rows.indices
    positions = np.argsort(ids)
    for key in arrays:
        if key == "labels" or "_mask" in key:
            arrays[key] = arrays[key][positions]
    if data.rows is not None:
        return arrays | {"features": data.rows.whole()[positions]}
    keys = ("feat_values", "feat_indices", "feat_indptr")
    # A value may be 0, and is stored all the same: its number stands in for it.
    values, columns, pointer = (arrays[key] for key in keys)
    numbers = sparse.csr_matrix((np.arange(1.0, len(values) + 1), columns, pointer), arrays["feat_shape"])
    taken = numbers[positions]
    return arrays | dict(
        zip(keys, (values[taken.data.astype(int) - 1], taken.indices, taken.indptr), strict=True)
    )


@settings(max_examples=12, deadline=None)
@given(datasets, st.sampled_from(ORDERS), st.booleans(), st.booleans())
def test_the_original_numbers_give_the_original_dataset(arrays, order, as_folder, twice):
    if order == "community" and importlib.util.find_spec("sknetwork") is None:
        order = "degree"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = save(arrays, folder / ("from" if as_folder else "from.npz"))
        convert(Conversion(str(source), folder / "to", order=order))
        if twice:
            convert(Conversion(str(folder / "to"), folder / "again.npz", order="degree"))
        graph = open_graph(folder / ("again.npz" if twice else "to"), check=True)
        back = _back(graph)
        assert back.keys() == arrays.keys()
        for key, array in arrays.items():
            np.testing.assert_array_equal(back[key], array, err_msg=key)


@pytest.mark.parametrize("symmetric", [True, False])
def test_by_degree_the_rows_that_are_gathered_most_come_first(symmetric) -> None:
    graph = random_graph(vertices=80, symmetric=symmetric)
    order = reorder.find_order(from_graph(graph), "degree")
    gathered = np.bincount(graph.topology.indices, minlength=80)
    np.testing.assert_array_equal(order, sorted(range(80), key=lambda v: (-gathered[v], v)))


def test_each_type_is_ordered_by_degree_with_ties_by_number() -> None:
    graph = small_typed()
    order = reorder.find_order(from_graph(graph), "degree")
    gathered = np.bincount(graph.topology.indices, minlength=graph.num_vertices)
    types = graph.types.vertex_type_indices(np.arange(graph.num_vertices))
    wanted = sorted(range(graph.num_vertices), key=lambda v: (types[v], -gathered[v], v))
    np.testing.assert_array_equal(order, wanted)


def test_communities_lie_together_by_degree() -> None:
    _needs("community")
    rng = np.random.default_rng(3)
    block = rng.integers(0, 4, 200)
    edges = rng.random((200, 200)) < np.where(block[:, None] == block, 0.4, 0.004)
    edges |= edges.T
    np.fill_diagonal(edges, 0)
    graph = from_graph(random_graph(vertices=200))
    graph.arrays["indptr"] = np.append(0, edges.sum(1).cumsum())
    graph.arrays["indices"] = np.nonzero(edges)[1].astype(np.int32)
    order = reorder.find_order(graph, "community")
    assert sorted(order) == list(range(200))
    assert (np.diff(block[order]) != 0).sum() == 3
    for each in range(4):
        degrees = edges.sum(1)[order[block[order] == each]]
        assert (np.diff(degrees) <= 0).all()
    np.testing.assert_array_equal(order, reorder.find_order(graph, "community"))


def test_rcm_brings_neighbours_together() -> None:
    ring = np.random.default_rng(0).permutation(60)
    edges = sparse.coo_matrix((np.ones(60), (ring, np.roll(ring, 1))), (60, 60))
    both = (edges + edges.T).tocsr()
    both.sort_indices()
    graph = from_graph(random_graph(vertices=60))
    graph.arrays["indptr"], graph.arrays["indices"] = both.indptr.astype(np.int64), both.indices
    place = np.argsort(reorder.find_order(graph, "rcm"))
    assert np.abs(place[ring] - place[np.roll(ring, 1)]).max() <= 2


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sparse_features", [False, True])
def test_inference_writes_rows_by_original_numbers(tmp_path, order, sparse_features) -> None:
    _needs(order)
    graph = random_graph(vertices=120, sparse=sparse_features)
    data = from_graph(graph)
    features = {} if data.rows is None else {"features": data.rows.whole()}
    source = save(data.arrays | features, tmp_path / "from.npz")
    convert(Conversion(str(source), tmp_path / "to", order=order))
    reordered = open_graph(tmp_path / "to")
    assert not np.array_equal(reordered.labels, graph.labels)
    torch.manual_seed(0)
    model = GNN(Architecture(kind="gcn", in_features=12, hidden=8, num_classes=3, layers=2))
    np.save(tmp_path / "wanted.npy", np.array([5, 119, 0, 5]))
    with Workers(2, "t") as workers:
        for choice in ("all", "train", "val", str(tmp_path / "wanted.npy"), [5, 119, 0, 5], []):
            written = []
            for each in (graph, reordered):
                chosen = select_vertices(each, choice, 0)
                np.testing.assert_array_equal(
                    each.labels[chosen], graph.labels[select_vertices(graph, choice, 0)]
                )
                file = tmp_path / "scores.npy"
                write_rows(file, model, each, chosen, "scores", workers, memory_bytes=1 << 20)
                written.append(np.load(file))
            # The same sums in another order.
            np.testing.assert_allclose(*written, rtol=1e-4, atol=1e-5)


def test_info_tells_of_the_order(tmp_path) -> None:
    source = save(make_arrays(4), tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b", order="degree"))
    line = "order      changed; the original numbers are in vertex_ids"
    assert line in format_summary(summarize_graph(open_graph(tmp_path / "b")))
    assert line not in format_summary(summarize_graph(open_graph(source)))


def test_a_graph_without_edges(tmp_path) -> None:
    arrays = make_arrays(5)
    empty = arrays | {"indptr": np.zeros(31, np.int64), "indices": np.empty(0, np.int32)}
    source = save(empty, tmp_path / "a.npz")
    for order in ORDERS:
        _needs(order)
        convert(Conversion(str(source), tmp_path / order, order=order))
        assert_holds(open_graph(tmp_path / order), empty)


def test_what_is_wrong_is_named(tmp_path, monkeypatch) -> None:
    source = str(save(make_arrays(6), tmp_path / "a.npz"))
    with pytest.raises(DataError, match="--order louvain is unknown: use community, degree or rcm"):
        convert(Conversion(source, tmp_path / "b", order="louvain"))
    for package, shown, order in (("sknetwork", "scikit-network", "community"), ("scipy", "scipy", "rcm")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DataError, match=rf'--order {order} needs {shown}: pip install "hyrt\[order\]"'):
            convert(Conversion(source, tmp_path / "b", order=order))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.arange(29), "has 29 rows for 30 vertices"),
        (np.append(np.arange(29), 30), "value 30 at position 29 is not one of the 30 vertices"),
        (np.append(np.arange(29), 3), "has another vertex twice instead of vertex 29"),
        (np.arange(30.0), "has dtype float64, expected int32 or int64"),
    ],
)
def test_numbers_that_are_none_of_vertices(tmp_path, ids, message) -> None:
    source = save(make_arrays(7) | {"vertex_ids": ids}, tmp_path / "a.npz")
    with pytest.raises(DataError, match=f"key 'vertex_ids':? {message}"):
        open_graph(source)
