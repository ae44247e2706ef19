"""Round trips and damage of .npz files and folders."""

from __future__ import annotations

import io
import json
import os
import re
import tempfile
import warnings
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from graph_datasets import assert_holds, datasets, make_arrays, save
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.errors import DataError, DataWarning
from hyrt.graph import open_graph
from hyrt.graph.formats import dataset_files as folder_module
from hyrt.graph.formats import npy
from hyrt.graph.formats import npy as npy_module
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.formats.npy import CHUNK_BYTES, NpyWriter, read_header
from hyrt.graph.info import format_summary, summarize_graph

quick = settings(max_examples=40, deadline=None)


@quick
@given(datasets, st.sampled_from(["a.npz", "a"]), st.sampled_from(["b.npz", "b"]))
def test_round_trip(arrays, first, second):
    with tempfile.TemporaryDirectory() as folder:
        source = save(arrays, Path(folder) / first)
        assert_holds(open_graph(source), arrays)
        convert(Conversion(str(source), Path(folder) / second))
        assert_holds(open_graph(Path(folder) / second, check=True), arrays)
        if second == "b.npz":  # what we write, numpy reads
            with np.load(Path(folder) / second, allow_pickle=False) as written:
                assert set(written.files) == set(arrays)
                for key, array in arrays.items():
                    np.testing.assert_array_equal(written[key], array)
                    assert written[key].dtype == array.dtype
        elif "features" in arrays:
            np.testing.assert_array_equal(np.load(Path(folder) / second / "features.npy"), arrays["features"])


def test_npz_bytes_are_reproducible(tmp_path):
    source = save(make_arrays(3), tmp_path / "a")
    for name in ("b.npz", "c.npz"):
        convert(Conversion(str(source), tmp_path / name))
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


@pytest.mark.parametrize("compressed", [True, False])
def test_column_major_and_uncompressed(tmp_path, compressed):
    arrays = make_arrays(1, vertices=7, splits=2)
    stored = {key: np.asfortranarray(array) for key, array in arrays.items()}
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", **stored)
    graph = open_graph(tmp_path / "a.npz")
    assert_holds(graph, arrays)
    assert graph.features.values.flags.c_contiguous
    save(stored, tmp_path / "folder")
    with pytest.raises(DataError, match=r"folder: key '\w+' is stored in column-major"):
        open_graph(tmp_path / "folder")


def test_wide_indices_become_narrow(tmp_path):
    arrays = make_arrays(5)
    wide = arrays | {"indices": arrays["indices"].astype(np.int64)}
    assert_holds(open_graph(save(wide, tmp_path / "a.npz")), arrays)
    assert_holds(open_graph(save(wide, tmp_path / "a")), arrays)


def test_folder_is_mapped_and_never_written(tmp_path):
    arrays = make_arrays(2)
    graph = open_graph(save(arrays, tmp_path / "a"))
    graph.features.values[0, 0] = 77.0
    graph.topology.indices[0] = 5
    assert_holds(open_graph(tmp_path / "a"), arrays)


def _legal(path: Path) -> bool:
    """Opening gives an error of ours or a graph; anything else fails the test."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            open_graph(path)
    except DataError as error:
        message = str(error)
    else:
        return True
    assert str(path) in message
    return False


@pytest.mark.parametrize("sparse", [False, True])
def test_truncated_npz(tmp_path, sparse):
    whole = save(make_arrays(4, sparse=sparse), tmp_path / "a.npz").read_bytes()
    cut = tmp_path / "cut.npz"
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        assert not _legal(cut), length


@pytest.mark.parametrize("compressed", [True, False])
def test_flipped_bits_of_npz(tmp_path, compressed):
    arrays = make_arrays(6, vertices=50)
    path = tmp_path / "a.npz"
    (np.savez_compressed if compressed else np.savez)(path, **arrays)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    flipped = tmp_path / "flipped.npz"
    for at in rng.integers(0, len(whole), 400).tolist():
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        flipped.write_bytes(damaged)
        if _legal(flipped):  # dates, attributes and the like: the data is intact
            assert_holds(open_graph(flipped), arrays)


@pytest.mark.parametrize("sparse", [False, True])
def test_flipped_bits_of_folder(tmp_path, sparse):
    arrays = make_arrays(7, vertices=50, sparse=sparse)
    source = save(arrays, tmp_path / "source")
    folder = tmp_path / "a"
    convert(Conversion(str(source), folder))
    rng = np.random.default_rng(1)
    for key, array in arrays.items():
        file = folder / f"{key}.npy"
        whole = file.read_bytes()
        last = len(array) - 1
        for at in [*rng.integers(0, 128, 12).tolist(), *rng.integers(128, len(whole), 12).tolist()]:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(damaged)
            if at >= 128:
                with pytest.raises(
                    DataError,
                    match=rf"a: key '{key}': (positions|rows) 0 to {last} differ from what was written",
                ):
                    open_graph(folder)
            elif _legal(folder):  # the padding of the header, and the like
                assert_holds(open_graph(folder), arrays)
        file.write_bytes(whole[: len(whole) - 1])
        with pytest.raises(DataError, match=f"key '{key}'.*truncated"):
            open_graph(folder)
        file.write_bytes(whole)
    meta = folder / "meta.json"
    whole = meta.read_bytes()
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << int(rng.integers(8))
        meta.write_bytes(damaged)
        if _legal(folder):  # white space
            assert json.loads(damaged) == json.loads(whole)
    meta.unlink()
    assert_holds(open_graph(folder, check=True), arrays)


def test_first_damaged_chunk_is_named(tmp_path, monkeypatch):
    for module in (folder_module, npy_module, npy):
        monkeypatch.setattr(module, "CHUNK_BYTES", 64)
    arrays = make_arrays(7, vertices=50, width=3)
    convert(Conversion(str(save(arrays, tmp_path / "source")), tmp_path / "a"))
    assert_holds(open_graph(tmp_path / "a"), arrays)
    for key in ("labels", "features"):
        file = tmp_path / "a" / f"{key}.npy"
        whole = file.read_bytes()
        row_bytes = arrays[key].nbytes // 50
        for at in range(128, len(whole), 29):
            damaged = bytearray(whole)
            damaged[at] ^= 4
            damaged[-1] ^= 1  # only the first is named
            file.write_bytes(damaged)
            with pytest.raises(DataError, match=f"key '{key}'") as caught:
                open_graph(tmp_path / "a")
            found = re.search(r"(positions|rows) (\d+) to (\d+) differ from", str(caught.value))
            start = (at - 128) // 64 * 64
            stop = min(start + 64, len(whole) - 128)
            assert int(found[2]) == start // row_bytes
            assert int(found[3]) == (stop - 1) // row_bytes
        file.write_bytes(whole)


def test_large_features_are_compared_only_when_they_are_read(tmp_path, monkeypatch):
    arrays = make_arrays(8)
    folder = tmp_path / "a"
    convert(Conversion(str(save(arrays, tmp_path / "source")), folder))
    monkeypatch.setattr(folder_module, "LARGE_BYTES", arrays["features"].nbytes - 1)
    with (folder / "features.npy").open("r+b") as file:
        file.seek(130)
        file.write(b"\x07")
    open_graph(folder)
    with pytest.raises(DataError, match="key 'features': rows 0 to 29 differ from what was written"):
        open_graph(folder, check=True)
    with pytest.raises(DataError, match="key 'features': rows 0 to 29 differ from what was written"):
        convert(Conversion(str(folder), tmp_path / "b"))
    assert not (tmp_path / "b").exists()


def test_a_folder_without_arrays_says_what_a_folder_has(tmp_path):
    message = r"has no \.npy files: use a folder with one \.npy file per key"
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=rf"{message}$"):
        open_graph(tmp_path)
    save(make_arrays(8), tmp_path / "one.npz")
    with pytest.raises(DataError, match=rf"{message} \(did you mean one of its \.npz files\?\)$"):
        open_graph(tmp_path)


def test_changed_folder_differs_from_its_meta(tmp_path):
    convert(Conversion(str(save(make_arrays(8), tmp_path / "s")), tmp_path / "a"))
    for split in ("train", "val", "test"):
        np.save(tmp_path / "a" / f"{split}_mask_x.npy", np.zeros(30, np.bool_))
    with pytest.raises(DataError, match=r"key 'train_mask_x' is not in meta.json"):
        open_graph(tmp_path / "a")
    for split in ("train", "val", "test"):
        (tmp_path / "a" / f"{split}_mask_x.npy").unlink()
    meta = json.loads((tmp_path / "a" / "meta.json").read_text())
    meta["keys"]["test_mask_y"] = meta["keys"]["test_mask"]
    whole = (tmp_path / "a" / "meta.json").read_bytes()
    (tmp_path / "a" / "meta.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match=r"key 'test_mask_y' is in meta.json but has no file"):
        open_graph(tmp_path / "a")
    (tmp_path / "a" / "meta.json").write_bytes(whole)
    np.save(tmp_path / "a" / "features.npy", np.zeros((30, 5), np.float32))
    with pytest.raises(DataError, match=r"key 'features': float32 of shape \[30, 5\] differs from meta.json"):
        open_graph(tmp_path / "a")
    for text in ("", "{}", "[1]", '{"format": 1, "keys": {"a": 1}}'):
        (tmp_path / "a" / "meta.json").write_text(text)
        with pytest.raises(DataError, match=r"meta.json is damaged"):
            open_graph(tmp_path / "a")
    (tmp_path / "a" / "meta.json").write_text(json.dumps({"format": 99, "keys": {}}))
    with pytest.raises(DataError, match="format 99"):
        open_graph(tmp_path / "a")


@pytest.mark.parametrize("name", ["labels.npy", "meta.json"])
def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path, name):
    convert(Conversion(str(save(make_arrays(3), tmp_path / "a.npz")), tmp_path / "b"))
    (tmp_path / "b" / name).unlink()
    os.mkfifo(tmp_path / "b" / name)
    with pytest.raises(DataError, match=f"{name} is a pipe or a device: replace it with the dataset's file"):
        open_graph(tmp_path / "b")


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_folder_keeps_whether_it_is_symmetric(tmp_path, symmetric):
    arrays = make_arrays(8)
    if symmetric:
        edges = np.zeros((30, 30), np.bool_)
        edges[np.repeat(np.arange(30), np.diff(arrays["indptr"])), arrays["indices"]] = True
        edges |= edges.T
        arrays["indptr"] = np.append(0, edges.sum(1).cumsum())
        arrays["indices"] = np.nonzero(edges)[1].astype(np.int32)
    source = save(arrays, tmp_path / "s")
    assert "is_symmetric" not in vars(open_graph(source).topology)
    convert(Conversion(str(source), tmp_path / "a"))
    assert vars(open_graph(tmp_path / "a").topology)["is_symmetric"] is symmetric
    convert(Conversion(str(tmp_path / "a"), tmp_path / "b"))
    assert (tmp_path / "b" / "meta.json").read_bytes() == (tmp_path / "a" / "meta.json").read_bytes()
    # The edges are others than they were in rows that are not sorted.
    shuffled = arrays | {
        "indices": np.concatenate([r[::-1] for r in np.split(arrays["indices"], arrays["indptr"][1:-1])])
    }
    convert(Conversion(str(save(shuffled, tmp_path / "u")), tmp_path / "c", sort=True))
    assert vars(open_graph(tmp_path / "c").topology)["is_symmetric"] is symmetric


def _npy(descr: str, shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    header = b" " * (-(len(header) + 10) % 64) + header
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_npy("'<i8'", "(1000000000000,)", bytes(64)), "needs 8,000,000,000,000 bytes, but the file has 64"),
        (_npy("'<i8'", "(99999999999999999999999,)"), "in the .npy header is impossible"),
        (_npy("'<i8'", "(" + "9" * 3000 + ",)"), "in the .npy header is impossible"),
        (_npy("'|O'", "(1,)", b"cos\nsystem\n"), "never reads pickled data"),
        (_npy("'>i8'", "(1,)", bytes(8)), "little-endian"),
        (_npy("'<M8[s]'", "(1,)", bytes(8)), "damaged or describes records"),
        (_npy("[('a', '<i8')]", "(1,)", bytes(8)), "damaged or describes records"),
        (_npy("'<f7'", "(1,)", bytes(7)), "damaged"),
        (_npy("'<i8'", "()", bytes(8)), "expected 1 dimension"),
        (b"\x93NUMPY\x01\x00\xff\xff", "claims 65,535 bytes"),
        (b"\x93NUMPY\x09\x00\x10\x00" + bytes(16), "format 9"),
        (b"", "not .npy data"),
        (b"hello", "not .npy data"),
    ],
)
def test_hostile_headers(tmp_path, content, message):
    arrays = make_arrays(9)
    save(arrays, tmp_path / "a")
    (tmp_path / "a" / "indptr.npy").write_bytes(content)
    with pytest.raises(DataError, match=f"key 'indptr'.*{message}"):
        open_graph(tmp_path / "a")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for key in arrays:
            archive.writestr(f"{key}.npy", (tmp_path / "a" / f"{key}.npy").read_bytes())
    with pytest.raises(DataError, match=f"key 'indptr'.*{message}"):
        open_graph(tmp_path / "a.npz")


def test_unaligned_folder(tmp_path):
    arrays = make_arrays(9)
    save(arrays, tmp_path / "a")
    header = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(arrays['indptr'])},), }}".ljust(
        65
    ).encode()
    content = b"\x93NUMPY\x01\x00\x41\x00" + header + arrays["indptr"].tobytes()
    (tmp_path / "a" / "indptr.npy").write_bytes(content)
    with pytest.raises(DataError, match="key 'indptr' is not aligned"):
        open_graph(tmp_path / "a")


def test_duplicate_member(tmp_path):
    path = save(make_arrays(1), tmp_path / "a.npz")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("labels.npy", b"")
    with pytest.raises(DataError, match="has the key 'labels' twice"):
        open_graph(path)


@quick
@given(
    st.lists(st.integers(0, 9), max_size=8), st.integers(1, 5), st.sampled_from(["int16", "float16", "int64"])
)
def test_npy_writer_writes_what_numpy_reads(sizes, width, dtype):
    rng = np.random.default_rng(len(sizes))
    parts = [rng.integers(0, 99, (size, width)).astype(dtype) for size in sizes]
    with tempfile.TemporaryDirectory() as folder:
        with NpyWriter(Path(folder) / "a.npy", np.dtype(dtype), (width,)) as writer:
            for part in parts:
                writer.append(part)
        read = np.load(Path(folder) / "a.npy")
    expected = np.concatenate([np.empty((0, width), dtype), *parts])
    np.testing.assert_array_equal(read, expected)
    assert read.dtype == expected.dtype
    assert len(writer.checksums) == -(-expected.nbytes // CHUNK_BYTES)


@given(st.binary(max_size=300))
@quick
def test_header_of_any_bytes(content):
    for data in (content, b"\x93NUMPY\x01\x00" + content, b"\x93NUMPY\x02\x00" + content):
        try:
            header = read_header(io.BytesIO(data), "x")
        except DataError:
            continue
        assert header.data_bytes >= 0


@pytest.mark.parametrize("name", ["a.npz", "a"])
@pytest.mark.parametrize(
    ("key", "rows"),
    [("edge_weights", 1), ("Edge_Attr", 1), ("weights", 1), ("sample_weight", 1), ("data", 0)],
)
def test_what_belongs_to_edges_is_not_dropped(tmp_path, name, key, rows):
    arrays = make_arrays(3, vertices=30)
    extra = np.ones((rows or len(arrays["indices"]), 2), np.float32)
    with pytest.raises(DataError, match=f"key '{key}': looks like edge .* write the dataset again"):
        open_graph(save(arrays | {key: extra}, tmp_path / name))
    with pytest.raises(DataError, match=f"key '{key}': looks like edge weights, features or times"):
        convert(Conversion(str(tmp_path / name), tmp_path / "b.npz"))


@pytest.mark.parametrize("name", ["a.npz", "a"])
def test_types_weights_and_features_of_edges_are_read_and_written_again(tmp_path, name):
    arrays = make_arrays(3, vertices=30)
    values = values_of_edges(arrays)
    source = save(arrays | values, tmp_path / name)
    for copy in ("b.npz", "b"):
        convert(Conversion(str(source), tmp_path / copy))
        assert_same_values(open_graph(tmp_path / copy), values)
    assert_holds(open_graph(source), arrays)
    facts = summarize_graph(open_graph(source))
    assert "directed, with weights and 3 features" in "\n".join(format_summary(facts))


def values_of_edges(arrays):
    """A type, a weight and three features of each edge, which are different ones."""
    numbers = np.random.default_rng(1).permutation(len(arrays["indices"])) + 1
    features = np.stack([numbers, -numbers, numbers**2], 1).astype(np.float32)
    return {
        "edge_type": numbers.astype(np.int16),
        "edge_weight": numbers.astype(np.float32),
        "edge_features": features,
    }


def assert_same_values(graph, values):
    topology = graph.topology
    for key, array in (("edge_type", topology.edge_types), ("edge_weight", topology.edge_weights)):
        np.testing.assert_array_equal(array, values[key])
        assert array.dtype == values[key].dtype
    np.testing.assert_array_equal(topology.edge_features, values["edge_features"])


def by_ends(graph):
    """The type, the weight and the first feature of each edge, by the features of its ends."""
    topology, x = graph.topology, graph.features.matrix.astype(np.float64)
    rows = np.repeat(np.arange(graph.num_vertices), topology.in_degrees)
    values = zip(topology.edge_types, topology.edge_weights, topology.edge_features[:, 0], strict=True)
    ends = zip(x[topology.indices].sum(1), x[rows].sum(1), strict=True)
    return {tuple(np.round(end, 6)): tuple(map(float, each)) for end, each in zip(ends, values, strict=True)}


def test_what_edges_have_moves_along_with_them(tmp_path):
    arrays = make_arrays(3, vertices=30)
    values = values_of_edges(arrays)
    expected = by_ends(open_graph(save(arrays | values, tmp_path / "a.npz")))
    assert len(expected) == len(arrays["indices"])
    # Each row the other way round, to be sorted again.
    turned = np.concatenate([np.arange(a, b)[::-1] for a, b in pairwise(arrays["indptr"])]).astype(np.int64)
    unsorted = arrays | {"indices": arrays["indices"][turned]} | {k: v[turned] for k, v in values.items()}
    convert(Conversion(str(save(unsorted, tmp_path / "u.npz")), tmp_path / "s.npz", sort=True, unique=True))
    assert_same_values(open_graph(tmp_path / "s.npz"), values)
    convert(Conversion(str(tmp_path / "a.npz"), tmp_path / "o", order="degree"))
    moved = open_graph(tmp_path / "o")
    assert by_ends(moved) == expected
    assert not np.array_equal(moved.topology.edge_weights, values["edge_weight"])


def test_weights_of_equal_edges_are_added_up_and_other_values_are_not_chosen(tmp_path):
    arrays = make_arrays(3, vertices=30)
    twice = {key: np.repeat(arrays[key], 2) for key in ("indices",)} | {"indptr": 2 * arrays["indptr"]}
    weights = np.arange(1, 1 + len(twice["indices"]), dtype=np.float32)
    source = save(arrays | twice | {"edge_weight": weights}, tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b.npz", sort=True, unique=True))
    np.testing.assert_array_equal(
        open_graph(tmp_path / "b.npz").topology.edge_weights, weights.reshape(-1, 2).sum(1)
    )
    features = np.ones((len(weights), 2), np.float32)
    source = save(arrays | twice | {"edge_features": features}, tmp_path / "c.npz")
    with pytest.raises(DataError, match=r"key 'edge_features' has values .* --unique cannot merge"):
        convert(Conversion(str(source), tmp_path / "d.npz", sort=True, unique=True))


@pytest.mark.parametrize(
    ("types", "says"),
    [
        (lambda n: np.zeros(n + 1, np.int8), "has .* entries for"),
        (lambda n: np.full(n, -1, np.int8), "value -1 at position 0 must be from 0 to"),
        (lambda n: np.zeros(n, np.float32), "dtype float32, expected int8 or"),
        (lambda n: np.zeros((n, 1), np.int8), "expected 1 dimension"),
    ],
)
def test_types_are_one_number_for_each_edge(tmp_path, types, says):
    arrays = make_arrays(3, vertices=30)
    with pytest.raises(DataError, match=f"key 'edge_type'.* {says}"):
        open_graph(save(arrays | {"edge_type": types(len(arrays["indices"]))}, tmp_path / "a.npz"))


@pytest.mark.parametrize("name", ["a.npz", "a"])
@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("feature", np.zeros((30, 2)), r": did you mean 'features'\?"),
        ("year", np.zeros(30), ""),
        ("names", np.array([{}, None]), ""),
        ("title", np.array("a text"), ""),
    ],
)
def test_other_keys_are_warned_of(tmp_path, name, key, value, hint):
    arrays = make_arrays(3, vertices=30)
    with pytest.warns(DataWarning, match=f"{name}: key '{key}' is not read{hint}$"):
        graph = open_graph(save(arrays | {key: value}, tmp_path / name))
    assert_holds(graph, arrays)


def test_as_many_edges_as_vertices_leave_an_unknown_key_unknown(tmp_path):
    ring = np.arange(6, dtype=np.int32)
    arrays = make_arrays(3, vertices=6) | {"indptr": np.arange(7), "indices": np.roll(ring, 1)}
    with pytest.warns(DataWarning, match="key 'year' is not read"):
        open_graph(save(arrays | {"year": ring}, tmp_path / "a.npz"))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_weight_by_which_nothing_can_be_drawn_is_named(tmp_path, bad):
    arrays = make_arrays(3, vertices=30)
    weights = np.ones(len(arrays["indices"]), np.float32)
    weights[4] = bad
    with pytest.raises(DataError, match=r"key 'edge_weight': value .* at position 4 must be a finite number"):
        open_graph(save(arrays | {"edge_weight": weights}, tmp_path / "a.npz"))


@pytest.mark.parametrize(("name", "is_table"), [("a.csv", True), ("a.parquet", True), ("a.bin", False)])
def test_the_import_is_the_remedy_for_a_table(name: str, is_table: bool, tmp_path: Path) -> None:
    (tmp_path / name).write_text("src,dst\n0,1\n")
    with pytest.raises(DataError, match=r"is not a \.npz file") as caught:
        open_graph(tmp_path / name)
    assert ("import tables with `hyrt data import`" in str(caught.value)) == is_table
