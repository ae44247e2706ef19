"""Every kind of bad value is named with its first position, which brute force finds too."""

from __future__ import annotations

import os

import numpy as np
import pytest
from graph_datasets import assert_holds, make_arrays, real_file, save

from hyrt.config import build_config
from hyrt.errors import DataError
from hyrt.graph import check, open_graph
from hyrt.training.setup import PreparedRun


def _message(arrays, folder):
    source = save(arrays, folder / "bad.npz")
    with pytest.raises(DataError) as caught:
        open_graph(source)
    text = str(caught.value)
    save(arrays, folder / "bad")
    with pytest.raises(DataError) as mapped:
        open_graph(folder / "bad")
    assert str(mapped.value).replace(str(folder / "bad"), "") == text.replace(str(source), "")
    return text.removeprefix(f"{source}: ")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("chunk", [7, 1 << 20])
def test_topology(tmp_path, monkeypatch, seed, chunk):
    monkeypatch.setattr(check, "CHUNK", chunk)
    rng = np.random.default_rng(seed)
    good = make_arrays(seed, vertices=40)
    indptr, indices = good["indptr"], good["indices"]

    bad = indices.copy()
    where = np.sort(rng.choice(len(bad), 3, replace=False))
    # Ends of rows, so that order is not broken before the range is.
    where = np.sort(np.unique(indptr[np.searchsorted(indptr, where, side="right")] - 1))
    bad[where] = 1000
    assert _message(good | {"indices": bad}, tmp_path) == (
        f"key 'indices': value 1000 at position {where[0]} is out of range for 40 vertices: "
        "number them from 0"
    )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_random_entries_agree_with_brute_force(monkeypatch, seed, chunk):
    monkeypatch.setattr(check, "CHUNK", chunk)
    rng = np.random.default_rng(seed)
    for _ in range(60):
        lengths = rng.integers(0, 4, 6)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        columns = rng.integers(-1, 7, indptr[-1]).astype(np.int32)
        if rng.random() < 0.5:
            columns = np.concatenate([np.sort(rng.choice(6, n, replace=False)) for n in lengths]).astype(
                np.int32
            )
        expected = None
        for row in range(6):
            for at in range(indptr[row], indptr[row + 1]):
                ordered = at == indptr[row] or columns[at - 1] < columns[at]
                if expected is None and not (0 <= columns[at] < 6 and ordered):
                    expected = at
        if expected is None:
            check.check_columns("x", "indices", columns, indptr, 6, "vertices")
        else:
            with pytest.raises(
                DataError, match=rf"^x: key 'indices': value {columns[expected]} at position {expected} "
            ):
                check.check_columns("x", "indices", columns, indptr, 6, "vertices")


def _changed(arrays, key, at, value):
    copy = arrays[key].copy()
    copy[at] = value
    return arrays | {key: copy}


def test_values(tmp_path):
    good = make_arrays(11, vertices=30, splits=2)
    indptr = good["indptr"]
    last = len(good["indices"])
    unlabelled = np.flatnonzero(good["labels"] < 0)
    in_val = np.argwhere(good["val_mask"])[0]
    row = int(np.argmax(np.diff(indptr) >= 2))
    at = indptr[row] + 1
    repeated = good["indices"][at - 1]
    cases = [
        (_changed(good, "indptr", 0, 1), "key 'indptr': value 1 at position 0 must be 0"),
        (
            _changed(good, "indptr", 9, 10**9),
            f"key 'indptr': value {indptr[10]} at position 10 is less than the previous value, 1000000000",
        ),
        (
            good | {"indices": good["indices"][:-1]},
            f"key 'indptr': value {last} at position 30 differs from the length of 'indices', {last - 1:,}",
        ),
        (good | {"indptr": np.empty(0, np.int64)}, "key 'indptr' is empty"),
        (
            good | {"indptr": np.zeros(1, np.int64), "indices": np.empty(0, np.int32)},
            "key 'indptr' is that of a graph without vertices: use at",
        ),
        (
            _changed(good, "indices", at, repeated),
            f"key 'indices': value {repeated} at position {at} repeats the previous one in row {row}",
        ),
        (
            _changed(good, "indices", 0, -3),
            "key 'indices': value -3 at position 0 is negative: number the vertices",
        ),
        (_changed(good, "labels", 4, -2), "key 'labels': value -2 at position 4 is below -1"),
        (
            good | {"labels": np.where(np.arange(30) == 7, np.int32(2**20), good["labels"])},
            "key 'labels': value 1048576 at position 7 must be below 1,048,576: number the classes from 0",
        ),
        (good | {"labels": good["labels"][:-1]}, "key 'labels' has 29 rows for 30 vertices"),
        (
            good | {"test_mask": good["test_mask"][1:]},
            "key 'test_mask' has 29 rows for 30 vertices: set True",
        ),
        (
            good | {"val_mask": good["val_mask"][:, 0]},
            "key 'val_mask' has shape [30], but 'train_mask' has [30, 2]",
        ),
        (
            _changed(good, "train_mask", (unlabelled[0], 1), True),
            f"key 'train_mask': vertex {unlabelled[0]} is in the split but has no label: set its mask to",
        ),
        (
            _changed(good, "test_mask", tuple(in_val), True),
            f"key 'test_mask': vertex {in_val[0]} of split {in_val[1]} is also in 'val_mask'",
        ),
        (
            _changed(good, "features", (7, 2), np.nan),
            "key 'features': value nan at row 7, column 2 is not finite: replace it, for example with 0",
        ),
        (
            _changed(good, "features", (3, 0), -np.inf),
            "key 'features': value -inf at row 3, column 0 is not finite",
        ),
        (good | {"features": good["features"][:-1]}, "key 'features' has 29 rows for 30 vertices"),
        (good | {"features": good["features"][:, :0]}, "key 'features' has no columns: add at least one"),
        (
            good | {"features": good["features"].astype(float)},
            "key 'features' has dtype float64, expected float32",
        ),
        (
            good | {"features": np.abs(9 * good["features"]).astype(np.uint16)},
            "key 'features': uint16 values are read as bfloat16 bits, but",
        ),
        (
            good | {"labels": good["labels"].astype(np.uint16)},
            "key 'labels' has dtype uint16, expected int8 or",
        ),
        (good | {"indptr": good["indptr"].astype(np.int32)}, "key 'indptr' has dtype int32, expected int64"),
        (
            good | {"val_mask": good["val_mask"].astype(np.uint8)},
            "key 'val_mask' has dtype uint8, expected bool",
        ),
        (
            good | {"features": good["features"][:, 0]},
            "key 'features' has shape [30], expected 2 dimension(s)",
        ),
        ({k: v for k, v in good.items() if k != "val_mask"}, "key 'val_mask' is missing"),
        (
            {("lables" if k == "labels" else k): v for k, v in good.items()},
            "key 'labels' is missing: did you mean 'lables'?",
        ),
        ({k: v for k, v in good.items() if k != "features"}, "key 'features' is missing"),
        (good | {"train_mask_x": good["train_mask"]}, "key 'val_mask_x' is missing"),
    ]
    for i, (arrays, message) in enumerate(cases):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert _message(arrays, folder).startswith(message)


def test_sparse_values(tmp_path):
    good = make_arrays(12, vertices=20, sparse=True)
    nnz = len(good["feat_values"])
    cases = [
        (
            _changed(good, "feat_indices", nnz - 1, 9),
            f"key 'feat_indices': value 9 at position {nnz - 1} is out of range for",
        ),
        (
            _changed(good, "feat_values", 3, np.inf),
            "key 'feat_values': value inf at position 3 is not finite",
        ),
        (_changed(good, "feat_shape", 0, 19), "key 'feat_shape' is [19, 4], expected [20, F]"),
        (good | {"feat_shape": np.array([20])}, "key 'feat_shape' is [20], expected [20, F]"),
        (
            good | {"feat_indptr": good["feat_indptr"][:-1]},
            "key 'feat_indptr' has 20 entries for 20 vertices",
        ),
        (good | {"feat_values": good["feat_values"][1:]}, f"key 'feat_values' has {nnz - 1} entries"),
        ({k: v for k, v in good.items() if k != "feat_indptr"}, "key 'feat_indptr' is missing"),
    ]
    for i, (arrays, message) in enumerate(cases):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert _message(arrays, folder).startswith(message)
    both = good | {"features": np.zeros((20, 4), np.float32)}
    with pytest.raises(DataError, match="both 'features' and 'feat_indptr'"):
        open_graph(save(both, tmp_path / "both.npz"))


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_classes_up_to_the_limit_of_their_dtype(tmp_path, dtype):
    classes = np.iinfo(dtype).max + 1
    arrays = make_arrays(1, vertices=4, width=1)
    count = classes + 5
    arrays |= {
        "indptr": np.zeros(count + 1, np.int64),
        "indices": np.empty(0, np.int32),
        "labels": np.resize(np.arange(classes, dtype=dtype), count),
        "features": np.ones((count, 1), np.float32),
    }
    arrays |= {f"{split}_mask": np.zeros(count, np.bool_) for split in ("train", "val", "test")}
    graph = open_graph(save(arrays, tmp_path / "a"))
    assert_holds(graph, arrays)
    assert graph.num_classes == classes
    arrays["labels"][3] = 4
    arrays["labels"][classes + 3] = 4
    # Data to score need not have every class; a training does.
    graph = open_graph(save(arrays, tmp_path / "b"))
    with pytest.raises(DataError, match=r"value 4 at position 3 .*, because no vertex has class 3: number"):
        PreparedRun(build_config({}), graph)


def test_byte_that_is_no_bool(tmp_path):
    arrays = make_arrays(2)
    folder = save(arrays, tmp_path / "a")
    raw = bytearray((folder / "val_mask.npy").read_bytes())
    raw[-3] = 2
    (folder / "val_mask.npy").write_bytes(raw)
    with pytest.raises(DataError, match="key 'val_mask': the value at row 27 is neither 0 nor 1"):
        open_graph(folder)


def test_degenerate_graphs(tmp_path):
    one = make_arrays(0, vertices=1)
    one |= {"indptr": np.array([0, 0]), "indices": np.empty(0, np.int32)}
    assert_holds(open_graph(save(one, tmp_path / "one.npz")), one)
    assert_holds(open_graph(save(one, tmp_path / "one")), one)
    graph = open_graph(tmp_path / "one")
    assert (graph.num_vertices, graph.num_edges) == (1, 0)
    unlabelled = (
        one
        | {"labels": np.array([-1], np.int16)}
        | {f"{s}_mask": np.zeros(1, bool) for s in ("train", "val", "test")}
    )
    assert open_graph(save(unlabelled, tmp_path / "none.npz")).num_classes == 0


def test_missing_source(tmp_path):
    with pytest.raises(DataError, match=r": no such file or folder; use a \.npz file"):
        open_graph(tmp_path / "nothing")
    (tmp_path / "text.npz").write_text("not a zip")
    with pytest.raises(DataError, match=r"text\.npz is not a \.npz file: use"):
        open_graph(tmp_path / "text.npz")
    (tmp_path / "empty.npz").touch()
    with pytest.raises(DataError, match=r"empty\.npz is empty: copy or download it again"):
        open_graph(tmp_path / "empty.npz")
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(DataError, match=r"x\.npy is a single array: use .* one \.npy file per key"):
        open_graph(tmp_path / "x.npy")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"pipe: neither a regular file nor a folder; use a"):
        open_graph(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"https://x/y\.npz: hyrt cannot read URLs: download the file"):
        open_graph("https://x/y.npz")
    with pytest.raises(DataError, match="the dataset name is empty: use a"):
        open_graph("")
    for wrong in (7, None, {"x": 1}, b"a.npz"):
        with pytest.raises(DataError, match="is not a graph: use the path of a"):
            open_graph(wrong)


def test_splits_of_a_graph(tmp_path):
    arrays = make_arrays(5, splits=3, further=True)
    graph = open_graph(save(arrays, tmp_path / "a.npz"))
    assert graph.num_splits == 3
    np.testing.assert_array_equal(graph.split("val", 2), np.flatnonzero(arrays["val_mask"][:, 2]))
    np.testing.assert_array_equal(graph.split("val_20pc", 1), np.flatnonzero(arrays["val_mask_20pc"][:, 1]))
    with pytest.raises(DataError, match="has no split 3, only 3"):
        graph.split("val", 3)
    with pytest.raises(DataError, match="no split 'dev'"):
        graph.split("dev")


@pytest.mark.parametrize(
    ("name", "vertices", "edges", "width", "classes", "train"),
    [
        ("cora", 2_708, 10_556, 1_433, 7, 140),
        ("coauthor_physics", 34_493, 495_924, 8_415, 5, 20_695),
        ("tolokers", 11_758, 1_038_000, 10, 2, 5_879),
        ("github_social", 37_700, 578_006, 4_005, 2, 22_620),
    ],
)
def test_published_counts(name, vertices, edges, width, classes, train):
    graph = open_graph(real_file(f"{name}.npz"))
    assert (graph.num_vertices, graph.num_edges, graph.num_features) == (vertices, edges, width)
    assert graph.num_classes == classes
    assert len(graph.split("train")) == train


def test_bad_real_file(tmp_path):
    with np.load(real_file("cora.npz")) as file:
        arrays = dict(file)
    bad = arrays["indices"].copy()
    bad[100] = 1_000_000
    source = save(arrays | {"indices": bad}, tmp_path / "broken.npz")
    with pytest.raises(DataError) as caught:
        open_graph(source)
    assert str(caught.value).endswith(
        "broken.npz: key 'indices': value 1000000 at position 100 is out of range for 2,708 vertices: "
        "number them from 0"
    )


@pytest.mark.parametrize("width", [None, 1, 3])
def test_what_is_not_finite_is_named_by_its_place_in_the_whole(width):
    shape = (11,) if width is None else (11, width)
    for at in range(11):
        values = np.ones(shape, np.float32)
        values[(at,) if width is None else (at, width - 1)] = np.inf
        place = f"position {at}" if width is None else f"row {at}, column {width - 1}"
        blocks = [values[:4], values[4:4], values[4:9], values[9:]]
        with pytest.raises(DataError, match=f"value inf at {place} is not finite"):
            check.check_finite("x", "features", blocks)
    check.check_finite("x", "features", [np.ones(shape, np.float32)])


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("chunk", [1, 3, 1 << 20])
def test_masks_against_brute_force(monkeypatch, seed, chunk):
    monkeypatch.setattr(check, "CHUNK", chunk)
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, 9).astype(np.int16)
    keys = ("train_mask", "val_mask", "test_mask")
    part = rng.integers(0, 4, (9, 3))
    masks = [part == i for i in range(3)]
    check.check_masks("x", keys, tuple(masks), labels)
    # One more vertex in one split of one column, where it is in another already.
    vertex, column, split = int(rng.integers(9)), int(rng.integers(3)), int(rng.integers(3))
    masks[split][vertex, column] = True
    both = [i for i in range(3) if masks[i][vertex, column]]
    if len(both) == 2:
        with pytest.raises(
            DataError,
            match=f"key '{keys[both[1]]}': vertex {vertex} of split {column} is also in '{keys[both[0]]}'",
        ):
            check.check_masks("x", keys, tuple(masks), labels)
    else:
        check.check_masks("x", keys, tuple(masks), labels)
    labels[vertex] = -1
    with pytest.raises(
        DataError, match=f"vertex {vertex} is in the split but has no label: set its mask to False"
    ):
        check.check_masks("x", keys, tuple(masks), labels)
