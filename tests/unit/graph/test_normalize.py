from __future__ import annotations

import numpy as np
import pytest
from graph_datasets import make_arrays, save
from scipy.sparse import csr_matrix
from sklearn.preprocessing import StandardScaler, normalize

from hyrt.config import Config
from hyrt.errors import ArgumentError, DataError
from hyrt.graph import normalize as normalize_module
from hyrt.graph import open_graph
from hyrt.graph.formats import schema
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.run_schema import build_run_schema

# What a row is divided by, and its name elsewhere.
NORMS = {"row": "l1", "length": "l2"}


@pytest.mark.parametrize("normalize_as", NORMS)
@pytest.mark.parametrize("name", ["a.npz", "a"])
def test_rows(tmp_path, name, normalize_as):
    arrays = make_arrays(1, vertices=50)
    arrays["features"] = np.abs(arrays["features"])
    arrays["features"][7] = 0
    graph = open_graph(save(arrays, tmp_path / name), normalize=normalize_as)
    expected = normalize(arrays["features"].astype(np.float64), norm=NORMS[normalize_as])
    np.testing.assert_allclose(graph.features.values, expected, rtol=1e-6)
    assert graph.features.values.dtype == np.float32
    assert not graph.features.values[7].any()


def test_rows_of_a_negative_sum_are_divided_by_it(tmp_path):
    arrays = make_arrays(1, vertices=50)
    x = arrays["features"] = -1 - np.abs(arrays["features"])
    graph = open_graph(save(arrays, tmp_path / "a.npz"), normalize="row")
    np.testing.assert_allclose(graph.features.values, x / x.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("normalize_as", NORMS)
def test_sparse_rows(tmp_path, monkeypatch, normalize_as):
    monkeypatch.setattr(normalize_module, "_ROWS", 7)
    arrays = make_arrays(2, vertices=50, width=6, sparse=True)
    graph = open_graph(save(arrays, tmp_path / "a.npz"), normalize=normalize_as)
    parts = arrays["feat_values"].astype(np.float64), arrays["feat_indices"], arrays["feat_indptr"]
    expected = normalize(csr_matrix(parts, shape=(50, 6)), norm=NORMS[normalize_as])
    np.testing.assert_allclose(graph.features.values, expected.data, rtol=1e-6)
    with pytest.raises(DataError, match="would make its sparse features dense: use 'length', 'row'"):
        open_graph(tmp_path / "a.npz", normalize="standard")


@pytest.mark.parametrize("suffix", ["", ".npz"])
def test_auto_scales_bags_of_words_alone(tmp_path, suffix):
    sparse, dense = make_arrays(2, vertices=50, width=6, sparse=True), make_arrays(2, vertices=50)
    scaled = open_graph(save(sparse, tmp_path / f"scaled{suffix}"), normalize="auto")
    np.testing.assert_array_equal(scaled.features.values, sparse["feat_values"])
    plain = open_graph(save(dense, tmp_path / f"dense{suffix}"), normalize="auto")
    np.testing.assert_array_equal(plain.features.values, dense["features"])
    sparse["feat_values"] = np.ones_like(sparse["feat_values"])
    bags = open_graph(save(sparse, tmp_path / f"bags{suffix}"), normalize="auto")
    words = np.diff(sparse["feat_indptr"])
    np.testing.assert_allclose(bags.features.values, np.repeat(words, words) ** -0.5, rtol=1e-6)


def test_auto_leaves_an_open_graph_that_has_no_bags_of_words(tmp_path):
    arrays = make_arrays(2, vertices=50, width=6, sparse=True)
    arrays["feat_values"] = np.ones_like(arrays["feat_values"])
    path = save(arrays, tmp_path / "a.npz")
    for normalize_as in ("row", "length"):
        graph = open_graph(path, normalize=normalize_as)
        assert open_graph(graph, normalize="auto") is graph
    expected = open_graph(path, normalize="length").features.values
    np.testing.assert_array_equal(open_graph(open_graph(path), normalize="auto").features.values, expected)


def test_the_settings_offer_what_there_is():
    offered = Config.model_json_schema()["$defs"]["DataConfig"]["properties"]["normalize"]["enum"]
    assert tuple(offered) == normalize_module.NORMALIZERS


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_columns(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr("hyrt.graph.check.CHUNK", 64)  # many blocks
    arrays = make_arrays(3, vertices=300, width=5, dtype=dtype)
    arrays["features"][:, 1] = arrays["features"][:, 1] * 3 + 20
    arrays["features"][:, 2] = 0.1
    graph = open_graph(save(arrays, tmp_path / "a"), normalize="standard")
    expected = StandardScaler().fit_transform(arrays["features"].astype(np.float64))
    expected[:, 2] = 0
    np.testing.assert_allclose(graph.features.values, expected, atol=1e-6 if dtype == "float32" else 2e-3)
    assert graph.features.values.dtype == dtype


@pytest.mark.parametrize("normalize_as", [*NORMS, "standard"])
@pytest.mark.parametrize("name", ["b.npz", "b"])
def test_the_same_scaling_is_not_done_twice(tmp_path, name, normalize_as):
    path = save(make_arrays(3, vertices=50), tmp_path / "a.npz")
    convert(Conversion(str(path), tmp_path / name, normalize=normalize_as))
    once, again = open_graph(tmp_path / name), open_graph(tmp_path / name, normalize=normalize_as)
    np.testing.assert_array_equal(again.features.values, once.features.values)
    [scaling] = build_run_schema(again).to_dict()["tables"][""]["scaling"]
    assert build_run_schema(once).to_dict()["tables"][""]["scaling"] == [scaling]


def test_large_mapped_features_are_scaled_on_disk_only(tmp_path, monkeypatch):
    arrays = make_arrays(4)
    folder = save(arrays, tmp_path / "a")
    npz = save(arrays, tmp_path / "a.npz")
    monkeypatch.setattr("hyrt.graph.formats.schema.LARGE_BYTES", 10)
    with pytest.raises(DataError, match=r"hyrt data convert .*a DEST --normalize row"):
        open_graph(folder, normalize="row")
    open_graph(npz, normalize="row")


def test_large_mapped_features_are_checked_on_demand_only(tmp_path, monkeypatch):
    arrays = make_arrays(5)
    arrays["features"][3, 1] = np.nan
    folder = save(arrays, tmp_path / "a")
    assert schema.LARGE_BYTES == 1 << 30
    monkeypatch.setattr("hyrt.graph.formats.schema.LARGE_BYTES", 10)
    open_graph(folder)
    with pytest.raises(DataError, match="value nan at row 3, column 1"):
        open_graph(folder, check=True)


def test_graph_and_unknown_name(tmp_path):
    graph = open_graph(save(make_arrays(6, further=True), tmp_path / "a.npz"))
    assert open_graph(graph) is graph
    assert set(open_graph(graph, normalize="standard").masks) == set(graph.masks)
    with pytest.raises(ArgumentError, match="normalize must be one of auto, none, row"):
        open_graph(graph, normalize="rows")
