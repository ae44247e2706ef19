"""Tables in, and the graph that a few loops over their rows make."""

from __future__ import annotations

import errno
import gzip
import json
import math
import os
import re
import tracemalloc
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import refused, run_here

from hyrt.errors import ConfigError, DataError
from hyrt.graph import open_graph
from hyrt.graph.formats import dataset_files as folder
from hyrt.graph.graph import Graph
from hyrt.graph.metadata import read_names

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from hyrt.config.commented_yaml import read_schema, schema_text  # noqa: E402
from hyrt.graph.info import format_summary, summarize_graph  # noqa: E402
from hyrt.graph.tables import csv_batches as text_blocks  # noqa: E402
from hyrt.graph.tables import edge_list as listed_edges  # noqa: E402
from hyrt.graph.tables.csv_batches import TextFile, read_csv_batches  # noqa: E402
from hyrt.graph.tables.import_tables import ImportJob, draw_random_split, import_tables  # noqa: E402
from hyrt.graph.tables.infer_schema import infer_schema  # noqa: E402
from hyrt.graph.tables.schema import (  # noqa: E402
    CsvDialect,
    EdgeTableSchema,
    ImportSchema,
    RandomSplit,
    VertexTableSchema,
)
from hyrt.graph.tables.vertex_ids import NameIndex  # noqa: E402


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


def imported(*files: Path, into: Path, schema: ImportSchema | None = None) -> tuple[Graph, list[str]]:
    """The graph of some files, and what was said."""
    said: list[str] = []
    import_tables(ImportJob(files, into, schema or infer_schema(files).schema, force=True), said.append)
    return open_graph(into, check=True), said


def wrong(*files: Path, schema: ImportSchema | None = None) -> list[str]:
    """The lines of the error, after which nothing is written."""
    into = files[0].parent / "never"
    with pytest.raises(DataError) as caught:
        imported(*files, into=into, schema=schema)
    assert not into.exists()
    assert not list(files[0].parent.glob(".never*"))
    return str(caught.value).replace(f"{files[0].parent}/", "").splitlines()


def edges_of(graph: Graph) -> dict[tuple[int, int], float]:
    """The weight of each edge by source and target; 1 where there are none."""
    indptr, indices = graph.topology.indptr, graph.topology.indices
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(indptr))
    weights = graph.topology.edge_weights
    values = np.ones(len(indices)) if weights is None else weights
    return {(int(u), int(v)): float(w) for u, v, w in zip(indices, targets, values, strict=True)}


def rebuilt(
    rows: list[tuple[int, int, float]], *, undirected: bool, duplicates: str, loops: str, weighted: bool
) -> dict[tuple[int, int], float]:
    """What becomes of rows, one by one."""
    found: dict[tuple[int, int], float] = {}
    for u, v, w in rows:
        if u == v and loops == "drop":
            continue
        for pair in [(u, v), (v, u)] if undirected and u != v else [(u, v)]:
            if pair not in found:
                found[pair] = w
            elif duplicates == "merge":
                found[pair] += w
    return found if weighted else dict.fromkeys(found, 1.0)


@st.composite
def _tables(draw: st.DrawFn) -> dict[str, Any]:
    count = draw(st.integers(1, 9))
    named = draw(st.booleans())
    letters = st.text("abé ;,\"'x0", min_size=1, max_size=4).map(str.strip).filter(bool)
    first = 0 if named else draw(st.sampled_from([0, 1, -3]))
    ids = (
        draw(st.lists(letters, min_size=count, max_size=count, unique=True))
        if named
        else [*range(first, first + count)]
    )
    vertex = st.integers(0, count - 1)
    weight = st.integers(1, 40).map(lambda n: n / 8)
    return {
        "ids": ids,
        "named": named,
        "first": first,
        "rows": draw(st.lists(st.tuples(vertex, vertex, weight), min_size=1, max_size=30)),
        "order": draw(st.permutations(range(count))),
        "labels": draw(st.lists(st.sampled_from(["", "cat", "dog"]), min_size=count, max_size=count)),
        "features": draw(st.lists(st.integers(-99, 99).map(lambda n: n / 4), min_size=count, max_size=count)),
        "delimiter": draw(st.sampled_from([",", ";", "\t", "|"])),
        "decimal": draw(st.sampled_from([".", ","])),
        "end": draw(st.sampled_from(["\n", "\r\n"])),
        "blank": draw(st.booleans()),
        "parquet": draw(st.booleans()),
        "weighted": draw(st.booleans()),
        "undirected": draw(st.booleans()),
        "duplicates": draw(st.sampled_from(["merge", "first"])),
        "loops": draw(st.sampled_from(["keep", "drop"])),
        "range_bytes": draw(st.sampled_from([64, 1 << 20])),
        "read_edges": draw(st.sampled_from([2, 1 << 20])),
    }


def _csv(rows: list[list[Any]], given: dict[str, Any]) -> str:
    delimiter, decimal = given["delimiter"], given["decimal"]

    def word(value: Any) -> str:
        text = str(value).replace(".", decimal) if isinstance(value, float) else str(value)
        if any(letter in text for letter in (delimiter, '"', "\n")) or text != text.strip():
            return '"' + text.replace('"', '""') + '"'
        return text

    lines = [delimiter.join(map(word, row)) for row in rows]
    if given["blank"]:
        lines.insert(len(lines) // 2 + 1, "")
    return given["end"].join(lines) + given["end"] * given["blank"]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=_tables())
def test_any_tables(given: dict[str, Any], tmp_path: Path) -> None:
    ids, order = given["ids"], given["order"]
    text = {"delimiter": given["delimiter"], "decimal": given["decimal"]}
    edges = [[ids[u], ids[v], w] for u, v, w in given["rows"]]
    write(tmp_path / "edges.csv", _csv([["from", "to", "how much"], *edges], given))
    nodes = [[ids[i], given["labels"][i], given["features"][i]] for i in order]
    names = ["who", "what", "x"]
    if given["parquet"]:
        path = tmp_path / "nodes.parquet"
        columns = [list(column) for column in zip(*nodes, strict=True)]
        columns[1] = [value or None for value in columns[1]]
        parquet.write_table(pa.table(dict(zip(names, columns, strict=True))), path, row_group_size=2)
    else:
        path = write(tmp_path / "nodes.csv", _csv([names, *nodes], given))
    schema = ImportSchema(
        ids="names" if given["named"] else "positions",
        first_id=given["first"],
        edges=EdgeTableSchema(
            files=["edges.csv"],
            source="from",
            target="to",
            weight="how much" if given["weighted"] else None,
            undirected=given["undirected"],
            duplicates=given["duplicates"],
            self_loops=given["loops"],
            text=CsvDialect(**text),
        ),
        vertices=VertexTableSchema(
            files=[path.name],
            id="who",
            label=["what"],
            label_kind="names",
            features=["x"],
            text=CsvDialect(**text),
        ),
    )
    with (
        mock.patch.object(listed_edges, "RANGE_BYTES", given["range_bytes"]),
        mock.patch.object(listed_edges, "_READ_EDGES", given["read_edges"]),
        mock.patch.object(listed_edges, "_GATHERED", given["read_edges"]),
    ):
        graph, _ = imported(tmp_path / "edges.csv", path, into=tmp_path / "graph", schema=schema)
    place = {i: at for at, i in enumerate(order)} if given["named"] else {i: i for i in order}
    rows = [(place[u], place[v], w) for u, v, w in given["rows"]]
    how = {key: given[key] for key in ("undirected", "duplicates", "loops", "weighted")}
    assert edges_of(graph) == rebuilt(rows, **how)
    classes = sorted(set(given["labels"]) - {""})
    for i, at in place.items():
        label = given["labels"][i]
        assert graph.labels[at] == (classes.index(label) if label else -1)
        assert graph.features.values[at, 0] == given["features"][i]


def test_without_a_schema(tmp_path: Path) -> None:
    """The obvious columns, several files, a packed one, text ids, a split and a column that is not read."""
    edges = write(tmp_path / "e1.csv", "src,dst,weight,place\nann,bob,0.5,1\nbob,cid,2,2\n")
    (tmp_path / "e2.csv.gz").write_bytes(gzip.compress(b"src,dst,weight,place\ncid,ann,1.5,3\n"))
    nodes = write(tmp_path / "nodes.csv", "id,y,split,f0,f1\ncid,7,train,1,2\nann,9,val,3,4\nbob,,,5,6\n")
    files = (edges, tmp_path / "e2.csv.gz", nodes)
    assert "; weights 'weight'; not read: 'place'" in infer_schema(files).lines[0]
    graph, said = imported(*files, into=tmp_path / "mine.npz")
    assert edges_of(graph) == {(1, 2): 0.5, (2, 0): 2.0, (0, 1): 1.5}
    assert graph.labels.tolist() == [0, 1, -1]
    assert graph.features.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert [np.flatnonzero(graph.masks[part]).tolist() for part in ("train", "val", "test")] == [[0], [1], []]
    assert said[0].startswith("memory: at most")
    assert [line.removeprefix(f"{nodes}, ") for line in said[1:]] == [
        "column 'y': 1 of 3 values count as missing (empty 1)",
        "column 'split': 1 of 3 values count as missing (empty 1)",
        "3 edge rows: 3 edges",
        "3 vertices",
        "classes: 0 7, 1 9",
    ]
    for name, wanted in (("ids.csv", ["cid", "ann", "bob"]), ("classes.csv", ["7", "9"])):
        with read_names(tmp_path / "mine.npz", name) as names:
            assert names is not None
            assert list(names) == wanted


def test_features_that_are_not_scaled_are_told(tmp_path: Path) -> None:
    """A table in its own units is told with the size of its largest column; a scaled one is not."""
    edges = write(tmp_path / "edges.csv", "src,dst\n0,1\n1,2\n")
    raw = [(170.5, 0.2), (181.0, 0.4), (165.5, 0.9)]
    rows = "".join(f"{number},{tall},{part},{number % 2}\n" for number, (tall, part) in enumerate(raw))
    nodes = write(tmp_path / "nodes.csv", f"id,tall,part,y\n{rows}")
    _, said = imported(edges, nodes, into=tmp_path / "raw")
    size = math.sqrt(sum(tall**2 for tall, _ in raw) / len(raw))
    assert said[-1].startswith(f"features are not scaled, and a column has values around {size:.0f}: ")
    assert "data.normalize=standard" in said[-1]
    small = write(tmp_path / "small.csv", "id,tall,part,y\n0,-1,0.2,0\n1,9.5,0.4,1\n2,1,0.9,0\n")
    _, said = imported(edges, small, into=tmp_path / "small")
    assert not [line for line in said if "scaled" in line]


def test_a_list_of_edges_alone(tmp_path: Path) -> None:
    """As SNAP writes them: comments, tabs, no names, whole numbers; the feature is the degree."""
    edges = write(tmp_path / "web.txt", "# Nodes: 4 Edges: 3\n# From To\n0\t2\n2\t1\n2\t0\n0\t0\n")
    graph, said = imported(edges, into=tmp_path / "web")
    assert edges_of(graph) == dict.fromkeys([(0, 2), (2, 1), (2, 0), (0, 0)], 1.0)
    assert graph.features.values[:, 0] == pytest.approx(np.log1p([2, 1, 1]))
    assert not graph.masks["train"].any()
    assert "web.txt: 2 lines above the rows skipped as comments" in said[1]
    assert said[2] == "4 edge rows: 4 edges (1 self-loop kept)"
    assert "classes    none: no vertex has a label" in format_summary(summarize_graph(graph))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("src,dst\n", "e.csv has no rows: add rows, or remove it"),
        ("src,dst\r0,1\r1,0\r", "e.csv, line 1: the values cannot be separated .* not with \\\\r alone"),
        ('src,dst\n0,"1\n1,0\n', r'e.csv, line 2: a quote \("\) in this record is not closed: close it, or'),
        ('src,dst\n0,1\n1,"a', "e.csv, line 3: a quote .* is not closed"),
    ],
)
def test_files_without_rows_or_whose_rows_do_not_end(tmp_path: Path, text: str, says: str) -> None:
    """An open quote would make one vertex's name of all that follows."""
    [line] = wrong(write(tmp_path / "e.csv", text))
    assert re.match(says, line)


def test_a_table_of_vertices_without_rows_and_a_folder_that_begins_with_an_empty_file(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n0,1\n1,0\n")
    assert wrong(edges, write(tmp_path / "v.csv", "id,label\n")) == [
        "v.csv has no rows: add rows, or remove it"
    ]
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "0.csv", "src,dst\n")
    write(tmp_path / "parts" / "1.csv", "src,dst\n0,1\n1,0\n")
    graph, _ = imported(tmp_path / "parts", into=tmp_path / "out")
    assert graph.num_edges == 2


@pytest.mark.filterwarnings("error")
def test_numbers_too_large_are_told_without_a_warning_of_numpy(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n0,1\n1,0\n")
    vertices = write(tmp_path / "v.csv", "id,y,f\n0,0.5,1\n1,1e39,1e39\n")
    lines = wrong(edges, vertices)
    assert len([line for line in lines if re.search(r"1e\+?39'? is not a valid float32 number", line)]) == 2


def test_a_pipe_is_refused_since_it_is_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "e.csv")
    with pytest.raises(DataError, match=r"e\.csv is a pipe, which can be read only once: write it to a file"):
        infer_schema([tmp_path / "e.csv"])


@pytest.mark.parametrize(
    "words", [{"delimiter": "\n"}, {"delimiter": "ab"}, {"delimiter": ""}, {"quote": ","}, {"quote": "''"}]
)
def test_letters_that_no_text_can_be_written_with(words: dict[str, str]) -> None:
    with pytest.raises(
        ValueError, match=r"(use a single ASCII character other than a line break|set a delimiter, and)"
    ):
        CsvDialect(**words)


def test_one_column_for_both_ends_of_edges_is_refused(tmp_path: Path) -> None:
    schema = write(tmp_path / "s.yaml", "edges: {files: [e.csv], source: src, target: src}")
    with pytest.raises(ConfigError, match="source and target are both column 'src': choose two different"):
        read_schema(schema)


def test_a_folder_of_more_folders_than_datasets_have_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        (tmp_path / "disk" / str(number)).mkdir(parents=True)
    write(tmp_path / "disk" / "0" / "edges.csv", "src,dst\n0,1\n")
    monkeypatch.setattr("hyrt.graph.tables.table_files._MAX_FOLDERS", 4)
    assert wrong(tmp_path / "disk") == [
        "disk contains more than 4 folders: pass the table files, or a folder with only these files"
    ]


def test_files_without_ids_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n" + "".join(f"{i},{(i + 1) % 12}\n" for i in range(12)))
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    parts = [write(nodes / f"part-{i}.csv", f"f\n{i}.5\n") for i in range(12)]
    graph, said = imported(edges, nodes, into=tmp_path / "out")
    assert graph.features.values[:, 0].tolist() == [i + 0.5 for i in range(12)]
    assert any(
        "in the order of the 12 files (part-0.csv, part-1.csv ... part-11.csv)" in line for line in said
    )
    assert imported(edges, *parts, into=tmp_path / "out")[0].features.values[11] == 11.5
    # The shell sorts patterns by letters.
    assert wrong(edges, *sorted(parts)) == [
        "nodes/part-11.csv comes before part-2.csv, but vertices without ids are numbered in the order of "
        "the files: pass the files in the order of their numbers, or add an id column"
    ]
    parts[0].rename(nodes / "extra.csv")
    [line] = wrong(edges, nodes)
    assert line.startswith("nodes/extra.csv and 11 more: vertices without ids are numbered in the order of")
    for i in range(12):
        write(nodes / f"part-{i}.csv", f"id,f\n{i},{i}.5\n")
    (nodes / "extra.csv").unlink()
    graph, said = imported(edges, *sorted(parts), into=tmp_path / "out")
    assert graph.features.values[:, 0].tolist() == [i + 0.5 for i in range(12)]
    assert not any("in the order of the" in line for line in said)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("b.csv.zst", "edges/b.csv.zst looks like a table, but this format is not supported"),
        ("b.dat", "edges/b.dat looks like a table"),
        ("part-00001", "edges/part-00001 looks like a table"),
        ("more/b.csv.zip", "edges/more/b.csv.zip looks like a table"),
        ("b.gz", "edges/b.gz looks like a table"),
        ("_delta_log/0.json", "edges is a Delta Lake table, whose folder also has deleted rows"),
        ("metadata/v1.metadata.json", "edges is an Iceberg table"),
        (
            "type=likes/b.csv",
            "edges/type=likes/b.csv: the values of 'type' are only in the name of the folder",
        ),
        (
            "a.csv.gz",
            "edges/a.csv and a.csv.gz seem to be copies of one table, whose rows would be read twice",
        ),
        ("a.parquet", "edges/a.csv and a.parquet seem to be copies of one table"),
        ("README.md", ""),
        ("a.csv.md5", ""),
        ("original.zip", ""),
        (".ipynb_checkpoints/a-checkpoint.csv", ""),
    ],
)
def test_files_in_folders_that_are_not_read(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "edges" / name).parent.mkdir(parents=True)
    write(tmp_path / "edges" / "a.csv", "src,dst\n0,1\n1,2\n")
    write(tmp_path / "edges" / "_SUCCESS", "")
    write(tmp_path / "edges" / name, "src,dst\n2,3\n")
    if says:
        assert wrong(tmp_path / "edges")[0].startswith(says)
        return
    graph, said = imported(tmp_path / "edges", into=tmp_path / "out")
    assert edges_of(graph) == {(0, 1): 1, (1, 2): 1}
    lines = [line for line in said if "not read" in line]
    assert all(line.endswith(f"edges: files that are not read: {name}") for line in lines)
    assert len(lines) == 1


def test_values_in_names_of_folders_are_refused_unless_the_files_have_them(tmp_path: Path) -> None:
    folders = [tmp_path / "edges" / name for name in ("type=cites", "type=likes")]
    for number, part in enumerate(folders):
        part.mkdir(parents=True)
        table = pa.table({"src": [number], "dst": [number + 1]})
        parquet.write_table(table, part / "p.parquet")
    for files in ([tmp_path / "edges"], folders):
        assert "the values of 'type' are only in the name of the folder 'type=" in wrong(*files)[0]
    assert imported(folders[0], into=tmp_path / "out")[0].num_edges == 1
    for files in ([folders[0], folders[0]], [folders[0], folders[0] / "p.parquet"]):
        assert "p.parquet is listed twice in the input" in wrong(*files)[0]
    for number, part in enumerate(folders):
        table = pa.table({"src": [number], "dst": [number + 1], "type": [part.name[5:]]})
        parquet.write_table(table, part / "p.parquet")
    graph, _ = imported(tmp_path / "edges", into=tmp_path / "out")
    assert graph.topology.edge_types.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("index", "first", "is_refused"),
    [
        ({"start": 2, "stop": -1, "step": -1}, 0, True),
        ({"start": 0, "stop": 6, "step": 2}, 0, True),
        ({"start": 1, "stop": 4, "step": 1}, 0, True),
        ({"start": 1, "stop": 4, "step": 1}, 1, False),
        ({"start": 0, "stop": 3, "step": 1}, 1, False),
        ({"start": 0, "stop": 3, "step": 1, "name": "id"}, 1, True),
        ({"start": 0, "stop": 3, "step": 1, "name": "id"}, 0, False),
        ({"start": 0, "stop": 9, "step": 1, "name": "id"}, 0, False),  # Metadata of a longer table.
    ],
)
def test_a_row_index_of_pandas_that_is_not_stored(
    index: dict[str, Any], first: int, is_refused: bool, tmp_path: Path
) -> None:
    edges = write(tmp_path / "e.csv", "src,dst\n" + f"{first},{first + 1}\n{first + 1},{first + 2}\n")
    metadata = {"index_columns": [{"kind": "range", "name": None, **index}]}
    table = pa.table({"f": [0.2, 0.1, 0.0], "y": [1, 0, 1]})
    nodes = tmp_path / "v.parquet"
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(metadata)}), nodes)
    if is_refused:
        [line] = wrong(edges, nodes)
        assert line.startswith("v.parquet: the row index of pandas")
        assert "reset_index()" in line
    else:
        graph, _ = imported(edges, nodes, into=tmp_path / "out")
        assert graph.features.values[:, 0].tolist() == np.float32([0.2, 0.1, 0.0]).tolist()
    # A stored index of other vertices.
    stored = {"pandas": json.dumps({"index_columns": ["__index_level_0__"]})}
    for ids in ([0, 1, 2], [9, 0, 4]):
        table = table.append_column("__index_level_0__", pa.array(ids))
        parquet.write_table(table.replace_schema_metadata(stored), nodes)
        table = table.drop_columns(["__index_level_0__"])
        if ids[0]:
            [line] = wrong(edges, nodes)
            assert line.startswith(
                "v.parquet: column '__index_level_0__' is a row index, but neither numbers"
            )
        else:
            assert imported(edges, nodes, into=tmp_path / "out")[0].num_vertices == 3


def test_folders_of_parquet_and_what_columns_hold(tmp_path: Path) -> None:
    """Pieces in a folder; lists as features; several labels of 0 and 1; types and features of edges."""
    (tmp_path / "links").mkdir()
    for name, rows in (("b", [(2, 0, "cites", 1.0)]), ("a", [(0, 1, "likes", 2.0), (1, 2, "cites", 3.0)])):
        table = dict(zip(("source", "target", "type", "x"), zip(*rows, strict=True), strict=True))
        parquet.write_table(
            pa.table({key: list(part) for key, part in table.items()}), tmp_path / "links" / f"{name}.parquet"
        )
    vectors = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32(), 2))
    flags = {"a": [True, False, None], "b": pa.array([0, 1, 1], pa.uint64())}
    parquet.write_table(pa.table({"vector": vectors, **flags}), tmp_path / "nodes.parquet")
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["links"], source="source", target="target", type="type", features=["x"]),
        vertices=VertexTableSchema(
            files=["*.parquet"], label=["a", "b"], label_kind="flags", features=["vec*"]
        ),
        split=RandomSplit(train=1, val=0, test=0),
    )
    graph, said = imported(tmp_path / "links", tmp_path / "nodes.parquet", into=tmp_path / "g", schema=schema)
    assert edges_of(graph) == dict.fromkeys([(0, 1), (1, 2), (2, 0)], 1.0)
    assert graph.topology.edge_types is not None
    assert graph.topology.edge_types.tolist() == [0, 1, 0]
    assert graph.topology.edge_features is not None
    assert graph.topology.edge_features.tolist() == [[1], [2], [3]]
    assert graph.labels.tolist() == [[1, 0], [0, 1], [-1, 1]]
    assert graph.features.values.tolist() == [[1, 2], [3, 4], [5, 6]]
    assert "edge types: 0 cites, 1 likes" in said


def test_a_table_as_a_program_of_offices_writes_it(tmp_path: Path) -> None:
    """Semicolons, decimal commas, line ends and letters of Windows, quotes, empty lines, ids from 1."""
    edges = write(tmp_path / "kanten.csv", "\ufeffvon;nach;gewicht\r\n1,0;2,0;0,5\r\n\r\n2,0;3,0;1,25\r\n")
    nodes = write(
        tmp_path / "knoten.csv",
        'Nummer;Klasse;Größe\r\n1;"groß; rot";1,5\r\n2;klein;2,5\r\n3;klein;0\r\n',
        "cp1252",
    )
    guess = infer_schema([edges, nodes])
    assert (guess.schema.ids, guess.schema.first_id) == ("positions", 1)
    graph, said = imported(edges, nodes, into=tmp_path / "graph")
    assert edges_of(graph) == {(0, 1): 0.5, (1, 2): 1.25}
    assert graph.labels.tolist() == [0, 1, 1]
    assert graph.features.values[:, 0].tolist() == [1.5, 2.5, 0]
    assert said[-1] == "classes: 0 groß; rot, 1 klein"


def test_where_ids_begin_and_names_without_a_header(tmp_path: Path) -> None:
    """Ids from 1 without a column of ids; a list of names, of which the first line is one."""
    edges = write(tmp_path / "e.csv", "src,dst\n1,2\n2,3\n")
    assert edges_of(imported(edges, into=tmp_path / "a")[0]) == {(0, 1): 1, (1, 2): 1}
    for rows, first in (("0.5\n1.5\n2.5\n", 1), ("0.5\n1.5\n2.5\n3.5\n", 0)):
        nodes = write(tmp_path / "n.csv", f"x\n{rows}")
        graph, _ = imported(edges, nodes, into=tmp_path / "b")
        assert edges_of(graph) == {(1 - first, 2 - first): 1, (2 - first, 3 - first): 1}
    names = write(tmp_path / "names.txt", "ann bob\nbob cid\ncid ann\n")
    assert edges_of(imported(names, into=tmp_path / "c")[0]) == {(0, 1): 1, (1, 2): 1, (2, 0): 1}


def test_every_bad_row_is_named(tmp_path: Path) -> None:
    nodes = write(tmp_path / "nodes.csv", "id,label,x\n0,a,1\n1,b,2\n2,a,\n3,a,4\n4,b,inf\n5,b,6\n")
    rows = "0,1,1\n\n0,two,2\n1,7,3\n,1,1\n2,1,0\n1,0\n2,0,1\n0,2,1\n1,2,1\n"
    edges = write(tmp_path / "edges.csv", f"src,dst,weight\n{rows}")
    assert wrong(edges, nodes) == [
        "2 values or rows are wrong; nothing is written",
        "  nodes.csv, line 6, column 'x': inf is not a valid float32 number",
        "  nodes.csv, line 4, column 'x': the value is missing",
        "Write a number in each of these rows, or remove the column from the features",
        "Write a number in each of these rows, or remove the column from the features, or set vertices.fill "
        "in the schema to a number that replaces missing features",
    ]
    write(nodes, "id,label,x\n0,a,1\n1,b,2\n2,a,3\n")
    assert wrong(edges, nodes) == [
        "5 values or rows are wrong; nothing is written",
        "  edges.csv, line 8: has 2 values for 3 columns ('1,0'): write one value per column, and quote "
        "values that contain the delimiter ','",
        "  edges.csv, line 6, column 'src': the value is missing",
        "  edges.csv, line 4, column 'dst': 'two' is not an integer",
        "  edges.csv, line 5, column 'dst': '7' is not a vertex: ids in the vertex table range from 0 to 2",
        "  edges.csv, line 7, column 'weight': '0' is not a valid weight",
        "Add both ids to every edge; text.nulls in the schema lists the values that count as missing",
        "If ids are strings, or written like 007 or +1, set ids in the schema to names",
        "Add these vertices to their table, or set edges.unknown in the schema to drop, which removes their "
        "edges; if ids start at 1, set first_id to 1",
        "Set each weight to a finite number above 0",
    ]


def test_ids_that_are_wrong(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.csv", "src,dst\n0,1\n")
    nodes = write(tmp_path / "nodes.csv", "id,x\n0,1\n1,2\n1,3\n5,4\n")
    table = VertexTableSchema(files=["nodes.csv"], id="id", features=["x"])
    counted = ImportSchema(
        edges=EdgeTableSchema(files=["edges.csv"], source="src", target="dst"), vertices=table
    )
    assert wrong(edges, nodes, schema=counted)[:3] == [
        "2 values or rows are wrong; nothing is written",
        "  nodes.csv, line 5, column 'id': 5 is not from 0 to 3, the id range of 4 vertices",
        "  nodes.csv, line 3, column 'id': 1 is also the id of a later row",
    ]
    named = ImportSchema(ids="names", edges=counted.edges, vertices=table)
    assert wrong(edges, nodes, schema=named)[1] == (
        "  nodes.csv, line 4, column 'id': '1' is the id of an earlier row"
    )
    sparse = write(tmp_path / "sparse.csv", "src,dst\n0,123456789\n")
    positions = ImportSchema(edges=EdgeTableSchema(files=["*.csv"], source="src", target="dst"))
    [line] = wrong(sparse, schema=positions)
    assert line.startswith("sparse.csv: ids range from 0 to 123,456,789, but edges use only 2: if")
    huge = write(tmp_path / "huge.csv", "src,dst\n0,12345678901234\n-1,3\n")
    assert edges_of(imported(sparse, huge, into=tmp_path / "named")[0]).keys() == {(0, 1), (0, 3), (2, 4)}
    assert wrong(huge, schema=positions)[1:3] == [
        "  huge.csv, line 3, column 'src': '-1' is below the first id, 0",
        "  huge.csv, line 2, column 'dst': '12345678901234' is too large for consecutive ids",
    ]


def test_edges_that_are_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.csv", "src,dst\n0,1\n1,1\n0,1\n1,0\n")

    def lines(**how: str) -> list[str]:
        table = EdgeTableSchema(files=["edges.csv"], source="src", target="dst", **how)  # type: ignore[arg-type]
        return wrong(edges, schema=ImportSchema(edges=table))

    assert lines(duplicates="refuse") == [
        "1 value or row is wrong; nothing is written",
        "  edges.csv, line 4 repeats an earlier edge",
        "Remove these edges, or set edges.duplicates in the schema to first or merge",
    ]
    assert lines(self_loops="refuse")[1] == "  edges.csv, line 3 is a self-loop"
    assert lines(features="dst")[1:] == [
        "  edges.csv, line 4 repeats an earlier edge",
        "Remove these edges, or set edges.duplicates in the schema to first",
    ]


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    edges = write(tmp_path / "edges.csv", "src,dst\n" + "0,1\n0,x\n" * 1000)
    schema = ImportSchema(edges=EdgeTableSchema(files=["*"], source="src", target="dst"))
    lines = wrong(edges, schema=schema)
    assert lines[0] == "1,000 values or rows are wrong; nothing is written"
    assert lines[20] == "  edges.csv, line 41, column 'dst': 'x' is not an integer"
    assert lines[21] == "  and 980 more"


RECORDS = [
    b"1,2\n",
    b"1,2\r\n",
    b'"a\nb",2\n',
    b'"a ""b"" c",d\r\n',
    b"\n",
    b"\r\n",
    b'"\n\n",","\n',
    b'5" pipe,6\n',
    b'"a"b"c,d\r\n',
    b"\n\r\n",
    b"last,one",
]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chosen=st.lists(st.sampled_from(RECORDS[:-1]), max_size=12), last=st.booleans(), size=st.integers(1, 40)
)
def test_blocks_are_whole_records_with_their_lines(
    chosen: list[bytes], last: bool, size: int, tmp_path: Path
) -> None:
    records = [*chosen, *([RECORDS[-1]] if last else [])]
    (tmp_path / "a.csv").write_bytes(b"x,y\n" + b"".join(records))
    file = TextFile(tmp_path / "a.csv", "a.csv", CsvDialect())
    wanted, line = [], 2
    for record in records:
        if record.strip():
            wanted.append(line)
        line += record.count(b"\n")
    found = [int(number) for block in file.blocks(size) for number in block.lines]
    assert found == wanted
    pieces = list(read_csv_batches(file, {"x": "text", "y": "text"}, block_bytes=size))
    assert [place for piece in pieces for place in piece.places()] == wanted
    assert sum(piece.num_rows for piece in pieces) == len(wanted)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=8), max_size=6))
def test_names_are_numbered_as_they_come(pieces: list[list[str | None]]) -> None:
    names, wanted = NameIndex(), dict[str, int]()
    for piece in pieces:
        for name in piece:
            if name is not None:
                wanted.setdefault(name, len(wanted))
        column = pa.array([None, *piece], pa.string()).slice(1)
        missing = np.array([name is None for name in piece], np.bool_)
        numbers = [-1 if name is None else wanted[name] for name in piece]
        assert names.add(column, missing).tolist() == numbers
        assert names.find(column, missing).tolist() == numbers
    with mock.patch("hyrt.graph.tables.vertex_ids._NAMES_AT_ONCE", 3):
        assert [name for block in names.blocks() for name in block] == list(wanted)


def test_many_names() -> None:
    names, count = NameIndex(), 30_000
    column = pa.array([f"vertex {i}" for i in range(count)])
    missing = np.zeros(count, np.bool_)
    assert (names.add(column, missing) == np.arange(count)).all()
    assert (names.find(column, missing) == np.arange(count)).all()
    assert names.find(pa.array(["vertex 30000", ""]), missing[:2]).tolist() == [-1, -1]


def test_a_split_is_drawn_by_seed_of_vertices_with_labels() -> None:
    labels = np.arange(1000) % 5 - 1
    split = RandomSplit(train=0.5, val=0.25, test=0.1, seed=3)
    masks = draw_random_split(split, labels)
    assert [int(mask.sum()) for mask in masks] == [400, 200, 80]
    assert not (sum(mask.astype(int) for mask in masks) > 1).any()
    assert not any(mask[labels < 0].any() for mask in masks)
    assert all(np.array_equal(*pair) for pair in zip(masks, draw_random_split(split, labels), strict=True))
    other = draw_random_split(split.model_copy(update={"seed": 4}), labels)
    assert not np.array_equal(masks[0], other[0])


def test_the_printed_schema_is_the_guessed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "e.csv", "src;dst;gewicht\na;b;1,5\n")
    write(tmp_path / "n.csv", "id,y,f0,f1\na,1,2,3\nb,2,3,4\n")
    run_here("data", "import", "e.csv", "n.csv", "--print-schema", cwd=tmp_path)
    text = capsys.readouterr().out
    write(tmp_path / "schema.yaml", text)
    guessed = infer_schema([tmp_path / "e.csv", tmp_path / "n.csv"]).schema
    assert read_schema(tmp_path / "schema.yaml") == guessed
    assert "# The column of the label. Several columns" in text
    assert guessed.edges.text.decimal == ","
    run_here("data", "import", "e.csv", "n.csv", "--schema", "schema.yaml", "-o", "out", cwd=tmp_path)
    assert edges_of(open_graph(tmp_path / "out")) == {(0, 1): 1.5}
    assert schema_text(guessed) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 0.5\n2 3 1.5\n",
            "is a Matrix Market file",
        ),
        ("src   dst\na1    b22\n", "the columns are aligned by runs of spaces"),
        ("id    y  f0\na1    0  1.5\nb22   1  2.5\n", "the columns are aligned by runs of spaces"),
    ],
)
def test_tables_in_other_formats_are_refused(text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "e.txt", text)
    assert message in refused("data", "import", "e.txt", "-o", "out", cwd=tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\nsrc;dst;w\nann;bob;0,5\nbob;cid;1,5\n",
        '\ufeff"sep=,"\r\nsrc,dst,w\r\nann,bob,0.5\r\nbob,cid,1.5\r\n',
        "SEP=\t\n\nsrc\tdst\tw\nann\tbob\t0.5\nbob\tcid\t1.5\n",
        "sep=|\nann|bob|0.5\nbob|cid|1.5\n",
    ],
)
def test_the_line_of_excel_sets_the_delimiter(text: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", text)
    graph, _ = imported(edges, into=tmp_path / "out")
    assert edges_of(graph) == {(0, 1): 0.5, (1, 2): 1.5}
    with read_names(tmp_path / "out", "ids.csv") as names:
        assert names is not None
        assert list(names) == ["ann", "bob", "cid"]
    if ";" in text:  # The line counts also with a schema, which has another delimiter, and for line numbers.
        table = EdgeTableSchema(
            files=["*"], source="src", target="dst", weight="w", text=CsvDialect(decimal=",")
        )
        schema = ImportSchema(ids="names", edges=table)
        assert edges_of(imported(edges, into=tmp_path / "out", schema=schema)[0]) == {
            (0, 1): 0.5,
            (1, 2): 1.5,
        }
        write(edges, text + "cid;ann;-1\n")
        assert wrong(edges)[1] == "  e.csv, line 5, column 'w': -1.0 is not a valid weight"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "Edges\n\nsrc,dst,w\n0,1,2\n1,2,3\n",
            "'Edges' has 1 value, but most lines have 3: remove lines abo",
        ),
        ("Edges, all\n\nsrc,dst\nann,bob\nbob,cid\n", "'Edges,all' is above the line with the column names"),
        ("A, B, C\nsrc,dst\nann,bob\nbob,cid\n", "'A,B,C' has 3 values, but most lines have 2"),
        ("Edges;\nsource;target\nann;bob\nbob;cid\n", "'Edges;' is above the line with the column names"),
        ('"src","dst"\n"1",5,6\n"2",6,7\n', "'src,dst' has 2 values, but most lines have 3"),
        ("src,dst\n5,6,\n6,7,\n", "'src,dst' has 2 values, but most lines have 3"),
        ("src,dst,2019\nann,bob,7\nbob,cid,8\n", "'src,dst,2019' may be column names or values"),
        # The names that pandas gives to the columns of an array.
        ("0,1\n5,6\n6,7\n", "'0,1' may be column names or values"),
        ("0\t1\t2\n0\t2\t1\n1\t2\t1\n", "may be column names or values"),
        (",0,1\n0,1,2\n1,2,0\n", "',0,1' may be column names or values"),
        ("0,1\n0.5,1\n1,0.5\n", "'0,1' may be column names or values"),
        ("Doe, Jo;Roe, Al\nRoe, Al;Doe, Jo\n", "may be separated by ',' or by ';': set text.delimiter in a"),
    ],
)
def test_a_first_line_that_is_no_header_is_refused(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [line] = wrong(write(tmp_path / "e.csv", f"# comment\n{text}"))
    assert line.startswith("e.csv, line 2: ")
    assert says in line
    # A draft of a schema is printed nevertheless, unless there is only one column.
    words = ("data", "import", "--print-schema", "e.csv")
    if "has 1 value" in says:
        assert refused(*words, cwd=tmp_path) in line
    else:
        run_here(*words, cwd=tmp_path)
        assert f"# Correct this schema: {line}" in capsys.readouterr().out


def test_joined_files_with_byte_order_marks(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "\ufeffsrc,dst\nann,bob\n\ufeffsrc,dst\nbob,cid\n")
    table = EdgeTableSchema(files=["*"], source="src", target="dst")
    schema = ImportSchema(ids="names", edges=table)
    assert wrong(edges, schema=schema)[1:] == ["  e.csv, line 3: repeats the column names: remove this line"]
    # The second mark begins at the first byte after those that are read at once.
    start = "\ufeffsrc,dst\n" + "ann,bob\n" * 8000
    start += "a" * ((1 << 16) - len(start.encode()) - len(",bob\n")) + ",bob\n"
    write(edges, start + "\ufeffsrc,dst\nbob,cid\n")
    for size in (1, 3, 1 << 20):
        with mock.patch.object(text_blocks, "BLOCK_BYTES", size):
            found = wrong(edges, schema=schema)
        assert found[1:] == ["  e.csv, line 8003: repeats the column names: remove this line"]
    write(edges, "0,1\n\ufeff1,2\n2,0\n")
    assert edges_of(imported(edges, into=tmp_path / "out")[0]) == {(0, 1): 1, (1, 2): 1, (2, 0): 1}


def test_a_guessed_header_is_told(tmp_path: Path) -> None:
    """Two names may be the names of columns."""
    for text, header in (
        ("ann,bob\ncid,dan\n", True),
        ("ann,bob\nbob,dan\n", False),
        ("src,dst\na,b\n", False),
    ):
        lines = infer_schema([write(tmp_path / "e.csv", text)]).lines
        said = [line for line in lines if "the first line is read as column names ('ann', 'bob')" in line]
        assert len(said) == header


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "red\nblue\nblue\n",
            "v.csv: the first line is read as column names ('red'): if they are values, set",
        ),
        ("label\nred\nblue\n", ""),
        ("f\n1\n2\n", ""),
        ("1\n0\n1\n", ""),
        (
            "0\n1\n1\n",
            "v.csv: the first line ('0') is read as values: if it has column names, set text.header",
        ),
    ],
)
def test_first_lines_of_vertices_without_known_names(text: str, says: str, tmp_path: Path) -> None:
    edges, vertices = write(tmp_path / "e.csv", "src,dst\n0,1\n1,0\n"), write(tmp_path / "v.csv", text)
    said = [line.rpartition("/")[2] for line in infer_schema([edges, vertices]).lines if "first line" in line]
    assert len(said) == bool(says)
    assert all(line.startswith(says) for line in said)
    # An array in a file of pandas, and in a file without column names.
    write(vertices, "0,1\n1.5,2\n0,1\n")
    assert wrong(edges, vertices)[0].startswith("v.csv, line 1: '0,1' may be column names or values")
    edges = write(tmp_path / "e.csv", "0,1\n1,2\n2,0\n")
    graph, _ = imported(edges, into=tmp_path / "out")
    assert edges_of(graph) == {(0, 1): 1, (1, 2): 1, (2, 0): 1}
    assert any("the first line ('0', '1') is read as values" in line for line in infer_schema([edges]).lines)


@pytest.mark.parametrize(
    ("values", "weights", "says"),
    [
        ("850 12.345", "1 2", "refused"),
        ("1.234 12.345", "1 2", "read as a decimal point"),
        ("1.234 12.345", "0,5 2", "refused"),
        ("850 12.34", "0,5 2", ""),
        ("0.125 12.345", "0,5 2", ""),
        ("8500 12.345", "1 2", ""),
    ],
)
def test_points_that_may_separate_thousands(values: str, weights: str, says: str, tmp_path: Path) -> None:
    first, second = weights.split()
    edges = write(tmp_path / "e.csv", f"von;nach;gewicht\n0;1;{first}\n1;0;{second}\n")
    first, second = values.split()
    vertices = write(tmp_path / "v.csv", f"id;f\n0;{first}\n1;{second}\n")
    if says == "refused":
        pointed = first if "." in first else second
        assert wrong(edges, vertices) == [
            f"v.csv, column 'f': the point in '{pointed}' may be a decimal point or separate thousands: set "
            "text.decimal in a schema, or write numbers without separators"
        ]
        with mock.patch("hyrt.graph.tables.infer_schema.find_thousands_point", return_value=None):
            schema = infer_schema([edges, vertices]).schema
        graph, _ = imported(edges, vertices, into=tmp_path / "out", schema=schema)
        assert graph.features.values[:, 0].tolist() == np.float32([float(first), float(second)]).tolist()
    else:
        assert says in "\n".join(infer_schema([edges, vertices]).lines)
        assert ("the point in" in "\n".join(infer_schema([edges, vertices]).lines)) == bool(says)


def test_words_with_spaces_are_not_separated(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", "ann smith,bob jones\nbob jones,cid ray\n")
    assert edges_of(imported(edges, into=tmp_path / "out")[0]) == {(0, 1): 1, (1, 2): 1}
    write(edges, "1 2 0,5\n2 3 1,5\n")
    assert edges_of(imported(edges, into=tmp_path / "out")[0]) == {(0, 1): 0.5, (1, 2): 1.5}


@pytest.mark.parametrize("as_folder", [False, True])
@pytest.mark.parametrize(
    "second",
    [
        "dst,weight,src\n2,9,0\n1,4,2\n",
        "weight;dst;src\n9;2;0\n4;1;2\n",
        "sep=\t\nsrc\tdst\tweight\n0\t2\t9\n2\t1\t4\n",
    ],
)
def test_files_of_a_table_are_joined_by_the_names_of_their_columns(
    second: str, as_folder: bool, tmp_path: Path
) -> None:
    (tmp_path / "t").mkdir()
    files = [
        write(tmp_path / "t" / "a.csv", "src,dst,weight\n0,1,7\n"),
        write(tmp_path / "t" / "b.csv", second),
    ]
    inputs = [tmp_path / "t"] if as_folder else files
    wanted = {(0, 1): 7, (0, 2): 9, (2, 1): 4}
    assert edges_of(imported(*inputs, into=tmp_path / "out")[0]) == wanted
    # Line numbers are those of the file, also if it is read a second time.
    table = EdgeTableSchema(files=["*"], source="src", target="dst", duplicates="refuse")
    last = second.splitlines()[-1]
    write(files[1], second + last + "\n")
    number = len(second.splitlines()) + 1
    assert wrong(*inputs, schema=ImportSchema(edges=table))[1].endswith(
        f"b.csv, line {number} repeats an earlier edge"
    )


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            "src,dst\n0,1\n",
            "2,3\n3,4\n",
            "b.csv has no column names, and may have edges like a.csv or vertices",
        ),
        ("src,dst\nann,bob\n", "bob,ann\nann,bob\n", "b.csv has no column names, and may have edges like"),
        ("0,1\n1,2\n", "a,b\n2,3\n3,4\n", "a.csv and b.csv look like edge tables but have different columns"),
        ("src,dst\n0,1\n", "src,dst,weight\n2,3,5\n", "look like edge tables but have different columns"),
    ],
)
def test_files_with_other_columns_are_refused(first: str, second: str, says: str, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)]
    [line] = wrong(*files)
    assert says in line
    (tmp_path / "t").mkdir()
    for file in files:
        file.rename(tmp_path / "t" / file.name)
    [line] = wrong(tmp_path / "t")
    assert line.startswith("t/b.csv")


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (
            "src,dst\n0,1\n",
            "2,3\n",
            "b.csv, line 1: '2', '3' are not the column names of a.csv ('src', 'dst')",
        ),
        (
            "ann,bob\nbob,ann\n",
            "ann;bob\n",
            "b.csv, line 1: values seem to be separated by ';' instead of ','",
        ),
        (
            "0,1\n1,2\n",
            "# x\ns,t\n2,3\n",
            "b.csv, line 2: 's', 't' seem to be column names: use the same form",
        ),
        ("ann,bob\nbob,ann\n", "ann,bob,5\n", "b.csv, line 1 has 3 columns instead of 2: use the same form"),
    ],
)
def test_files_of_other_forms_are_refused_with_a_schema(
    first: str, second: str, says: str, tmp_path: Path
) -> None:
    files = [write(tmp_path / "a.csv", first), write(tmp_path / "b.csv", second)]
    header = first.startswith("src")
    columns = ("src", "dst") if header else ("1", "2")
    table = EdgeTableSchema(files=["*"], source=columns[0], target=columns[1], text=CsvDialect(header=header))
    [line] = wrong(*files, schema=ImportSchema(ids="names", edges=table))
    assert says in line


def test_a_file_in_utf_8_after_one_in_another_encoding(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", "src,dst\nJosé,Zoë\nZoë,José\n", "cp1252")
    second = write(tmp_path / "b.csv", "src,dst\nZoë,Zoë\n")
    assert edges_of(imported(first, second, into=tmp_path / "out")[0]) == {(0, 1): 1, (1, 0): 1, (1, 1): 1}


def test_what_users_get_wrong(tmp_path: Path) -> None:
    write(tmp_path / "e.csv", "src,dst\n0,1\n")
    write(tmp_path / "n.csv", "id,x\n0,1\n1,2\n")
    write(tmp_path / "empty.csv", "\n\n")
    write(tmp_path / "wide.csv", "a,b,c,d\n1,x,2,3\n")
    (tmp_path / "utf16.csv").write_bytes("src,dst\n0,1\n".encode("utf-16"))
    (tmp_path / "bad.csv.gz").write_bytes(gzip.compress(b"src,dst\n0,1\n" * 99)[:-12])
    write(tmp_path / "bad.parquet", "no")
    (tmp_path / "folder").mkdir()
    schema = "edges: {files: [e.csv], source: src, target: dst"
    write(tmp_path / "s.yaml", schema + "}")
    write(tmp_path / "unknown.yaml", schema + ", wieght: w}")
    write(tmp_path / "missing.yaml", "edges: {files: [e.csv], source: src}")
    write(tmp_path / "column.yaml", "edges: {files: [e.csv], source: src, target: dts}")
    for words, message in (
        (["e.csv"], "no destination is specified: add -o DESTINATION"),
        (["none.csv", "-o", "x"], "none.csv does not exist"),
        (["empty.csv", "-o", "x"], "empty.csv has no rows"),
        (["folder", "-o", "x"], "folder contains no CSV or Parquet files"),
        (
            ["wide.csv", "-o", "x"],
            "no file has columns named like the source and target of edges (wide.csv has",
        ),
        (["utf16.csv", "-o", "x"], "utf16.csv is encoded in UTF-16: save it as UTF-8"),
        (["bad.csv.gz", "-o", "x"], "bad.csv.gz is damaged or truncated"),
        (["bad.parquet", "-o", "x"], "bad.parquet is damaged or not a Parquet file"),
        (["e.csv", "-o", "x.csv"], "hyrt writes .npz files and folders"),
        (
            ["e.csv", "-o", "folder"],
            "folder already exists: choose another name, or use --force to replace it",
        ),
        (
            ["n.csv", "-o", "x", "--schema", "s.yaml"],
            "n.csv is not in any table of the schema (edges: e.csv)",
        ),
        (["e.csv", "-o", "x", "--schema", "unknown.yaml"], "'edges.wieght': did you mean 'edges.weight'?"),
        (["e.csv", "-o", "x", "--schema", "missing.yaml"], "setting edges.target is missing: add it"),
        (["e.csv", "-o", "x", "--schema", "column.yaml"], "has no column 'dts': did you mean 'dst'?"),
    ):
        assert message in refused("data", "import", *words, cwd=tmp_path)
    with mock.patch("importlib.util.find_spec", return_value=None):
        assert 'pip install "hyrt[import]"' in refused("data", "import", "e.csv", "-o", "x", cwd=tmp_path)


@pytest.mark.parametrize("module", [listed_edges, folder])
def test_a_full_disk(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While edges are listed, and while the dataset is written."""
    write(tmp_path / "e.csv", "src,dst\n0,1\n")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(module, "NpyWriter" if module is listed_edges else "write_npy", full)
    message = refused("data", "import", "e.csv", "-o", "out", cwd=tmp_path, code=1)
    assert "out cannot be written (No space left on device)" in message
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.csv"]


def test_memory_stays_below_the_bound(tmp_path: Path) -> None:
    """Of what is read and made block by block; a bound above all of it would prove nothing."""
    rng = np.random.default_rng(0)
    count = 400_000
    ends = rng.integers(0, 1000, (count, 2))
    text = "\n".join(f"{u},{v}" for u, v in ends.tolist())
    edges = write(tmp_path / "e.csv", f"src,dst\n{text}\n")
    with (
        mock.patch.object(text_blocks, "BLOCK_BYTES", 1 << 16),
        mock.patch.object(listed_edges, "RANGE_BYTES", 1 << 18),
    ):
        tracemalloc.start()
        imported(edges, into=tmp_path / "g")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 64 << 20
