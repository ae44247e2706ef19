"""Small folders of our own, laid out as the ogb package lays out its downloads."""

from __future__ import annotations

import gzip
import sys
import types
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from hyrt.errors import DataError
from hyrt.graph import open_graph
from hyrt.graph.formats import ogb_dataset as layout
from hyrt.graph.formats import ogb_dataset as ogb_types
from hyrt.graph.formats import ogb_files
from hyrt.graph.formats.convert import Conversion, convert

COUNT = 40


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    """Pieces that cut these graphs, too."""
    for module, name in ((layout, "_PIECE"), (ogb_files, "_LINES"), (ogb_types, "_PIECE")):
        monkeypatch.setattr(module, name, 7)


def _parts(seed=0):
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, COUNT, (2, 150))
    features = rng.standard_normal((COUNT, 6)).astype(np.float32)
    labels = rng.integers(0, 3, COUNT)
    labels[:3] = range(3)
    order = rng.permutation(COUNT)
    return edges, features, labels, {"train": order[:20], "valid": order[20:28], "test": order[28:]}


def _csv(path, table):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, table, fmt="%d" if table.dtype.kind == "i" else "%.9g", delimiter=",")


def _write_csv(folder):
    edges, features, labels, split = _parts()
    _csv(folder / "raw" / "edge.csv.gz", edges.T)
    _csv(folder / "raw" / "node-feat.csv.gz", features)
    _csv(folder / "raw" / "node-label.csv.gz", labels[:, None])
    _csv(folder / "raw" / "num-node-list.csv.gz", np.array([[COUNT]]))
    _csv(folder / "raw" / "num-edge-list.csv.gz", np.array([[150]]))
    for name, vertices in split.items():
        _csv(folder / "split" / "time" / f"{name}.csv.gz", vertices[:, None])
    return folder


def _write_binary(folder):
    edges, features, labels, split = _parts()
    (folder / "raw").mkdir(parents=True)
    np.savez_compressed(
        folder / "raw" / "data.npz",
        edge_index=edges,
        node_feat=features,
        node_year=np.zeros((COUNT, 1)),
        num_nodes_list=np.array([COUNT]),
        num_edges_list=np.array([150]),
    )
    values = labels[:, None].astype(np.float32)
    values[split["test"][0]] = np.nan
    np.savez_compressed(folder / "raw" / "node-label.npz", node_label=values)
    for name, vertices in split.items():
        _csv(folder / "split" / "time" / f"{name}.csv.gz", vertices[:, None])
    return folder


def _write_mag(folder):
    edges, features, labels, split = _parts()
    paper, cites = folder / "processed" / "paper", folder / "processed" / "paper___cites___paper"
    paper.mkdir(parents=True)
    cites.mkdir()
    np.save(paper / "node_feat.npy", features.astype(np.float16))
    np.save(paper / "node_year.npy", np.zeros(COUNT, np.int32))
    values = labels.astype(np.float32)
    values[split["test"]] = np.nan  # as published
    np.save(paper / "node_label.npy", values)
    np.save(cites / "edge_index.npy", edges)
    torch.save({"paper": COUNT, "author": 5, "institution": 2, "num_classes": 3}, folder / "meta.pt")
    torch.save(
        {"train": split["train"], "valid": split["valid"], "test": split["test"]}, folder / "split_dict.pt"
    )
    return folder


def _assert_topology(graph):
    edges = _parts()[0]
    pairs = {(int(u), int(v)) for u, v in edges.T}
    pairs |= {(v, u) for u, v in pairs}
    targets = np.repeat(np.arange(COUNT), graph.topology.in_degrees)
    assert list(zip(targets.tolist(), graph.topology.indices.tolist(), strict=True)) == sorted(pairs)


def test_csv(tmp_path):
    _, features, labels, split = _parts()
    graph = open_graph(_write_csv(tmp_path / "ogbn_small"))
    _assert_topology(graph)
    np.testing.assert_array_equal(graph.features.values, features)
    np.testing.assert_array_equal(graph.labels, labels)
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        np.testing.assert_array_equal(graph.split(ours), np.sort(split[theirs]))


def test_binary(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "_PIECE", 37)  # a piece holds the last sources and the first targets
    _, features, labels, split = _parts()
    graph = open_graph(_write_binary(tmp_path / "ogbn_small"))
    _assert_topology(graph)
    np.testing.assert_array_equal(graph.features.values, features)
    assert graph.labels[split["test"][0]] == -1
    np.testing.assert_array_equal(
        np.delete(graph.labels, split["test"][0]), np.delete(labels, split["test"][0])
    )
    np.testing.assert_array_equal(graph.split("test"), np.sort(split["test"][1:]))


def test_mag240m(tmp_path):
    _, features, _, split = _parts()
    folder = _write_mag(tmp_path / "mag240m_kddcup2021")
    graph = open_graph(folder)
    _assert_topology(graph)
    np.testing.assert_array_equal(graph.features.values, features.astype(np.float16))
    assert graph.features.values.dtype == np.float16
    np.testing.assert_array_equal(graph.split("val"), np.sort(split["valid"]))
    assert len(graph.split("test")) == 0


@pytest.mark.parametrize("write", [_write_csv, _write_binary, _write_mag])
def test_convert_to_a_folder(tmp_path, write):
    source = write(tmp_path / "source")
    lines = []
    convert(Conversion(str(source), tmp_path / "out"), lines.append)
    assert len(lines) == 1
    direct, converted = open_graph(source), open_graph(tmp_path / "out", check=True)
    _assert_topology(converted)
    np.testing.assert_array_equal(direct.features.values, converted.features.values)
    np.testing.assert_array_equal(direct.labels, converted.labels)
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(direct.masks[split], converted.masks[split])


def test_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _write_csv(tmp_path / "dataset" / "ogbn_small")
    _assert_topology(open_graph("ogbn-small"))
    monkeypatch.setitem(sys.modules, "ogb", None)
    for name in ("ogbn-arxiv", "mag240m"):
        with pytest.raises(
            DataError,
            match=rf"^{name} was found neither in dataset/ nor in {tmp_path}/cache/hyrt/ogb/"
            r'.*pip install "hyrt\[ogb\]"',
        ):
            open_graph(name)


def test_where_names_are_looked_for(tmp_path, monkeypatch):
    for folder in ("one", "two", "home"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for unset in ("", "relative/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert ogb_files.find_ogb_folder("mag240m") == tmp_path / "home/.cache/hyrt/ogb/mag240m_kddcup2021"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cached = _write_csv(tmp_path / "cache" / "hyrt" / "ogb" / "ogbn_small")
    (tmp_path / "one" / "dataset").mkdir()  # of something else
    for folder in ("one", "two"):
        monkeypatch.chdir(tmp_path / folder)
        assert ogb_files.find_ogb_folder("ogbn-small") == cached
        _assert_topology(open_graph("ogbn-small"))
        convert(Conversion("ogbn-small", tmp_path / f"{folder}-out"))
    _write_csv(tmp_path / "two" / "dataset" / "ogbn_small")
    assert ogb_files.find_ogb_folder("ogbn-small") == Path("dataset/ogbn_small")


def _installed_ogb(tmp_path, monkeypatch, download):
    """An ogb package with the names hyrt uses of it."""
    package = tmp_path / "site" / "ogb"
    for name in ("utils", "nodeproppred", "lsc"):
        (package / name).mkdir(parents=True)
        (package / name / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "lsc" / "__init__.py").write_text(
        "class MAG240MDataset:\n    url = 'https://x/mag240m_kddcup2021.zip'\n"
    )
    (package / "nodeproppred" / "master.csv").write_text(
        ",ogbn-small,ogbn-many\nnum tasks,1,112\ndownload_name,small,many\n"
        "url,https://x/small.zip,https://x/many.zip\nis hetero,False,False\n"
    )
    url = types.ModuleType("ogb.utils.url")
    url.decide_download = lambda address: True
    url.download_url = download
    url.extract_zip = lambda path, folder: zipfile.ZipFile(path).extractall(folder)
    monkeypatch.syspath_prepend(str(package.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "ogb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ogb.utils.url", url)
    return url


def test_download(tmp_path, monkeypatch):
    def download(address, folder):
        source = _write_csv(tmp_path / "made" / "small")
        target = tmp_path / folder / address.rpartition("/")[2]
        with zipfile.ZipFile(target, "w") as archive:
            for file in source.rglob("*.gz"):
                archive.write(file, file.relative_to(source.parent))
        return str(target)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = _installed_ogb(tmp_path, monkeypatch, download)
    _assert_topology(open_graph("ogbn-small"))
    assert [path.name for path in (tmp_path / "cache" / "hyrt" / "ogb").iterdir()] == ["ogbn_small"]
    with pytest.raises(DataError, match="ogbn-many is multi-label"):
        open_graph("ogbn-many")
    with pytest.raises(
        DataError,
        match="ogbn-nothing is not a dataset of the installed ogb: use one of ogbn-small, ogbn-many and",
    ):
        open_graph("ogbn-nothing")
    url.decide_download = lambda address: False
    with pytest.raises(DataError, match="mag240m was not downloaded"):
        open_graph("mag240m")

    def unreachable(address, folder):
        raise OSError("no route")

    url.decide_download, url.download_url = lambda address: True, unreachable
    with pytest.raises(DataError, match=r"mag240m could not be downloaded from https://x/.*no route"):
        open_graph("mag240m")


def test_bad_folders(tmp_path):
    folder = _write_csv(tmp_path / "a")
    _csv(folder / "raw" / "edge.csv.gz", np.array([[0, 1], [2, 40]]))
    with pytest.raises(DataError, match=r"edge\.csv\.gz: value 40 of edge 1 is not one of the 40 vertices"):
        open_graph(folder)
    (folder / "raw" / "edge.csv.gz").write_bytes(gzip.compress(b"0,1\n1,x\n"))
    with pytest.raises(DataError, match=r"edge\.csv\.gz is damaged from line 1 \(.*'x'.*row 1"):
        open_graph(folder)
    folder = _write_csv(tmp_path / "b")
    file = folder / "raw" / "node-feat.csv.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"node-feat\.csv\.gz is missing, damaged or truncated"):
        open_graph(folder)
    folder = _write_csv(tmp_path / "c")
    _csv(folder / "raw" / "node-feat.csv.gz", np.zeros((39, 6)))
    with pytest.raises(DataError, match=r"has 39 rows for 40 vertices"):
        open_graph(folder)
    folder = _write_csv(tmp_path / "d")
    _csv(folder / "raw" / "node-label.csv.gz", np.full((40, 2), 3))
    assert repr(open_graph(folder)).endswith("2 numbers)")
    _csv(folder / "raw" / "node-label.csv.gz", np.tile([0, 1], (40, 1)))
    assert repr(open_graph(folder)).endswith("2 labels of 0 and 1)")
    folder = _write_csv(tmp_path / "e")
    _csv(folder / "split" / "time" / "valid.csv.gz", np.array([[3], [99]]))
    with pytest.raises(DataError, match="val split: value 99 at position 1 is not a vertex"):
        open_graph(folder)
    folder = _write_csv(tmp_path / "f")
    (folder / "raw" / "node-label.csv.gz").unlink()
    with pytest.raises(DataError, match=r"node-label\.csv\.gz is missing, damaged or truncated"):
        open_graph(folder)
    folder = _write_csv(tmp_path / "h")
    _csv(folder / "raw" / "num-node-list.csv.gz", np.array([[20], [20]]))
    with pytest.raises(DataError, match="has 2 graphs, expected one"):
        open_graph(folder)
    (tmp_path / "g" / "raw").mkdir(parents=True)
    with pytest.raises(DataError, match="not an OGB dataset"):
        open_graph(tmp_path / "g")
    (tmp_path / "g" / "raw" / "edge_index_dict.npz").touch()
    with pytest.raises(DataError, match="hyrt cannot read heterogeneous graphs in ogb's binary form"):
        open_graph(tmp_path / "g")


def test_split_file_of_an_older_numpy(tmp_path):
    folder = _write_mag(tmp_path / "a")
    split = folder / "split_dict.pt"
    with zipfile.ZipFile(split) as archive:
        members = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(split, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content.replace(b"numpy._core.", b"numpy.core."))
    np.testing.assert_array_equal(open_graph(folder).split("val"), np.sort(_parts()[3]["valid"]))


def test_pickles_are_refused(tmp_path):
    folder = _write_mag(tmp_path / "a")
    torch.save({"train": _Unsafe()}, folder / "split_dict.pt")
    with pytest.raises(DataError, match=r"split_dict\.pt is missing, damaged or not made of plain"):
        open_graph(folder)
    (folder / "split_dict.pt").write_bytes(b"rubbish")
    with pytest.raises(DataError, match=r"split_dict\.pt is missing, damaged or not made of plain"):
        open_graph(folder)


class _Unsafe:
    """A class no allow-list names."""


def test_too_many_edges_for_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(layout, "MAX_EDGES_IN_MEMORY", 100)
    for i, write in enumerate((_write_csv, _write_binary, _write_mag)):
        source = write(tmp_path / str(i))
        with pytest.raises(DataError, match="150 edges must be sorted on disk first: run hyrt data convert"):
            open_graph(source)
        convert(Conversion(str(source), tmp_path / f"{i}-out"))


def test_features_of_edges_are_not_dropped(tmp_path):
    folder = _write_csv(tmp_path / "a")
    _csv(folder / "raw" / "edge-feat.csv.gz", np.ones((150, 2)))
    with pytest.raises(DataError, match=r"has edge features.* move .*edge-feat\.csv\.gz elsewhere"):
        open_graph(folder)
    folder = _write_binary(tmp_path / "b")
    with np.load(folder / "raw" / "data.npz") as arrays:
        held = dict(arrays)
    np.savez(folder / "raw" / "data.npz", **held, edge_feat=np.ones((150, 2)))
    with pytest.raises(DataError, match="key 'edge_feat': hyrt cannot use edge features"):
        open_graph(folder)
