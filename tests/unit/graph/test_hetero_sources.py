"""Heterogeneous graphs from PyG, DGL and ogb: the same edges, rows, labels and splits as theirs."""

from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import hyrt
from hyrt.errors import DataError, DataWarning
from hyrt.graph import open_graph
from hyrt.graph.formats import ogb_dataset
from hyrt.graph.formats.convert import Conversion, convert
from hyrt.graph.hetero import dataset as typed_dataset
from hyrt.graph.hetero import dataset as typed_graph
from hyrt.graph.hetero.dataset import get_edge_lists

COUNTS = {"author": 5, "paper": 9, "field": 4}
TRIPLES = (("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "about", "field"))


def made(seed: int = 0) -> dict[str, Any]:
    """Edges without equal ones, rows of two types, labels and splits of the papers."""
    rng = np.random.default_rng(seed)
    edges = {}
    for triple in TRIPLES:
        cells = rng.permutation(COUNTS[triple[0]] * COUNTS[triple[2]])[:12]
        edges[triple] = np.stack([cells // COUNTS[triple[2]], cells % COUNTS[triple[2]]])
    part = rng.integers(0, 3, 9)
    return {
        "edges": edges,
        "x": {"author": rng.standard_normal((5, 2)), "paper": rng.standard_normal((9, 3)).astype(np.float32)},
        "y": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2]),
        "masks": {name: part == i for i, name in enumerate(("train", "val", "test"))},
    }


def assert_same(graph: Any, given: dict[str, Any], order: tuple[str, ...] = tuple(COUNTS)) -> None:
    types = graph.types
    assert types.vertex_types == order
    assert types.target == "paper"
    lists = {
        (each.source, each.name, each.destination): sorted(zip(*map(list, ends), strict=True))
        for each, ends in get_edge_lists(graph).items()
    }
    assert lists == {
        triple: sorted(zip(*ends.tolist(), strict=True)) for triple, ends in given["edges"].items()
    }
    for name, rows in given["x"].items():
        np.testing.assert_array_equal(graph.features.table(name).values, rows.astype(np.float32))
    assert graph.features.table("field") is None
    papers = slice(*types.interval("paper"))
    np.testing.assert_array_equal(graph.labels[papers], given["y"])
    for name, mask in given["masks"].items():
        np.testing.assert_array_equal(graph.masks[name][papers], mask)
        assert graph.masks[name].sum() == mask.sum()


class TestHeteroData:
    @pytest.fixture
    def geometric(self) -> Any:
        return pytest.importorskip("torch_geometric", reason="torch_geometric is not installed")

    def data(self, geometric: Any, given: dict[str, Any]) -> Any:
        data = geometric.data.HeteroData()
        for name, count in COUNTS.items():
            data[name].num_nodes = count
        for name, rows in given["x"].items():
            data[name].x = torch.from_numpy(rows)
        data["paper"].y = torch.from_numpy(given["y"])
        for name, mask in given["masks"].items():
            data["paper"][f"{name}_mask"] = torch.from_numpy(mask)
        for triple, ends in given["edges"].items():
            data[triple].edge_index = torch.from_numpy(ends)
        return data

    def test_is_its_edges_rows_labels_and_masks(self, geometric, tmp_path):
        given = made()
        assert_same(hyrt.load(self.data(geometric, given)), given)

    def test_reversed_relations_are_those_of_to_undirected(self, geometric, tmp_path):
        data = self.data(geometric, made(3))
        hyrt.save(data, tmp_path / "a.npz", reverse=True)
        turned = geometric.transforms.ToUndirected()(data)
        found = get_edge_lists(open_graph(tmp_path / "a.npz"))
        assert {(each.source, each.name, each.destination) for each in found} == set(turned.edge_types)
        for each, (sources, targets) in found.items():
            wanted = turned[each.source, each.name, each.destination].edge_index
            pairs = sorted(zip(sources.tolist(), targets.tolist(), strict=True))
            assert pairs == sorted(set(map(tuple, wanted.T.tolist())))

    def test_weights_and_reversed_ones_are_those_of_to_undirected(self, geometric, tmp_path, monkeypatch):
        # Several pieces of each relation.
        for module in (typed_graph, typed_dataset):
            monkeypatch.setattr(module, "_PIECE", 5)
        data = self.data(geometric, made(4))
        rng = np.random.default_rng(1)
        for triple, key, columns in ((TRIPLES[0], "edge_weight", ()), (TRIPLES[1], "edge_attr", (1,))):
            data[triple][key] = torch.from_numpy(rng.uniform(0.5, 2, (12, *columns)))
        # PyG counts a loop twice.
        cites = data[TRIPLES[1]]
        apart = cites.edge_index[0] != cites.edge_index[1]
        cites.edge_index, cites.edge_attr = cites.edge_index[:, apart], cites.edge_attr[apart]
        assert weights_of(hyrt.load(data)) == pairs_of(data)
        hyrt.save(data, tmp_path / "a.npz", reverse=True)
        turned = geometric.transforms.ToUndirected(reduce="add")(data)
        assert weights_of(open_graph(tmp_path / "a.npz")) == pairs_of(turned)

    def test_features_of_edges_stay_with_them(self, geometric):
        data = self.data(geometric, made(4))
        for triple in TRIPLES[:2]:
            ends = data[triple].edge_index.T
            data[triple].edge_attr = torch.cat([ends, 10 * ends], 1)
        data[TRIPLES[0]].edge_weight = torch.arange(1.0, 13)
        graph = hyrt.load(data)
        check_features(graph, TRIPLES[:2])
        weights = weights_of(graph)[TRIPLES[0]]
        assert sorted(each.expected for each in weights.values()) == list(range(1, 13))

    def test_equal_edges_are_one_and_loops_stay(self, geometric):
        data = self.data(geometric, made())
        data["paper", "cites", "paper"].edge_index = torch.tensor([[1, 1, 1], [1, 2, 2]])
        with pytest.warns(DataWarning, match="1 duplicate edge was merged") as told:
            graph = hyrt.load(data)
        assert told[0].filename == __file__
        assert get_edge_lists(graph)[graph.types.relations[1]][0].tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda d: d["paper"].pop("y"), r"no vertex type has labels: set, for example, data\['author'\]"),
            (lambda d: d["paper"].pop("val_mask"), r"data\['paper'\].val_mask is missing"),
            (
                lambda d: setattr(d["field"], "num_nodes", None),
                r"data\['field'\] does not specify the number",
            ),
            (
                lambda d: setattr(d["author"], "x", torch.ones(4, 2)),
                r"type 'author': features have shape \[4, 2\], expected \[5, F\]",
            ),
            (
                lambda d: setattr(d[TRIPLES[0]], "edge_attr", torch.ones(11, 2)),
                r"data\['author', 'writes', 'paper'\].edge_attr is float32 of shape \[11, 2\], expected a "
                "row of numbers for each of 12 edges: .*`del data",
            ),
            (
                lambda d: setattr(d[TRIPLES[0]], "edge_attr", torch.full((12, 2), torch.inf)),
                "edge_attr: row 0 has a value that is not a finite number",
            ),
            (
                lambda d: [
                    setattr(d[TRIPLES[at]], "edge_attr", torch.ones(d[TRIPLES[at]].num_edges, 2 + at))
                    for at in (0, 1)
                ],
                "edge features must have the same width in all relations, but the widths are 2 .* and 3 ",
            ),
            (
                lambda d: d[TRIPLES[0]].update(
                    {"edge_index": torch.ones((2, 12), dtype=torch.long), "edge_attr": torch.ones(12, 2)}
                ),
                "11 edges are duplicates within their relation, and only one edge's features can be kept",
            ),
            (
                lambda d: d[TRIPLES[0]].update({"edge_weight": torch.tensor([1.0] * 11 + [-2])}),
                r"edge_weight: value -2.0 at position 11 is not a valid weight: use a finite number above 0",
            ),
            (
                lambda d: d[TRIPLES[0]].update({"edge_color": torch.ones(12)}),
                "hyrt cannot use .*edge_color, .* edge_weight and edge_attr",
            ),
            (
                lambda d: d[TRIPLES[1]].pop("edge_index"),
                r"data\['paper', 'cites', 'paper'\].edge_index is missing",
            ),
            (
                lambda d: setattr(d[TRIPLES[2]], "edge_index", torch.tensor([[0], [4]])),
                "relation paper about field: edge 0 has the destination 4, .* 4 vertices of type 'field'",
            ),
            (
                lambda d: d["author"].update({"y": torch.zeros(5), "train_mask": torch.ones(5) > 0}),
                "types author and paper have labels, but hyrt trains on the labels of one",
            ),
        ],
    )
    def test_names_what_is_wrong(self, geometric, change, message):
        data = self.data(geometric, made())
        change(data)
        with pytest.raises(DataError, match=message):
            hyrt.load(data)

    def test_names_of_types_are_names_of_files(self, geometric):
        data = geometric.data.HeteroData()
        data["a:b"].x = torch.ones(2, 1)
        with pytest.raises(DataError, match="the vertex type 'a:b' must not contain ':'"):
            hyrt.load(data)


def weights_of(graph: Any) -> dict[tuple[str, str, str], dict[tuple[int, int], float]]:
    """The weight of each edge by its relation and its ends within their types."""
    types, topology = graph.types, graph.topology
    found: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    for v in range(graph.num_vertices):
        for e in range(topology.indptr[v], topology.indptr[v + 1]):
            each = types.relations[topology.edge_types[e]]
            first, last = (types.interval(end)[0] for end in (each.source, each.destination))
            of_relation = found.setdefault((each.source, each.name, each.destination), {})
            weight = float(topology.edge_weights[e])
            of_relation[int(topology.indices[e]) - first, v - last] = pytest.approx(weight, rel=1e-6)
    return found


def pairs_of(data: Any) -> dict[tuple[str, str, str], dict[tuple[int, int], float]]:
    """The same of a HeteroData; where a relation has no weights, they are 1."""
    found: dict[tuple[str, str, str], dict[tuple[int, int], float]] = {}
    for triple in data.edge_types:
        held = data[triple]
        given = held.get("edge_weight", held.get("edge_attr"))
        values = torch.ones(held.edge_index.shape[1]) if given is None else given.flatten()
        of_relation = found.setdefault(triple, {})
        for ends, value in zip(held.edge_index.T.tolist(), values.tolist(), strict=True):
            of_relation[tuple(ends)] = of_relation.get(tuple(ends), 0.0) + value
    return found


def check_features(graph: Any, with_some: Any) -> None:
    """That an edge's features are its ends within their types, and ten times these; or 0."""
    types, topology = graph.types, graph.topology
    for v in range(graph.num_vertices):
        for e in range(topology.indptr[v], topology.indptr[v + 1]):
            each = types.relations[topology.edge_types[e]]
            first, last = (types.interval(end)[0] for end in (each.source, each.destination))
            ends = np.array([topology.indices[e] - first, v - last])
            has = (each.source, each.name, each.destination) in with_some
            wanted = np.concatenate([ends, 10 * ends]) if has else np.zeros(4)
            np.testing.assert_array_equal(topology.edge_features[e], wanted)


def heterograph(given: dict[str, Any], **more: Any) -> Any:
    """What hyrt looks at of a DGL graph of several types."""
    held: dict[str, dict[str, Any]] = {name: {} for name in COUNTS}
    for name, rows in given["x"].items():
        held[name]["feat"] = torch.from_numpy(rows)
    held["paper"] |= {"label": torch.from_numpy(given["y"])}
    held["paper"] |= {f"{name}_mask": torch.from_numpy(mask) for name, mask in given["masks"].items()}

    class Edges:
        def __call__(self, etype: tuple[str, str, str]) -> Any:
            return tuple(torch.from_numpy(given["edges"][etype]))

        def __getitem__(self, etype: tuple[str, str, str]) -> Any:
            return SimpleNamespace(data=more.get("edata", {}))

    return SimpleNamespace(
        ndata={},
        edata={},
        ntypes=list(COUNTS),
        etypes=[triple[1] for triple in TRIPLES],
        canonical_etypes=list(TRIPLES),
        nodes={name: SimpleNamespace(data=data) for name, data in held.items()},
        num_nodes=COUNTS.__getitem__,
        edges=Edges(),
        is_block=False,
    )


class TestHeterograph:
    def test_is_its_edges_rows_labels_and_masks(self):
        given = made(1)
        assert_same(hyrt.load(heterograph(given)), given)

    def test_weights_are_those_of_the_edges(self):
        given, values = made(2), torch.arange(1.0, 13)
        found = weights_of(hyrt.load(heterograph(given, edata={"w": values})))
        for triple, ends in given["edges"].items():
            assert found[triple] == dict(zip(map(tuple, ends.T.tolist()), values.tolist(), strict=True))

    def test_features_are_those_of_the_edges(self):
        given = made(2)
        graph = heterograph(given)
        rows = {t: np.concatenate([ends, 10 * ends]).T for t, ends in given["edges"].items()}
        held = {t: SimpleNamespace(data={"feat": torch.from_numpy(each)}) for t, each in rows.items()}
        type(graph.edges).__getitem__ = lambda self, triple: held[triple]
        check_features(hyrt.load(graph), TRIPLES)

    def test_names_what_is_wrong(self):
        for edata, message in (
            ({"h": torch.ones(12)}, r"hyrt cannot use .*\.data\['h'\], .*\.pop\('h'\)`"),
            ({"w": torch.ones(12), "h": torch.ones(12)}, r"hyrt cannot use .*\.data\['h'\]"),
            (
                {"w": torch.ones(12), "weight": torch.ones(12)},
                r"hyrt cannot use .*\.data\['weight'\]",
            ),
            (
                {"w": torch.ones(12, 3)},
                r"\.data\['w'\] is float32 of shape \[12, 3\], expected one",
            ),
        ):
            with pytest.raises(DataError, match=message):
                hyrt.load(heterograph(made(), edata=edata))
        graph = heterograph(made())
        del graph.nodes["paper"].data["test_mask"]
        with pytest.raises(DataError, match=r"g.nodes\['paper'\].data\['test_mask'\] is missing"):
            hyrt.load(graph)
        graph = heterograph(made())
        graph.nodes["paper"].data["labels"] = torch.ones(9)
        with pytest.warns(DataWarning, match=r"data\['labels'\] is not read: did you mean 'label'"):
            hyrt.load(graph)


def _csv(path: Path, table: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        np.savetxt(file, np.asarray(table), fmt="%s", delimiter=",")


def write_mag(folder: Path, given: dict[str, Any]) -> Path:
    """A folder as that of ogbn-mag."""
    raw = folder / "raw"
    _csv(raw / "num-node-dict.csv.gz", [list(COUNTS), list(COUNTS.values())])
    _csv(raw / "triplet-type-list.csv.gz", TRIPLES)
    for triple, ends in given["edges"].items():
        place = raw / "relations" / "___".join(triple)
        _csv(place / "edge.csv.gz", ends.T)
        _csv(place / "edge_reltype.csv.gz", np.zeros((12, 1), np.int64))
        _csv(place / "num-edge-list.csv.gz", [[12]])
    for name, rows in given["x"].items():
        _csv(raw / "node-feat" / name / "node-feat.csv.gz", rows)
    _csv(raw / "node-label" / "paper" / "node-label.csv.gz", given["y"][:, None])
    for ours, theirs in (("train", "train"), ("val", "valid"), ("test", "test")):
        chosen = np.flatnonzero(given["masks"][ours])[:, None]
        _csv(folder / "split" / "time" / "paper" / f"{theirs}.csv.gz", chosen)
    return folder


def write_mag240m(folder: Path, given: dict[str, Any]) -> Path:
    """A folder as that of MAG240M, in which institutions are fields."""
    counts = {"paper": 9, "author": 5, "institution": 4}
    (folder / "processed" / "paper").mkdir(parents=True)
    np.save(folder / "processed" / "paper" / "node_feat.npy", given["x"]["paper"].astype(np.float16))
    np.save(folder / "processed" / "paper" / "node_label.npy", given["y"].astype(np.float32))
    for triple, ends in given["edges"].items():
        place = folder / "processed" / "___".join(triple)
        place.mkdir()
        np.save(place / "edge_index.npy", ends)
    torch.save(counts | {"num_classes": 3}, folder / "meta.pt")
    splits = {name: np.flatnonzero(mask) for name, mask in given["masks"].items()}
    torch.save(
        {"train": splits["train"], "valid": splits["val"], "test-dev": splits["test"]},
        folder / "split_dict.pt",
    )
    return folder


class TestOgb:
    def test_ogbn_mag(self, tmp_path):
        given = made(2)
        given["x"] = {"paper": given["x"]["paper"]}
        folder = write_mag(tmp_path / "ogbn_mag", given)
        given["x"]["paper"] = np.float32(given["x"]["paper"])
        assert_same(open_graph(folder), given)
        convert(Conversion(str(folder), tmp_path / "a"))
        assert_same(open_graph(tmp_path / "a"), given)

    def test_mag240m_is_its_papers_or_all_of_it(self, tmp_path, monkeypatch):
        given = made(4)
        edges = {
            ("author", "affiliated_with", "institution"): np.array([[0, 4, 2], [3, 0, 1]]),
            ("author", "writes", "paper"): given["edges"][TRIPLES[0]],
            ("paper", "cites", "paper"): given["edges"][TRIPLES[1]],
        }
        given["edges"] = edges
        folder = write_mag240m(tmp_path / "mag240m_kddcup2021", given)
        assert open_graph(folder).types is None
        source = f"{folder}:typed"
        convert(Conversion(source, tmp_path / "a"))
        for graph in (open_graph(source), open_graph(tmp_path / "a")):
            assert graph.types.vertex_types == ("paper", "author", "institution")
            assert [each.name for each in graph.types.relations] == ["affiliated_with", "writes", "cites"]
            for each, (sources, targets) in get_edge_lists(graph).items():
                wanted = edges[each.source, each.name, each.destination].T
                assert sorted(zip(sources, targets, strict=True)) == sorted(map(tuple, wanted.tolist()))
            values = graph.features.table("paper").values
            assert values.dtype == np.float16
            assert not values.flags.owndata
            np.testing.assert_array_equal(values, given["x"]["paper"].astype(np.float16))
            assert graph.features.table("author") is None
            np.testing.assert_array_equal(graph.labels[:9], given["y"])
            np.testing.assert_array_equal(graph.masks["test"][:9], given["masks"]["test"])
        (tmp_path / "dataset").mkdir()
        folder.rename(tmp_path / "dataset" / folder.name)
        monkeypatch.chdir(tmp_path)
        assert open_graph("mag240m:typed").types is not None
        monkeypatch.setattr(ogb_dataset, "MAX_EDGES_IN_MEMORY", 5)
        with pytest.raises(DataError, match="sorted on disk first: run hyrt data convert mag240m:typed"):
            open_graph("mag240m:typed")

    def test_vertices_without_a_label_leave_the_splits(self, tmp_path):
        given = made(5)
        given["y"] = given["y"].astype(np.float32)
        given["y"][[0, 8]] = np.nan
        graph = open_graph(write_mag(tmp_path / "a", given))
        papers = slice(*graph.types.interval("paper"))
        assert graph.labels[papers].tolist() == [-1, 1, 2, 0, 1, 2, 0, 1, -1]
        assert sum(int(graph.masks[name].sum()) for name in ("train", "val", "test")) == 7

    def test_names_what_is_wrong(self, tmp_path):
        folder = write_mag(tmp_path / "a", made())
        _csv(folder / "raw" / "relations" / "author___writes___paper" / "edge.csv.gz", [[0, 1], [5, 1]])
        with pytest.raises(DataError, match="relation author writes paper: edge 1 has the source 5"):
            open_graph(folder)
        _csv(folder / "raw" / "triplet-type-list.csv.gz", [["author", "writes", "papers"]])
        with pytest.raises(
            DataError, match="author___writes___papers does not connect two of the types author"
        ):
            open_graph(folder)
        folder = write_mag(tmp_path / "b", made())
        _csv(folder / "raw" / "node-feat" / "paper" / "node-feat.csv.gz", np.ones((8, 2)))
        with pytest.raises(DataError, match="has 8 rows for 9 vertices"):
            open_graph(folder)
        _csv(folder / "raw" / "num-node-dict.csv.gz", [["author", "paper"], [5, "x"]])
        with pytest.raises(DataError, match="does not contain the number of vertices of each type"):
            open_graph(folder)
        (tmp_path / "c" / "raw").mkdir(parents=True)
        with pytest.raises(DataError, match="is not a heterogeneous OGB dataset"):
            open_graph(f"{tmp_path / 'c'}:typed")
