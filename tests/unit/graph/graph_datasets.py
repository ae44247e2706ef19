from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

Arrays = dict[str, np.ndarray[Any, Any]]


def make_arrays(
    seed: int,
    vertices: int = 30,
    width: int = 4,
    sparse: bool = False,
    splits: int = 0,
    further: bool = False,
    dtype: str = "float32",
) -> Arrays:
    """A random legal dataset by key of the schema."""
    rng = np.random.default_rng(seed)
    rows = [np.flatnonzero(rng.random(vertices) < rng.random() * 0.5) for _ in range(vertices)]
    classes = int(rng.integers(1, min(vertices, 5) + 1))
    labels = rng.integers(-1, classes, vertices).astype(np.int16)
    labels[rng.permutation(vertices)[:classes]] = np.arange(classes)
    arrays: Arrays = {
        "indptr": np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64),
        "indices": np.concatenate(rows).astype(np.int32),
        "labels": labels,
    }
    for suffix in ["", "_20pc"] if further else [""]:
        part = rng.integers(0, 4, (vertices, splits) if splits else vertices)
        part[labels < 0] = 3
        for i, split in enumerate(("train", "val", "test")):
            arrays[f"{split}_mask{suffix}"] = part == i
    if sparse:
        rows = [np.flatnonzero(rng.random(width) < 0.4) for _ in range(vertices)]
        arrays["feat_indptr"] = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        arrays["feat_indices"] = np.concatenate(rows).astype(np.int32)
        arrays["feat_values"] = rng.random(len(arrays["feat_indices"])).astype(np.float32)
        arrays["feat_shape"] = np.array([vertices, width])
    else:
        arrays["features"] = rng.standard_normal((vertices, width)).astype(dtype)
    return arrays


datasets = st.builds(
    make_arrays,
    seed=st.integers(0, 2**32 - 1),
    vertices=st.integers(1, 40),
    width=st.integers(1, 9),
    sparse=st.booleans(),
    splits=st.integers(0, 3),
    further=st.booleans(),
    dtype=st.sampled_from(["float32", "float16"]),
)


def save(arrays: Arrays, path: Path) -> Path:
    """Write a dataset with numpy alone: a .npz, compressed or not, or a folder."""
    if path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    else:
        path.mkdir()
        for key, array in arrays.items():
            np.save(path / f"{key}.npy", array)
    return path


def assert_holds(graph: Any, arrays: Arrays) -> None:
    """The graph has exactly these arrays."""
    np.testing.assert_array_equal(graph.topology.indptr, arrays["indptr"])
    np.testing.assert_array_equal(graph.topology.indices, arrays["indices"])
    assert graph.topology.indptr.dtype == np.int64
    assert graph.topology.indices.dtype == np.int32
    np.testing.assert_array_equal(graph.labels, arrays["labels"])
    for key, array in arrays.items():
        if "_mask" in key:
            np.testing.assert_array_equal(graph.masks[key.replace("_mask", "")], array)
            assert graph.masks[key.replace("_mask", "")].dtype == np.bool_
    if "features" in arrays:
        assert graph.features.values.dtype == arrays["features"].dtype
        np.testing.assert_array_equal(graph.features.values, arrays["features"])
    else:
        np.testing.assert_array_equal(graph.features.indptr, arrays["feat_indptr"])
        np.testing.assert_array_equal(graph.features.columns, arrays["feat_indices"])
        np.testing.assert_array_equal(graph.features.values, arrays["feat_values"])
        assert graph.features.width == arrays["feat_shape"][1]


def real_file(name: str) -> Path:
    """One of the labelled datasets, or a skip where they are not beside the checkout."""
    if not (DATA / name).is_file():
        pytest.skip(f"{name} is not in ../shared/data beside the checkout")
    return DATA / name
