"""Tables of types and relations in, and the heterogeneous graph that a few loops over their rows make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_process import refused, run_here

from hyrt.errors import DataError
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.graph.metadata import read_names
from hyrt.graph.tables import edge_list

pytest.importorskip("pyarrow")

SCHEMA = """
target_type: paper
types:
  paper:
    ids: names
    table: {files: [papers.csv], id: doi, label: [field], label_kind: names, features: ['f*'], split: part}
  author: {ids: names}
  place: {first_id: 1, table: {files: [places.csv], id: nr, features: [x]}}
relations:
  - {relation: [author, writes, paper], files: ['writes*.csv'], source: author, target: doi}
  - {relation: [paper, cites, paper], files: [cites.csv], source: from, target: to, unknown: drop}
  - {relation: [author, lives in, place], files: [lives.csv], source: who, target: where}
"""
FILES = {
    "papers.csv": "doi,field,f0,f1,part\nb,math,1,2,train\na,art,3,4,val\nc,,5,6,\n",
    "places.csv": "nr,x\n2,7\n1,8\n",
    "writes1.csv": "author,doi\nann,a\nbob,a\n",
    "writes2.csv": "author,doi\nann,c\nann,a\n",
    "cites.csv": "from,to\na,b\nb,b\nz,a\n",
    "lives.csv": "who,where\ncid,2\nann,1\n",
}
NAMES = {"paper": ["b", "a", "c"], "author": ["ann", "bob", "cid"], "place": ["1", "2"]}
"""In the order of the tables, of the relations, and of the ids."""


def write_all(folder: Path, schema: str = SCHEMA) -> None:
    for name, text in {**FILES, "schema.yaml": schema}.items():
        (folder / name).write_text(text)


def named_edges(graph: Graph) -> set[tuple[str, str, str]]:
    """Edges by names of their relations and vertices."""
    types = graph.types
    assert types is not None
    assert graph.topology.edge_types is not None
    names = [name for kind in types.vertex_types for name in NAMES[kind]]
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(graph.topology.indptr))
    return {
        (str(types.relations[r]), names[u], names[v])
        for u, v, r in zip(graph.topology.indices, targets, graph.topology.edge_types, strict=True)
    }


def weights_by_name(graph: Graph) -> dict[tuple[str, str, str], float]:
    """The weight of each edge, by the names of `named_edges`."""
    types, topology = graph.types, graph.topology
    assert types is not None
    assert topology.edge_types is not None
    assert topology.edge_weights is not None
    names = [name for kind in types.vertex_types for name in NAMES[kind]]
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(topology.indptr))
    edges = zip(topology.edge_types, topology.indices, targets, topology.edge_weights, strict=True)
    return {(str(types.relations[r]), names[u], names[v]): float(weight) for r, u, v, weight in edges}


@pytest.mark.parametrize("destination", ["mine", "mine.npz"])
def test_types_and_relations(destination: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_all(tmp_path)
    run_here("data", "import", *FILES, "--schema", "schema.yaml", "-o", destination, cwd=tmp_path)
    graph = open_graph(tmp_path / destination, check=True)
    assert graph.types is not None
    assert graph.types.vertex_types == ("paper", "author", "place")
    assert graph.types.starts.tolist() == [0, 3, 6, 8]
    assert graph.types.target == "paper"
    assert named_edges(graph) == {
        ("author writes paper", "ann", "a"),
        ("author writes paper", "bob", "a"),
        ("author writes paper", "ann", "c"),
        ("paper cites paper", "a", "b"),
        ("paper cites paper", "b", "b"),
        ("author lives in place", "cid", "2"),
        ("author lives in place", "ann", "1"),
    }
    assert graph.labels.tolist() == [1, 0, -1, *[-1] * 5]
    assert np.flatnonzero(graph.masks["train"]).tolist() == [0]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("memory: at most")
    assert said[1:] == [
        "papers.csv, column 'field': 1 of 3 values count as missing (empty 1)",
        "papers.csv, column 'part': 1 of 3 values count as missing (empty 1)",
        "author writes paper: 4 edge rows: 3 edges (1 duplicate merged)",
        "paper cites paper: 3 edge rows: 2 edges (1 row with unknown ids dropped)",
        "author lives in place: 2 edge rows: 2 edges",
        "paper: 3 vertices",
        "author: 3 vertices with learned features",
        "place: 2 vertices",
        "classes: 0 art, 1 math",
        f"wrote {destination}",
    ]
    with read_names(tmp_path / destination, "ids.csv") as names:
        assert names is not None
        assert list(names) == [f"{kind} {name}" for kind, some in NAMES.items() for name in some]
    stored = np.load(tmp_path / destination) if destination.endswith("npz") else None
    for kind, rows in (("paper", [[1, 2], [3, 4], [5, 6]]), ("place", [[8], [7]])):
        key = f"features:{kind}"
        found = np.load(tmp_path / destination / f"{key}.npy") if stored is None else stored[key]
        assert found.tolist() == rows


def test_relations_both_ways(tmp_path: Path) -> None:
    write_all(tmp_path, f"reverse: true\n{SCHEMA}")
    run_here("data", "import", *FILES, "--schema", "schema.yaml", "-o", "both", cwd=tmp_path)
    graph = open_graph(tmp_path / "both", check=True)
    assert graph.types is not None
    assert len(graph.types.relations) == 5
    assert len(graph.topology.indices) == 13


def test_what_is_wrong_with_types(tmp_path: Path) -> None:
    words = ("data", "import", *FILES, "--schema", "schema.yaml", "-o", "x")
    for old, new, message in (
        ("target_type: paper", "target_type: papers", "target_type 'papers' is not one of the types (paper,"),
        ("[author, writes, paper]", "[author, writes, book]", "'book' is not one of the types"),
        ("[paper, cites, paper]", "[author, writes, paper]", "['author', 'writes', 'paper'] is listed twice"),
        (
            "[paper, cites, paper]",
            "[paper, paper]",
            "does not have three names: write it as [author, writes, paper]",
        ),
        ("features: [x]", "features: [x], label: [x]", "type 'place' has labels, but target_type is 'paper'"),
        ("files: [cites.csv]", "files: ['*.csv']", "is in several tables of the schema"),
        ("unknown: drop", "unknwon: drop", "unknown setting 'relations.1.unknwon'"),
    ):
        assert old in SCHEMA
        write_all(tmp_path, SCHEMA.replace(old, new))
        assert message in refused(*words, cwd=tmp_path)
    write_all(tmp_path, SCHEMA.replace(", unknown: drop", ""))
    with pytest.raises(DataError, match=r"cites\.csv, line 4, column 'from': 'z' is not in the vertex table"):
        run_here(*words, cwd=tmp_path)
    assert not (tmp_path / "x").exists()


def test_weights_of_edges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of equal edges are added up; a relation without weights has 1, and reversed edges have theirs."""
    # Several pieces, of which the first has an edge that is dropped.
    monkeypatch.setattr(edge_list, "_READ_EDGES", 2)
    schema = SCHEMA.replace("author, target: doi}", "author, target: doi, weight: share}")
    schema = schema.replace("unknown: drop}", "unknown: drop, weight: times}")
    for reverse in (False, True):
        write_all(tmp_path, f"reverse: {str(reverse).lower()}\n{schema}")
        for name, lines in (
            ("writes1.csv", "author,doi,share\nann,a,0.5\nbob,a,2\n"),
            ("writes2.csv", "author,doi,share\nann,c,3\nann,a,1.5\n"),
            ("cites.csv", "from,to,times\nz,a,6\na,b,4\nb,b,5\n"),
            # A relation without weights, in which a duplicate does not count twice.
            ("lives.csv", "who,where\ncid,2\nann,1\nann,1\n"),
        ):
            (tmp_path / name).write_text(lines)
        name = f"reverse-{reverse}"
        run_here("data", "import", *FILES, "--schema", "schema.yaml", "-o", name, cwd=tmp_path)
        graph = open_graph(tmp_path / name, check=True)
        assert graph.types is not None
        edges = {
            ("author writes paper", "ann", "a"): 2.0,
            ("author writes paper", "bob", "a"): 2.0,
            ("author writes paper", "ann", "c"): 3.0,
            ("paper cites paper", "a", "b"): 4.0,
            ("paper cites paper", "b", "b"): 5.0,
            ("author lives in place", "cid", "2"): 1.0,
            ("author lives in place", "ann", "1"): 1.0,
        }
        if reverse:
            for (words, u, v), weight in list(edges.items()):
                source, *between, destination = words.split()
                back = f"rev_{' '.join(between)}" if source != destination else " ".join(between)
                edges[f"{destination} {back} {source}", v, u] = weight
        assert weights_by_name(graph) == edges
    said = capsys.readouterr().out
    assert (
        "author writes paper: 4 edge rows, weights 'share': 3 edges (1 duplicate merged with weights summed)"
        in said
    )
    assert "author lives in place: 3 edge rows: 2 edges (1 duplicate merged)" in said
    (tmp_path / "cites.csv").write_text("from,to,times\na,b,0\n")
    with pytest.raises(DataError, match=r"cites\.csv, line 2, column 'times': 0\.0 is not a valid weight"):
        run_here("data", "import", *FILES, "--schema", "schema.yaml", "-o", "x", cwd=tmp_path)


def test_duplicates_and_mutual_edges_without_weights_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The weights of another relation change nothing, and the same holds when edges are reversed later."""
    (tmp_path / "likes.csv").write_text("who,whom\n0,1\n1,0\n0,2\n0,2\n2,2\n")
    (tmp_path / "rates.csv").write_text("who,whom,stars\n0,1,2\n1,0,3\n0,2,1\n0,2,1.5\n2,2,4\n")
    entries = [
        f"{{relation: [p, {name}, p], files: {name}.csv, source: who, target: whom"
        for name in ("likes", "rates")
    ]
    schema = (
        f"target_type: p\ntypes: {{p: {{}}}}\nrelations:\n- {entries[0]}}}\n- {entries[1]}, weight: stars}}\n"
    )
    for reverse in (False, True):
        (tmp_path / "s.yaml").write_text(f"reverse: {str(reverse).lower()}\n{schema}")
        words = ("likes.csv", "rates.csv", "--schema", "s.yaml", "-o", f"reverse-{reverse}.npz")
        run_here("data", "import", *words, cwd=tmp_path)
    run_here("data", "convert", "reverse-False.npz", "later.npz", "--reverse", cwd=tmp_path)
    said = capsys.readouterr().out
    assert "p likes p: 5 edge rows: 4 edges (1 duplicate merged)" in said
    assert "p rates p: 5 edge rows, weights 'stars': 4 edges (1 duplicate merged with weights summed)" in said
    wanted = {(0, 1): 2.0, (1, 0): 3.0, (0, 2): 2.5, (2, 2): 4.0}
    both_ways = {(0, 1): 5.0, (1, 0): 5.0, (0, 2): 2.5, (2, 0): 2.5, (2, 2): 4.0}
    for name, rates in (("reverse-False", wanted), ("reverse-True", both_ways), ("later", both_ways)):
        topology = open_graph(tmp_path / f"{name}.npz", check=True).topology
        assert topology.edge_types is not None
        assert topology.edge_weights is not None
        rows = np.repeat(np.arange(3), np.diff(topology.indptr)).tolist()
        found: list[dict[tuple[int, int], float]] = [{}, {}]
        for u, v, r, w in zip(
            topology.indices.tolist(),
            rows,
            topology.edge_types.tolist(),
            topology.edge_weights.tolist(),
            strict=True,
        ):
            found[r][u, v] = w
        assert found == [dict.fromkeys(rates, 1.0), rates]
