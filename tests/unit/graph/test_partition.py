"""Graphs in parts: every vertex once, the source's rows and edges, damage named, nothing half-written."""

from __future__ import annotations

import json
import os
import tempfile
import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_datasets import Arrays, assert_holds, datasets, make_arrays, save
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hyrt.api import load
from hyrt.cli.commands import app
from hyrt.errors import DataError
from hyrt.graph import DenseFeatures, SparseFeatures, open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.normalize import NORMALIZERS
from hyrt.graph.partition import partitioned_rows as dealt_rows
from hyrt.graph.partition import read_parts as all_parts
from hyrt.graph.partition import write_parts
from hyrt.graph.partition.manifest import read_manifest, write_manifest
from hyrt.graph.partition.metis_parts import MetisParts
from hyrt.graph.partition.partitioned_rows import PartitionedFeatures
from hyrt.graph.partition.read_parts import open_part
from hyrt.graph.partition.write_parts import PartitionJob
from hyrt.runtime.workers import Workers


@pytest.fixture(autouse=True, scope="module")
def _small_pieces():
    """Pieces that cut these graphs, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealt_rows, "ENTRIES", 20)
        patch.setattr(write_parts, "ENTRIES", 20)
        patch.setattr(write_parts, "_OPEN_FILES", 2)
        patch.setattr(all_parts, "rows_per_chunk", lambda row_shape, dtype: 7)
        yield


def written(arrays: Arrays, folder: Path, parts: int, method: str = "random", **how: Any) -> Path:
    source = save(arrays, folder / "source.npz")
    write_parts.write_parts(PartitionJob(str(source), folder / "parts", parts, method, **how))
    return folder / "parts"


def rows_of(features: Any, vertices: np.ndarray) -> np.ndarray:
    out = np.full((len(vertices), features.width), np.nan, np.float32)
    with Workers(2, "test") as workers:
        features.rows(vertices, out, workers)
    return out


def dense_of(arrays: Arrays) -> np.ndarray:
    """[V, F] float32, by numpy alone."""
    if "features" in arrays:
        return arrays["features"].astype(np.float32)
    out = np.zeros(arrays["feat_shape"], np.float32)
    for vertex, (low, high) in enumerate(pairwise(arrays["feat_indptr"])):
        out[vertex, arrays["feat_indices"][low:high]] = arrays["feat_values"][low:high]
    return out


@settings(max_examples=25, deadline=None)
@given(
    datasets,
    st.integers(1, 6),
    st.sampled_from(["random", "block"]),
    st.sampled_from(["replicated", "split"]),
    st.integers(0, 9),
)
def test_parts_are_the_source(arrays, parts, method, topology, seed):
    count = len(arrays["labels"])
    parts = min(parts, count)
    with tempfile.TemporaryDirectory() as name:
        folder = written(arrays, Path(name), parts, method, topology=topology, seed=seed)
        homes = np.load(folder / "graph" / "home.npy")
        assert homes.dtype == np.uint8
        manifest = read_manifest(folder)
        wanted, edges, cut = dense_of(arrays), np.diff(arrays["indptr"]), np.zeros(parts, int)
        training = arrays["train_mask"] if arrays["train_mask"].ndim == 1 else arrays["train_mask"][:, 0]
        for vertex, (low, high) in enumerate(pairwise(arrays["indptr"])):
            cut[homes[vertex]] += (homes[arrays["indices"][low:high]] != homes[vertex]).sum()
        seen = np.zeros(count, int)
        for number, sizes in enumerate(manifest.parts):
            here = folder / f"part-{number:04}"
            vertices = np.load(here / "vertices.npy")
            assert np.array_equal(vertices, np.flatnonzero(homes == number))
            seen[vertices] += 1
            assert (sizes.vertices, sizes.edges) == (len(vertices), edges[vertices].sum())
            assert (sizes.training, sizes.cut) == (training[vertices].sum(), cut[number])
            if "features" in arrays:
                assert np.array_equal(np.load(here / "features.npy"), arrays["features"][vertices])
        assert np.all(seen == 1)
        assert manifest.cut == cut.sum()
        assert max(p.vertices for p in manifest.parts) - min(p.vertices for p in manifest.parts) <= 1

        graph = open_graph(folder, check=True)
        if isinstance(graph.features, SparseFeatures):
            assert_holds(graph, arrays)
        else:
            assert_holds(graph.with_features(DenseFeatures(arrays["features"])), arrays)
            assert isinstance(graph.features, PartitionedFeatures)
        ids = np.random.default_rng(seed).integers(0, count, 50).astype(np.int32)
        assert np.array_equal(rows_of(graph.features, ids), wanted[ids])
        convert(Conversion(str(folder), Path(name) / "whole"))
        assert_holds(open_graph(Path(name) / "whole"), arrays)
        source = open_graph(Path(name) / "source.npz").fingerprint
        part = open_part(folder, parts - 1).graph
        assert graph.fingerprint == source == part.fingerprint == open_graph(Path(name) / "whole").fingerprint


@settings(max_examples=10, deadline=None)
@given(datasets, st.integers(1, 5), st.sampled_from(["auto", "none", "row", "length"]))
def test_a_rank_has_the_graph_and_the_rows_of_its_part(arrays, parts, normalize):
    parts = min(parts, len(arrays["labels"]))
    if "features" in arrays:
        normalize = "auto" if normalize in ("row", "length") else normalize
    with tempfile.TemporaryDirectory() as name:
        folder = written(arrays, Path(name), parts)
        whole = open_graph(Path(name) / "source.npz", normalize=normalize)
        for number in range(parts):
            for other in range(parts):
                if other != number:
                    (folder / f"part-{other:04}").rename(Path(name) / f"elsewhere-{other}")
            part = open_part(folder, number, normalize=normalize)
            assert_holds(part.graph.with_features(whole.features), arrays | _features(whole))
            assert np.array_equal(part.vertices, np.flatnonzero(part.part_ids == number))
            wanted = rows_of(whole.features, part.vertices)
            assert np.array_equal(rows_of(part.graph.features, part.vertices), wanted)
            places = part.local_ids[part.vertices]
            assert np.array_equal(rows_of(part.rows, places), wanted)
            foreign = np.flatnonzero(part.part_ids != number)
            if len(foreign):
                vertices = np.append(part.vertices, foreign[0])
                message = rf"the row of vertex {foreign[0]} is in part \d, which is not open here: read only "
                with pytest.raises(DataError, match=message):
                    rows_of(part.graph.features, vertices)
            for other in range(parts):
                if other != number:
                    (Path(name) / f"elsewhere-{other}").rename(folder / f"part-{other:04}")


def _features(graph: Any) -> Arrays:
    if isinstance(graph.features, SparseFeatures):
        return {"feat_values": graph.features.values}
    return {"features": graph.features.values}


@pytest.mark.parametrize("sparse", [False, True])
def test_normalized_parts_are_the_normalized_source(tmp_path, sparse):
    arrays = make_arrays(2, sparse=sparse)
    if sparse:
        arrays["feat_values"][:] = 1
    source = save(arrays, tmp_path / "a.npz")
    everyone = np.arange(30)
    for normalize in NORMALIZERS:
        if sparse and normalize == "standard":
            continue
        folder = tmp_path / normalize
        write_parts.write_parts(PartitionJob(str(source), folder, 3, "random", normalize=normalize))
        wanted = rows_of(open_graph(source, normalize=normalize).features, everyone)
        # What the parts have got is not done twice, and what they have not is done when they are opened.
        for again in {"none", normalize}:
            assert np.array_equal(rows_of(open_graph(folder, normalize=again).features, everyone), wanted)
        part = open_part(folder, 1, normalize=normalize)
        assert np.array_equal(rows_of(part.rows, np.arange(10)), wanted[part.vertices])
        if normalize != "auto":
            opened = open_graph(
                tmp_path / "none" if (tmp_path / "none").exists() else source, normalize=normalize
            )
            assert np.array_equal(rows_of(opened.features, everyone), wanted)
    if not sparse:
        with pytest.raises(
            DataError, match=r"a rank cannot normalize features by 'standard': normalize them"
        ):
            open_part(tmp_path / "none", 0, normalize="standard")


@pytest.mark.parametrize("topology", ["replicated", "split"])
@pytest.mark.parametrize("sparse", [False, True])
def test_damage_of_any_file_is_named(tmp_path, sparse, topology):
    arrays = make_arrays(3, vertices=40, sparse=sparse, splits=2)
    folder = written(arrays, tmp_path, 2, topology=topology)
    (tmp_path / "b").mkdir()
    strange = written(
        make_arrays(3, vertices=40, sparse=sparse, splits=2), tmp_path / "b", 2, seed=1, topology=topology
    )
    files = sorted(folder.glob("*/*.npy"))
    assert len(files) == len(read_manifest(folder).files) > 10

    def openings(file: Path) -> list[Any]:
        ways = [lambda: open_graph(folder)]
        if topology == "replicated" and file.parent.name != "part-0001":
            ways.append(lambda: open_part(folder, 0))
        return ways

    for file in files:
        whole = file.read_bytes()
        inside = bytearray(whole)
        inside[(128 + len(whole)) // 2] ^= 1
        for damaged in (bytes(inside), whole[:-1], b"", None):
            if damaged is None:
                file.unlink()
            else:
                file.write_bytes(damaged)
            for opening in openings(file):
                with pytest.raises(DataError) as error:
                    opening()
                assert f"{file.parent.name}/{file.name}" in str(error.value)
            file.write_bytes(whole)
        other = (strange / file.relative_to(folder)).read_bytes()
        if other != whole:
            file.write_bytes(other)
            for opening in openings(file):
                with pytest.raises(
                    DataError, match=f"{file.parent.name}/{file.name}.*or of another partition"
                ):
                    opening()
            file.write_bytes(whole)
    open_graph(folder, check=True)


def test_a_damaged_manifest_is_named(tmp_path):
    folder = written(make_arrays(3), tmp_path, 2)
    file = folder / "partition.json"
    whole = file.read_text()
    for damaged in (
        "",
        "{",
        "[]",
        "{}",
        whole.replace('"seed": 0', '"seed": 1'),
        whole.replace('"id": "', '"id": "0'),
    ):
        file.write_text(damaged)
        for opening in (lambda: open_graph(folder), lambda: open_part(folder, 0)):
            with pytest.raises(DataError, match=r"partition\.json"):
                opening()
    file.write_text(whole)
    ours, theirs = read_manifest(folder), json.loads(whole)
    assert ours.id == theirs["id"]
    (tmp_path / "b").mkdir()
    again = read_manifest(written(make_arrays(3), tmp_path / "b", 2, seed=1))
    assert again.id != ours.id
    with pytest.raises(DataError, match=r"has no part 2, but 2 parts numbered from 0: choose one of these"):
        open_part(folder, 2)
    with pytest.raises(DataError, match=r"pass a folder written by hyrt partition"):
        open_part(tmp_path, 0)


def test_a_part_of_split_edges_has_those_into_its_vertices(tmp_path):
    arrays = make_arrays(3)
    arrays["edge_type"] = np.random.default_rng(3).integers(0, 4, len(arrays["indices"])).astype(np.int8)
    folder = written(arrays, tmp_path, 3, topology="split")
    for key in ("indptr", "indices", "edge_type"):
        assert not (folder / "graph" / f"{key}.npy").exists()
    whole = open_graph(folder).topology
    manifest = read_manifest(folder)
    assert open_part(folder, 1).graph.topology.checksum == whole.checksum == manifest.edges_checksum
    # One part of an earlier version does not know all edges.
    write_manifest(manifest.model_copy(update={"edges_checksum": None}).with_id(), folder)
    assert open_part(folder, 1).graph.topology.checksum is None
    assert np.array_equal(whole.indices, arrays["indices"])
    assert np.array_equal(whole.edge_types, arrays["edge_type"])
    for number in range(3):
        part = open_part(folder, number)
        own = part.graph.topology
        for vertex, (low, high) in enumerate(pairwise(arrays["indptr"])):
            here = slice(own.indptr[vertex], own.indptr[vertex + 1])
            wanted = slice(low, high) if part.part_ids[vertex] == number else slice(0, 0)
            assert np.array_equal(own.indices[here], arrays["indices"][wanted])
            assert np.array_equal(own.edge_types[here], arrays["edge_type"][wanted])


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("topology", ["replicated", "split"])
def test_neighbouring_parts_are_opened_as_one_block(tmp_path, sparse, topology):
    arrays = make_arrays(5, sparse=sparse)
    arrays["edge_type"] = np.random.default_rng(3).integers(0, 4, len(arrays["indices"])).astype(np.int8)
    folder = written(arrays, tmp_path, 4, topology=topology)
    whole, homes = open_graph(folder), np.load(folder / "graph" / "home.npy")
    for number in range(2):
        block = open_part(folder, number, num_blocks=2)
        assert np.array_equal(block.part_ids, homes // 2)
        assert np.array_equal(block.vertices, np.flatnonzero(homes // 2 == number))
        assert np.array_equal(block.local_ids[block.vertices], np.arange(len(block.vertices)))
        places = np.arange(len(block.vertices))
        assert np.array_equal(rows_of(block.rows, places), rows_of(whole.features, block.vertices))
        own = block.graph.topology
        for vertex in block.vertices:
            here = slice(own.indptr[vertex], own.indptr[vertex + 1])
            there = slice(arrays["indptr"][vertex], arrays["indptr"][vertex + 1])
            assert np.array_equal(own.indices[here], arrays["indices"][there])
            assert np.array_equal(own.edge_types[here], arrays["edge_type"][there])
    with pytest.raises(DataError, match="4 parts, which cannot be merged into 3 blocks"):
        open_part(folder, 0, num_blocks=3)


def test_nothing_is_left_of_what_failed(tmp_path, monkeypatch):
    arrays = make_arrays(3)
    arrays["features"][20, 3] = np.nan
    with pytest.raises(DataError, match="value nan at row 20, column 3 is not finite"):
        written(arrays, tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["source.npz"]
    folder = written(make_arrays(3), tmp_path, 2)
    before = read_manifest(folder).id
    with pytest.raises(DataError, match="already exists: choose another name, or use --force to replace it"):
        written(make_arrays(3), tmp_path, 2)
    with pytest.raises(DataError, match="not finite"):
        written(arrays, tmp_path, 2, force=True)

    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(write_parts, "write_manifest", interrupt)
        with pytest.raises(KeyboardInterrupt):
            written(make_arrays(3), tmp_path, 2, force=True)
    assert read_manifest(folder).id == before
    written(make_arrays(4), tmp_path, 3, force=True)
    assert read_manifest(folder).num_parts == 3
    (folder / "letter.txt").write_text("dear")
    with pytest.raises(
        DataError, match="contains files other than graph parts, so --force does not replace it"
    ):
        written(make_arrays(4), tmp_path, 3, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "source.npz"]


def test_what_cannot_be_cut_is_refused(tmp_path):
    source = str(save(make_arrays(3), tmp_path / "a.npz"))
    for how, message in {
        ("parts", 31): "has 30 vertices, but --parts 31 needs at least one for each part: use fewer parts",
        ("parts", 0): r"--parts 0 is out of range: use 1 to 1,024",
        ("parts", 1025): r"--parts 1025 is out of range: use 1 to 1,024",
        ("method", "spectral"): r"--method spectral is unknown: choose random, block, metis or volume",
        ("topology", "half"): r"--topology half is unknown: choose replicated or split",
        ("normalize", "half"): r"--normalize half is unknown: choose",
        ("imbalance", 0.1): "--imbalance has no effect, because --method random does not weigh parts: remove",
        ("max_vertices", 14): "2 parts of this size cannot contain the 30 vertices of .*: use at least 15",
    }.items():
        given = {"num_parts": 2, "method": "random", ("num_parts" if how[0] == "parts" else how[0]): how[1]}
        with pytest.raises(DataError, match=message):
            write_parts.write_parts(PartitionJob(source, tmp_path / "parts", **given))
    pytest.importorskip("pymetis")
    for imbalance in (-0.1, 0, float("nan"), 1.5):
        with pytest.raises(DataError, match=rf"--imbalance {imbalance} is out of range: use 0.001 to 1"):
            write_parts.write_parts(
                PartitionJob(source, tmp_path / "parts", 2, "volume", imbalance=imbalance)
            )
    with pytest.raises(
        DataError, match="--method metis, which limits the weight of each part, but not its number of"
    ):
        write_parts.write_parts(PartitionJob(source, tmp_path / "parts", 2, "metis", max_vertices=20))
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_a_name_that_is_not_utf8(tmp_path):
    folder = tmp_path / os.fsdecode(b"d\xe4ta")
    folder.mkdir()
    arrays = make_arrays(4)
    parts = written(arrays, folder, 2)
    source = f"{tmp_path}/d\\xe4ta/source.npz"
    assert read_manifest(parts).source == source
    # Any output can show the names of what is open.
    assert open_graph(folder / "source.npz").name == source
    graph = open_graph(parts)
    assert graph.name == f"{tmp_path}/d\\xe4ta/parts"
    assert np.array_equal(rows_of(graph.features, np.arange(30)), arrays["features"])


def test_as_many_parts_as_vertices_and_many_files(tmp_path):
    arrays = make_arrays(5, vertices=300, width=2)
    folder = written(arrays, tmp_path, 300)
    homes = np.load(folder / "graph" / "home.npy")
    assert homes.dtype == np.uint16
    assert np.array_equal(np.sort(homes), np.arange(300))
    assert np.array_equal(rows_of(open_graph(folder).features, np.arange(300)), arrays["features"])
    lines = CliRunner().invoke(app, ["data", "info", str(folder)]).output
    assert "... 284 more parts; use --json for all" in lines


def test_metis_cuts_little(tmp_path):
    pytest.importorskip("pymetis")
    spec = "synthetic:tiny,homophily=0.9"
    figures = {}
    for method in ("random", "metis"):
        folder = tmp_path / method
        result = CliRunner().invoke(
            app, ["partition", "--data", spec, "--parts", "4", "--method", method, "-o", str(folder)]
        )
        assert result.exit_code == 0, result.output
        facts = json.loads(CliRunner().invoke(app, ["data", "info", str(folder), "--json"]).output)
        figures[method] = facts["partition"]
        assert f"locality {figures[method]['locality']:.1%}" in result.output
    assert figures["metis"]["cut"] < 0.6 * figures["random"]["cut"]
    assert figures["metis"]["imbalance"]["training"] < 0.2
    again = PartitionJob(spec, tmp_path / "again", 4, "metis")
    assert write_parts.write_parts(again).id == figures["metis"]["id"]
    # A directed graph with loops: METIS takes the pairs that are joined.
    arrays = make_arrays(7, vertices=40)
    loops = arrays["indices"] == np.repeat(np.arange(40), np.diff(arrays["indptr"]))
    assert loops.any()
    written(arrays, tmp_path, 3, "metis")


@pytest.mark.parametrize("parts", [2, 4])
def test_few_training_vertices_are_not_a_part_of_their_own(parts: int) -> None:
    pytest.importorskip("pymetis")
    graph = load("synthetic:papers-s,vertices=3000,features=2,train=30")
    training = np.asarray(graph.masks["train"]).astype(np.bool_)
    homes = MetisParts().homes(graph.topology, training, parts, seed=0)
    for amounts in (graph.topology.in_degrees, training):
        shares = np.bincount(homes, amounts, minlength=parts) / amounts.sum()
        assert shares.max() < 1.5 / parts


def test_parts_have_no_more_vertices_than_they_may(tmp_path):
    pytest.importorskip("pymetis")
    # A hub with all the edges: parts that weigh as much as the others have it alone.
    arrays = make_arrays(6, vertices=120)
    arrays |= {"indptr": np.array([0, *[119] * 120]), "indices": np.arange(1, 120, dtype=np.int32)}
    source = save(arrays, tmp_path / "hub.npz")
    words = ["partition", "--data", str(source), "--parts", "2", "--method", "volume"]
    words += ["--max-vertices", "70", "-o", str(tmp_path / "parts")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (
        "a part exceeds the allowed number of non-zeros, 5.0% above the mean: parts have at most 70"
        in " ".join(result.output.split())
    )
    assert max(part.vertices for part in read_manifest(tmp_path / "parts").parts) <= 70


def test_without_pymetis_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "hyrt\[partition\]"'):
        written(make_arrays(3), tmp_path, 2, "metis")


def test_memory_stays_below_the_printed_bounds(tmp_path):
    count = 50_000
    arrays = make_arrays(0, vertices=4) | {"features": np.zeros((count, 2000), np.float16)}
    everyone = np.ones(count, np.bool_)
    arrays |= {f"{split}_mask": everyone & (split == "train") for split in ("train", "val", "test")}
    arrays |= {"indptr": np.arange(count + 1), "labels": np.zeros(count, np.int8)}
    source = save(arrays | {"indices": np.arange(count, dtype=np.int32)[::-1].copy()}, tmp_path / "source")
    said: list[str] = []
    tracemalloc.start()
    write_parts.write_parts(PartitionJob(str(source), tmp_path / "parts", 4, "random"), said.append)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bounds = [float(line.split("at most ")[1].split(" MiB")[0]) for line in said]
    # 191 MiB of features pass through.
    assert peak < min(sum(bounds) * 2**20, 0.75 * arrays["features"].nbytes)
