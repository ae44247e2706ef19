from __future__ import annotations

import numpy as np
import pytest
from graph_datasets import make_arrays, save
from sklearn.preprocessing import StandardScaler, normalize

from hyrt.errors import DataError
from hyrt.graph import normalize as normalize_module
from hyrt.graph import open_graph
from hyrt.graph.formats import schema


@pytest.mark.parametrize("name", ["a.npz", "a"])
def test_rows(tmp_path, name):
    arrays = make_arrays(1, vertices=50)
    arrays["features"] = np.abs(arrays["features"])
    arrays["features"][7] = 0
    graph = open_graph(save(arrays, tmp_path / name), normalize="row")
    expected = normalize(arrays["features"].astype(np.float64), norm="l1")
    np.testing.assert_allclose(graph.features.values, expected, rtol=1e-6)
    assert graph.features.values.dtype == np.float32
    assert not graph.features.values[7].any()


def test_sparse_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(normalize_module, "_ROWS", 7)
    arrays = make_arrays(2, vertices=50, width=6, sparse=True)
    graph = open_graph(save(arrays, tmp_path / "a.npz"), normalize="row")
    indptr = arrays["feat_indptr"]
    for v in range(50):
        row = arrays["feat_values"][indptr[v] : indptr[v + 1]].astype(np.float64)
        np.testing.assert_allclose(
            graph.features.values[indptr[v] : indptr[v + 1]], row / row.sum(), rtol=1e-6
        )
    with pytest.raises(DataError, match="would make its sparse features dense: use 'row'"):
        open_graph(tmp_path / "a.npz", normalize="standard")


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


def test_large_mapped_features_are_scaled_on_disk_only(tmp_path, monkeypatch):
    arrays = make_arrays(4)
    folder = save(arrays, tmp_path / "a")
    npz = save(arrays, tmp_path / "a.npz")
    monkeypatch.setattr("hyrt.graph.source.LARGE_BYTES", 10)
    with pytest.raises(DataError, match=r"hyrt data convert .*a DEST --normalize row"):
        open_graph(folder, normalize="row")
    open_graph(npz, normalize="row")


def test_large_mapped_features_are_checked_on_demand_only(tmp_path, monkeypatch):
    arrays = make_arrays(5)
    arrays["features"][3, 1] = np.nan
    folder = save(arrays, tmp_path / "a")
    monkeypatch.setattr("hyrt.graph.source.LARGE_BYTES", 10)
    assert schema.LARGE_BYTES == 1 << 30
    open_graph(folder)
    with pytest.raises(DataError, match="value nan at row 3, column 1"):
        open_graph(folder, check=True)


def test_graph_and_unknown_name(tmp_path):
    graph = open_graph(save(make_arrays(6, further=True), tmp_path / "a.npz"))
    assert open_graph(graph) is graph
    assert set(open_graph(graph, normalize="standard").masks) == set(graph.masks)
    with pytest.raises(DataError, match="unknown normalize 'rows'"):
        open_graph(graph, normalize="rows")
