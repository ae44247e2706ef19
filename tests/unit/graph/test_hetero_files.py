"""Heterogeneous graphs in files: read, checked, converted, put in order, reversed and described."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.graph.graph_datasets import save
from unit.graph.hetero_datasets import NAMES, RELATIONS, Arrays, hetero_datasets, lists_of, make_hetero

import hyrt
from hyrt.errors import DataError, DataWarning
from hyrt.graph import open_graph
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.hetero import csr
from hyrt.graph.hetero.dataset import build_hetero_graph, get_edge_lists
from hyrt.graph.info import format_summary, summarize_graph
from hyrt.graph.partition.write_parts import PartitionJob, write_parts
from hyrt.graph.run_schema import build_run_schema
from hyrt.runtime.workers import current_workers


def pairs_of(graph: Any) -> dict[tuple[str, str, str], set[tuple[int, int]]]:
    return {
        (each.source, each.name, each.destination): set(zip(*(side.tolist() for side in ends), strict=True))
        for each, ends in get_edge_lists(graph).items()
    }


def rows_of(graph: Any, name: str) -> np.ndarray[Any, Any]:
    low, high = graph.types.interval(name)
    out = np.empty((high - low, graph.features.table_width(name)), np.float32)
    graph.features.table_rows(name, np.arange(low, high), out, current_workers())
    return out


def dense_authors(arrays: Arrays) -> np.ndarray[Any, Any]:
    dense = np.zeros(arrays["feat_shape:author"], np.float32)
    for row, (a, b) in enumerate(itertools.pairwise(arrays["feat_indptr:author"])):
        dense[row, arrays["feat_indices:author"][a:b]] = arrays["feat_values:author"][a:b]
    return dense


def assert_holds_types(graph: Any, arrays: Arrays) -> None:
    assert graph.types.vertex_types == NAMES
    assert graph.types.starts.tolist() == arrays["type_starts"].tolist()
    assert [(each.source, each.name, each.destination) for each in graph.types.relations] == list(RELATIONS)
    assert graph.types.target == "paper"
    np.testing.assert_array_equal(graph.topology.indptr, arrays["indptr"])
    np.testing.assert_array_equal(graph.topology.indices, arrays["indices"])
    np.testing.assert_array_equal(graph.topology.edge_types, arrays["edge_type"])
    np.testing.assert_array_equal(graph.labels, arrays["labels"])
    for split in ("train", "val", "test"):
        np.testing.assert_array_equal(graph.masks[split], arrays[f"{split}_mask"])
    if "edge_weight" in arrays:
        np.testing.assert_array_equal(graph.topology.edge_weights, arrays["edge_weight"])
    np.testing.assert_array_equal(rows_of(graph, "author"), dense_authors(arrays))
    np.testing.assert_array_equal(rows_of(graph, "paper"), arrays["features:paper"])
    assert graph.features.table("field") is None
    assert pairs_of(graph) == lists_of(arrays)


@settings(deadline=None, max_examples=12)
@given(arrays=hetero_datasets, first=st.sampled_from([".npz", ""]))
def test_files_and_folders_hold_the_same(tmp_path_factory, arrays, first):
    """Written by numpy, read, converted to the other form and back again: nothing changes."""
    folder = tmp_path_factory.mktemp("typed")
    source = save(arrays, folder / f"a{first}")
    assert_holds_types(open_graph(source), arrays)
    second = folder / ("b" if first else "b.npz")
    convert(Conversion(str(source), second))
    assert_holds_types(open_graph(second, check=True), arrays)
    convert(Conversion(str(second), folder / f"c{first}"))
    assert_holds_types(open_graph(folder / f"c{first}"), arrays)


@settings(deadline=None, max_examples=15)
@given(st.data(), st.sampled_from(["a.npz", "a"]))
def test_lists_of_edges_come_back(tmp_path_factory, data, name):
    """Lists of edges by relation, made a graph, written and opened, are the same lists."""
    counts = {each: data.draw(st.integers(int(each == "paper"), 5)) for each in NAMES}
    lists = {}
    for triple in RELATIONS:
        cells = counts[triple[0]] * counts[triple[2]]
        chosen = data.draw(st.lists(st.integers(0, max(cells - 1, 0)), unique=True, max_size=9 * (cells > 0)))
        lists[triple] = np.divmod(np.array(chosen, np.int64), max(counts[triple[2]], 1))
    labels = np.arange(counts["paper"]) % 2
    masks = dict.fromkeys(("train", "val", "test"), labels < 0)
    target = tmp_path_factory.mktemp("lists") / name
    hyrt.save(build_hetero_graph("given", counts, lists, labels, masks, "paper"), target)
    assert pairs_of(open_graph(target)) == {
        triple: set(zip(*(side.tolist() for side in ends), strict=True)) for triple, ends in lists.items()
    }


def test_folders_are_memory_mapped_and_verified(tmp_path):
    source = save(make_hetero(1), tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b"))
    graph = open_graph(tmp_path / "b")
    assert graph.features.table("paper").values.base is not None
    file = tmp_path / "b" / "features:paper.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")
    with pytest.raises(DataError, match=r"key 'features:paper': rows 0 to \d+ differ from what was written"):
        open_graph(tmp_path / "b")


def _set(key: str, at: Any, value: Any) -> Any:
    def change(arrays: Arrays) -> None:
        arrays[key] = arrays[key].copy()
        arrays[key][at] = value

    return change


def _give(key: str, value: Any) -> Any:
    return lambda arrays: arrays.__setitem__(key, value)


def _swap_edges(arrays: Arrays) -> None:
    """Put the first two edges of one relation into one vertex the other way round."""
    for a, b in itertools.pairwise(arrays["indptr"].tolist()):
        for e in range(a + 1, b):
            if arrays["edge_type"][e] == arrays["edge_type"][e - 1]:
                arrays["indices"][[e - 1, e]] = arrays["indices"][[e, e - 1]]
                return


def _swap_relations(arrays: Arrays) -> None:
    for a, b in itertools.pairwise(arrays["indptr"].tolist()):
        for e in range(a + 1, b):
            if arrays["edge_type"][e] != arrays["edge_type"][e - 1]:
                for key in ("edge_type", "indices"):
                    arrays[key][[e - 1, e]] = arrays[key][[e, e - 1]]
                return


def _repeat_edge(arrays: Arrays) -> None:
    for a, b in itertools.pairwise(arrays["indptr"].tolist()):
        for e in range(a + 1, b):
            if arrays["edge_type"][e] == arrays["edge_type"][e - 1]:
                arrays["indices"][e] = arrays["indices"][e - 1]
                return


# There are 4 authors, 6 papers and 7 fields.
DAMAGES: dict[str, tuple[Any, str]] = {
    "no relations": (lambda arrays: arrays.pop("relations"), "key 'relations' is missing"),
    "no edge types": (lambda arrays: arrays.pop("edge_type"), "key 'edge_type' is missing"),
    "names are numbers": (
        _give("vertex_types", np.arange(3)),
        "key 'vertex_types' has dtype .*expected strings",
    ),
    "no types": (_give("vertex_types", np.empty(0, "<U4")), "key 'vertex_types' is empty"),
    "a bad name": (
        _set("vertex_types", 0, "a/b"),
        "'vertex_types': name 'a/b' at position 0 must not contain '/'",
    ),
    "an empty name": (_set("vertex_types", 2, ""), "name '' at position 2 must consist of printable"),
    "a name twice": (_set("vertex_types", 2, "paper"), "name 'paper' at position 2 is a duplicate"),
    "few starts": (
        lambda a: a.update(type_starts=a["type_starts"][:-1]),
        "'type_starts' has 3 entries for 3 types",
    ),
    "a first start": (_set("type_starts", 0, 1), "'type_starts': value 1 at position 0 is not 0"),
    "starts that fall": (
        _set("type_starts", 2, 1),
        "value 1 at position 2 is less than the previous value, 4",
    ),
    "a last start": (
        _set("type_starts", 3, 90),
        "value 90 at position 3 differs from the number of vertices, 17",
    ),
    "short relations": (
        _give("relations", np.array([["a", "b"]])),
        r"'relations' has shape \[1, 2\], expected",
    ),
    "an unknown type": (_set("relations", (1, 2), "papr"), "row 1 has the type 'papr'.*did you mean 'paper'"),
    "no name": (_set("relations", (4, 1), ""), "'relations': row 4 has the name ''"),
    "a relation twice": (_set("relations", 2, RELATIONS[1]), "row 2, paper cites paper, is a duplicate"),
    "no target": (
        _give("target_type", np.array(["papers"])),
        r"\['papers'\] is not a vertex type: use one of author, paper and field",
    ),
    "short edge types": (lambda a: a.update(edge_type=a["edge_type"][:-1]), "'edge_type' has .* entries for"),
    "an unknown relation": (
        _set("edge_type", 0, 5),
        "'edge_type': value 5 at position 0 is not one of the 5 relations",
    ),
    "another destination": (
        _set("edge_type", 0, 3),
        r"value 3 at position 0: the edge goes to vertex \d of type 'paper', but relation 3 is paper ",
    ),
    "another source": (
        _set("indices", 0, 16),
        "'indices': value 16 at position 0 is a vertex of type 'field', but relation 1 is paper cites paper",
    ),
    "no vertex": (_set("indices", 0, -3), "'indices': value -3 at position 0 is not one of 17 vertices"),
    "edges out of order": (
        _swap_edges,
        "'indices': the edge at position .* belongs before .*--sort --unique",
    ),
    "relations out of order": (
        _swap_relations,
        "'indices': the edge at position .* belongs before the previous one",
    ),
    "an edge twice": (_repeat_edge, "'indices': the edge at position .* repeats the previous one in row"),
    "a label elsewhere": (
        _set("labels", 13, 1),
        "vertex 13 of type 'field' has a label.* except 4 to 9 to -1",
    ),
    "a split elsewhere": (_set("val_mask", 2, True), "'val_mask': vertex 2 is in the split but has no label"),
    "too few rows": (
        lambda a: a.update({"features:paper": a["features:paper"][1:]}),
        "type 'paper': key 'features' has 5 rows for 6 vertices",
    ),
    "no columns": (
        _give("features:field", np.empty((7, 0), np.float32)),
        "type 'field': key 'features' has no columns",
    ),
    "a value": (
        _set("features:paper", (2, 3), np.nan),
        "type 'paper': key 'features': value nan at row 2, column 3",
    ),
    "sparse rows of others": (
        _set("feat_shape:author", 0, 5),
        r"type 'author': key 'feat_shape' is \[5, 6\]",
    ),
    "a column": (
        _set("feat_indices:author", 0, 6),
        "type 'author': key 'feat_indices': value 6 at position 0",
    ),
    "both": (
        _give("features:author", np.ones((4, 1), np.float32)),
        "both 'features:author' and 'feat_indptr:author'",
    ),
    "no such type": (
        _give("features:papers", np.ones((6, 1), np.float32)),
        "key 'features:papers': names an unknown vertex type: did you mean 'paper'",
    ),
    "features of no type": (
        _give("features", np.ones((17, 1), np.float32)),
        "key 'features' has no vertex type, but the vertices have types: name it features:TYPE",
    ),
    "half of sparse rows": (lambda a: a.pop("feat_values:author"), "key 'feat_values:author' is missing"),
    "codes without scales": (
        _give("features:field", np.ones((7, 2), np.int8)),
        "type 'field': key 'features' has int8 values, which need row_scales",
    ),
    "numbers of others": (
        _give("vertex_ids", np.roll(np.arange(17), 1)),
        "'vertex_ids': value 16 at position 0 is a vertex of another type",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_names_the_first_thing_that_is_wrong(tmp_path, damage):
    change, message = DAMAGES[damage]
    arrays = make_hetero(3, counts=(4, 6, 7))
    change(arrays)
    for name in ("a.npz", "a"):
        with pytest.raises(DataError, match=message) as error:
            open_graph(save(arrays, tmp_path / name))
        assert str(error.value).startswith(str(tmp_path / name))


def test_what_is_not_read_is_warned_of(tmp_path):
    arrays = make_hetero(2) | {"labels:paper": np.zeros(3)}
    with pytest.warns(DataWarning, match="key 'labels:paper' is not read"):
        open_graph(save(arrays, tmp_path / "a.npz"))


def test_rows_are_put_in_order(tmp_path):
    arrays = make_hetero(11, most=20, weights=True)
    mixed = {key: array.copy() for key, array in arrays.items()}
    rng = np.random.default_rng(0)
    for a, b in itertools.pairwise(arrays["indptr"].tolist()):
        order = a + rng.permutation(b - a)
        for key in ("indices", "edge_type", "edge_weight"):
            mixed[key][a:b] = arrays[key][order]
    # An edge that is there twice: its weights are added up.
    last = int(mixed["indptr"][-1])
    for key in ("indices", "edge_type", "edge_weight"):
        mixed[key] = np.append(mixed[key], mixed[key][last - 1])
    mixed["indptr"][-1] += 1
    owner = int(np.searchsorted(arrays["indptr"], last - 1, side="right")) - 1
    assert (mixed["indptr"][owner + 1 :] == last).sum() == len(mixed["indptr"]) - owner - 2
    mixed["indptr"][owner + 1 :] = last + 1
    source = save(mixed, tmp_path / "mixed.npz")
    convert(Conversion(str(source), tmp_path / "b", sort=True, unique=True))
    graph = open_graph(tmp_path / "b")
    np.testing.assert_array_equal(graph.topology.indices, arrays["indices"])
    np.testing.assert_array_equal(graph.topology.edge_types, arrays["edge_type"])
    assert graph.topology.edge_weights.sum() == pytest.approx(mixed["edge_weight"].sum())
    assert pairs_of(graph) == lists_of(arrays)


@pytest.mark.parametrize(("order", "weights"), [("degree", True), ("rcm", False)])
def test_vertices_move_within_their_types(tmp_path, monkeypatch, order, weights):
    monkeypatch.setattr(csr, "ENTRIES", 40)
    arrays = make_hetero(5, most=20, weights=weights)
    source = save(arrays, tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b", order=order))
    graph = open_graph(tmp_path / "b")
    ids = graph.vertices.vertex_ids
    assert not np.array_equal(ids, np.arange(len(ids)))
    assert graph.types.starts.tolist() == arrays["type_starts"].tolist()
    np.testing.assert_array_equal(graph.labels, arrays["labels"][ids])
    starts = dict(zip(NAMES, arrays["type_starts"].tolist(), strict=False))
    wanted = {(triple, u, v): None for triple, pairs in lists_of(arrays).items() for u, v in pairs}
    found = {
        (
            triple,
            int(ids[u + starts[triple[0]]]) - starts[triple[0]],
            int(ids[v + starts[triple[2]]]) - starts[triple[2]],
        )
        for triple, pairs in pairs_of(graph).items()
        for u, v in pairs
    }
    assert found == set(wanted)
    papers = ids[slice(*graph.types.interval("paper"))] - starts["paper"]
    np.testing.assert_array_equal(rows_of(graph, "paper"), arrays["features:paper"][papers])
    authors = ids[slice(*graph.types.interval("author"))]
    np.testing.assert_array_equal(rows_of(graph, "author"), dense_authors(arrays)[authors])
    if not weights:
        return
    # Weights stay with their edges.
    topology = graph.topology
    rows = np.repeat(ids, np.diff(topology.indptr))
    edges = zip(rows, ids[topology.indices], topology.edge_types, topology.edge_weights, strict=True)
    weights = {(int(v), int(u), int(r)): float(w) for v, u, r, w in edges}
    rows = np.repeat(np.arange(len(ids)), np.diff(arrays["indptr"]))
    edges = zip(rows, arrays["indices"], arrays["edge_type"], arrays["edge_weight"], strict=True)
    assert weights == {(int(v), int(u), int(r)): float(w) for v, u, r, w in edges}


def test_relations_go_both_ways(tmp_path):
    arrays = make_hetero(8, most=9)
    source = save(arrays, tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b.npz", reverse=True))
    graph = open_graph(tmp_path / "b.npz")
    there, back = lists_of(arrays), pairs_of(graph)
    for triple, pairs in there.items():
        turned = {(v, u) for u, v in pairs}
        if triple[0] == triple[2]:
            assert back.pop(triple) == pairs | turned
        else:
            assert back.pop(triple) == pairs
            assert back.pop((triple[2], f"rev_{triple[1]}", triple[0])) == turned
    assert back == {}
    np.testing.assert_array_equal(graph.labels, arrays["labels"])
    convert(Conversion(str(tmp_path / "b.npz"), tmp_path / "c.npz", reverse=True))
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "c.npz").read_bytes()


def test_what_cannot_be_reversed_is_refused(tmp_path):
    arrays = make_hetero(8)
    arrays["edge_features"] = np.ones((len(arrays["indices"]), 2), np.float32)
    featured = save(arrays, tmp_path / "a.npz")
    with pytest.raises(DataError, match="key 'edge_features' has no values for the reversed edges"):
        convert(Conversion(str(featured), tmp_path / "b.npz", reverse=True))
    with pytest.raises(DataError, match="--reverse applies only to heterogeneous"):
        convert(Conversion("cora", tmp_path / "b.npz", reverse=True))


def test_dense_features_of_each_type_get_the_format_and_the_scale(tmp_path):
    arrays = make_hetero(4) | {"features:field": np.ones((1, 2), np.float32)}
    arrays["features:field"] = np.ones((int(np.diff(arrays["type_starts"])[2]), 2), np.float32)
    source = save(arrays, tmp_path / "a.npz")
    convert(Conversion(str(source), tmp_path / "b", feature_dtype="int8", normalize="length"))
    graph = open_graph(tmp_path / "b")
    facts = {each["name"]: each["features"] for each in summarize_graph(graph)["vertex_types"]}
    assert facts["paper"]["dtype"] == facts["field"]["dtype"] == "int8"
    assert facts["author"]["kind"] == "sparse"
    wanted = arrays["features:paper"].astype(np.float64)
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    np.testing.assert_allclose(rows_of(graph, "paper"), wanted, atol=1 / 127)
    again = open_graph(save(arrays, tmp_path / "c"), normalize="length")
    np.testing.assert_allclose(rows_of(again, "paper"), wanted, atol=2e-3)
    lengths = np.linalg.norm(rows_of(again, "author"), axis=1)
    assert set(np.round(lengths, 5).tolist()) <= {0.0, 1.0}
    tables, kept = (build_run_schema(each).to_dict()["tables"] for each in (again, graph))
    assert {name: len(table["scaling"]) for name, table in tables.items()} == dict.fromkeys(NAMES, 1)
    # Types keep what each of them was scaled by.
    assert {name: table["scaling"] for name, table in kept.items()} == {
        name: table["scaling"] for name, table in tables.items()
    }


def test_says_what_it_holds(tmp_path):
    graph = open_graph(save(make_hetero(3, counts=(4, 6, 7)), tmp_path / "a.npz"))
    facts = summarize_graph(graph)
    counts = np.bincount(graph.topology.edge_types, minlength=5)
    assert [each["edges"] for each in facts["relations"]] == counts.tolist()
    in_rows = [[0] * 17 for _ in RELATIONS]
    for v, (a, b) in enumerate(itertools.pairwise(graph.topology.indptr)):
        for relation in graph.topology.edge_types[a:b]:
            in_rows[relation][v] += 1
    assert [each["degree"]["max"] for each in facts["relations"]] == [max(row) for row in in_rows]
    ends = [slice(*graph.types.interval(triple[2])) for triple in RELATIONS]
    assert [each["degree"]["none"] for each in facts["relations"]] == [
        row[end].count(0) for row, end in zip(in_rows, ends, strict=True)
    ]
    text = "\n".join(format_summary(facts))
    assert "types      3, of which paper has labels" in text
    assert re.search(r"author +4 · sparse 6 wide, float32, \d+ entries", text)
    assert "field   7 · no features (learned embeddings)" in text
    assert re.search(r"author writes paper +\d+ · degree mean \d", text)
    assert facts["unlabelled"] == 0
    assert facts["features"] is None


def test_parts_of_typed_graphs_are_refused(tmp_path):
    source = save(make_hetero(3), tmp_path / "a.npz")
    with pytest.raises(DataError, match="is heterogeneous, which hyrt partition does not support"):
        write_parts(PartitionJob(str(source), tmp_path / "parts", 2, method="random"))


def test_a_graph_with_types_is_a_source_itself(tmp_path):
    arrays = make_hetero(6)
    graph = open_graph(save(arrays, tmp_path / "a.npz"))
    scaled = open_graph(graph, normalize="length")
    assert_holds_types(graph, arrays)
    assert pairs_of(scaled) == lists_of(arrays)
    assert Path(graph.name).name == "a.npz"
