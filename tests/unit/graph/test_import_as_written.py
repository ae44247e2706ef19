"""Ids, classes and features of an import are what a table says: as written, and nothing beside."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from in_process import run_here

from hyrt.errors import ConfigError, DataError
from hyrt.graph import open_graph
from hyrt.graph.graph import Graph
from hyrt.graph.metadata import read_names

pa = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

from hyrt.config.commented_yaml import read_schema  # noqa: E402
from hyrt.graph.tables import edge_list as listed_edges  # noqa: E402
from hyrt.graph.tables.columns import SuspiciousColumns  # noqa: E402
from hyrt.graph.tables.csv_batches import TextFile, read_csv_batches  # noqa: E402
from hyrt.graph.tables.import_hetero import import_hetero_tables  # noqa: E402
from hyrt.graph.tables.import_tables import ImportJob, import_tables  # noqa: E402
from hyrt.graph.tables.infer_schema import draft_schema, infer_schema  # noqa: E402
from hyrt.graph.tables.schema import (  # noqa: E402
    CsvDialect,
    EdgeTableSchema,
    HeteroImportSchema,
    ImportSchema,
    VertexTableSchema,
)
from hyrt.graph.tables.table_batch import read_real_numbers  # noqa: E402


def write(path: Path, columns: dict[str, list[Any]]) -> Path:
    """Write a table as CSV without quotes, or as Parquet if the name ends so."""
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
        return path
    rows = zip(*columns.values(), strict=True)
    lines = [
        ",".join(columns),
        *(",".join("" if each is None else str(each) for each in row) for row in rows),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def imported(*files: Path, schema: ImportSchema | None = None) -> tuple[Graph, list[str]]:
    """The graph of some files, and what was guessed and said."""
    into = files[0].parent / "out"
    said: list[str] = []
    if schema is None:
        guess = infer_schema(files)
        schema, said = guess.schema, list(guess.lines)
    import_tables(ImportJob(files, into, schema, force=True), said.append)
    return open_graph(into, check=True), said


def names_of(graph_folder: Path, file: str) -> list[str] | None:
    with read_names(graph_folder, file) as names:
        return None if names is None else list(names)


def named_edges(graph: Graph, names: list[str]) -> list[tuple[str, str]]:
    indptr, indices = graph.topology.indptr, graph.topology.indices
    targets = np.repeat(np.arange(graph.num_vertices), np.diff(indptr))
    return sorted((names[u], names[v]) for u, v in zip(indices, targets, strict=True))


PAIRS = [("7", "007"), ("1", "+1"), ("1", "１"), ("0", "-0"), ("1000", "1e3"), ("16", "0x10"), ("2", "٢")]
"""Texts that some reader of numbers takes for one."""


@pytest.mark.parametrize("pair", PAIRS, ids=ascii)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ids_and_classes_stay_as_they_are_written(pair: tuple[str, str], ending: str, tmp_path: Path) -> None:
    ends = [*pair, "30"]
    edges = write(tmp_path / f"e.{ending}", {"src": ends, "dst": [*ends[1:], ends[0]]})
    graph, _ = imported(edges)
    assert names_of(tmp_path / "out", "ids.csv") == ends
    assert named_edges(graph, ends) == sorted(zip(ends, [*ends[1:], ends[0]], strict=True))
    nodes = write(tmp_path / f"n.{ending}", {"id": ends, "label": [pair[1], pair[0], pair[1]]})
    graph, _ = imported(edges, nodes)
    assert names_of(tmp_path / "out", "ids.csv") == ends
    classes = names_of(tmp_path / "out", "classes.csv")
    assert classes is not None
    assert [classes[label] for label in graph.labels] == [pair[1], pair[0], pair[1]]
    with pytest.raises(DataError, match=r"is not an integer(.|\n)*set ids in the schema to names"):
        imported(edges, schema=ImportSchema(edges=EdgeTableSchema(files=["*"], source="src", target="dst")))
    typed = {
        "target_type": "v",
        "types": {"v": {"ids": "names"}, "w": {"ids": "names"}},
        "relations": [{"relation": ["v", "r", "w"], "files": ["*"], "source": "src", "target": "dst"}],
    }
    job = ImportJob([edges], tmp_path / "typed", HeteroImportSchema.model_validate(typed))
    import_hetero_tables(job)
    assert names_of(tmp_path / "typed", "ids.csv") == [f"v {name}" for name in ends] + [
        f"w {name}" for name in [*ends[1:], ends[0]]
    ]


def test_types_of_edges_stay_as_they_are_written(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0], "type": ["7", "007", "7"]})
    graph, said = imported(edges)
    assert graph.topology.edge_types is not None
    assert sorted(graph.topology.edge_types.tolist()) == [0, 1, 1] or "types of edges" in "\n".join(said)
    assert len(set(graph.topology.edge_types.tolist())) == 2


@st.composite
def _padded_rows(draw: st.DrawFn) -> tuple[str, list[list[str]], bytes, int]:
    """A delimiter, values as they are meant, the text with padding, and how many values have some."""
    delimiter = draw(st.sampled_from([",", ";", "\t", "|"]))
    padding = st.text(" " if delimiter == "\t" else " \t", max_size=2)
    plain = st.text("ab é1'", min_size=1, max_size=4).map(str.strip).filter(bool)
    quoted = st.text(f'a1 \t"{delimiter}\n', max_size=5)
    rows, lines, padded = [], [], 0
    for _ in range(draw(st.integers(1, 5))):
        values, words = [], []
        for _ in range(2):
            before, after = draw(padding), draw(padding)
            is_quoted = draw(st.booleans())
            value = draw(quoted if is_quoted else plain)
            values.append(value)
            word = '"' + value.replace('"', '""') + '"' if is_quoted else value
            words.append(before + word + after)
            padded += bool(before + after)
        rows.append(values)
        lines.append(delimiter.join(words))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    return delimiter, rows, ("x" + delimiter + " y \n" + end.join(lines) + end).encode(), padded


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(table=_padded_rows(), size=st.integers(1, 40))
def test_padding_is_removed_and_what_is_in_quotes_stays(table: Any, size: int, tmp_path: Path) -> None:
    delimiter, rows, text, padded = table
    (tmp_path / "a.csv").write_bytes(text)
    file = TextFile(tmp_path / "a.csv", "a.csv", CsvDialect(delimiter=delimiter, nulls=["missing"]))
    assert file.columns() == ["x", "y"]
    pieces = list(read_csv_batches(file, {"x": "text", "y": "text"}, block_bytes=size))
    found = [
        list(row)
        for piece in pieces
        for row in zip(piece.columns["x"].to_pylist(), piece.columns["y"].to_pylist(), strict=True)
    ]
    assert found == rows
    assert sum(piece.padded for piece in pieces) == padded


def test_spaces_around_names_are_said(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('src, dst\nann,\t"bob"\nbob , ann\n" bob",ann\n')
    (tmp_path / "n.csv").write_text("'id' ; 'label'\n'ann'; 'cat'\n'bob' ; 'dog'\n' bob';'cat'\n")
    graph, said = imported(tmp_path / "e.csv", tmp_path / "n.csv")
    names = ["ann", "bob", " bob"]
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert names_of(tmp_path / "out", "classes.csv") == ["cat", "dog"]
    assert named_edges(graph, names) == [(" bob", "ann"), ("ann", "bob"), ("bob", "ann")]
    text = "\n".join(said)
    assert "e.csv: removed spaces or tabs around 3 values (those within quotes are kept)" in text
    assert "n.csv: removed spaces or tabs around 3 values" in text
    assert "some ids look the same (' bob' and 'bob')" in text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "a random split of 60, 20 and 20 %"),
        ({"split": ["train", "val", "test"]}, "split 'split'"),
        (
            {"train_mask": [1, 0, 0], "val_mask": [0, 1, 0], "test_mask": [0, 0, 1]},
            "split 'train_mask', 'val_mask', 'test_mask'",
        ),
        ({"phase": ["train", "dev", "test"]}, "split 'phase'"),
        ({"Fold": ["Training", "", "testing"], "set": ["Training", "", "testing"]}, "split 'set'"),
        (
            {"train_mask_0": [1, 0, 0], "val_mask_0": [0, 1, 0], "test_mask_0": [0, 0, 1]},
            "split 'train_mask_0', 'val_mask_0', 'test_mask_0'",
        ),
        (
            {"is_train": [1, 0, 0], "is_val": [0, 1, 0], "is_test": [0, 0, 1], "fold": list("abc")},
            "split 'is_train', 'is_val', 'is_test'",
        ),
    ],
    ids=["none", "column", "masks", "by values", "copies", "numbered masks", "flags"],
)
def test_the_guessed_split_is_named(columns: dict[str, list[Any]], said: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "label": [0, 1, 0], "f": [0.5, 1.5, 2.5], **columns})
    [line] = [line for line in infer_schema([edges, nodes]).lines if ": vertices, " in line]
    parts = line.split(": vertices, ")[1].split("; ")
    assert [part for part in parts if "split" in part] == [said]
    graph, lines = imported(edges, nodes)
    assert graph.features.values.ravel().tolist() == [0.5, 1.5, 2.5]
    is_guess = [f"column {name!r} is read as the split" in line for name in columns for line in lines]
    assert any(is_guess) == ("phase" in columns)
    if columns and "Fold" not in columns:
        assert [graph.split(part).tolist() for part in ("train", "val", "test")] == [[0], [1], [2]]


@pytest.mark.parametrize("word", ["None", "NA", "null", "nan"])
def test_missing_labels_are_counted_by_what_stands_there(word: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": [word, "A", "B", word]})
    graph, said = imported(edges, nodes)
    assert graph.labels.tolist() == [-1, 0, 1, -1]
    line = f"n.csv, column 'label': 2 of 4 values count as missing ('{word}' 2): if one of these is"
    assert [each for each in said if line in each]
    kept = infer_schema([edges, nodes]).schema
    assert kept.vertices is not None
    text = CsvDialect(nulls=[""])
    kept = kept.model_copy(update={"vertices": kept.vertices.model_copy(update={"text": text})})
    graph, _ = imported(edges, nodes, schema=kept)
    assert names_of(tmp_path / "out", "classes.csv") == sorted(["A", "B", word])
    assert (graph.labels >= 0).all()


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_labels_of_minus_one_are_counted(ending: str, tmp_path: Path) -> None:
    """Of -1, 0 and 1, the first one means no label, and the import says so; -1 and 1 are two classes."""
    edges = write(tmp_path / f"e.{ending}", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    nodes = write(tmp_path / f"n.{ending}", {"id": [0, 1, 2, 3], "label": [-1, 0, 1, -1]})
    graph, said = imported(edges, nodes)
    assert graph.labels.tolist() == [-1, 0, 1, -1]
    assert [line for line in said if "column 'label': 2 of 4 values are -1, which means no label" in line]
    write(tmp_path / f"n.{ending}", {"id": [0, 1, 2, 3], "label": [-1, 1, 1, -1]})
    graph, said = imported(edges, nodes)
    assert graph.labels.tolist() == [0, 1, 1, 0]
    assert names_of(tmp_path / "out", "classes.csv") == ["-1", "1"]
    assert not [line for line in said if "no label" in line]


def test_flags_of_minus_one_are_counted(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "a": [1, -1, -1], "b": [1, 0, 1]})
    vertices = VertexTableSchema(files=["n.csv"], id="id", label=["a", "b"], label_kind="flags")
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["e.csv"], source="src", target="dst"), vertices=vertices
    )
    _, said = imported(edges, nodes, schema=schema)
    assert [line.partition(": if")[0] for line in said if "-1" in line] == [
        f"{nodes}, column 'a': 2 of 3 values are -1, which means no label"
    ]


@pytest.mark.parametrize("values", [[0.0, None, 1.0, 1.0], [0.5, None, 1.5, 2.5]], ids=["classes", "numbers"])
@pytest.mark.parametrize("gap", [None, float("nan")], ids=["null", "nan"])
def test_nan_is_a_missing_label_as_null_is(
    gap: float | None, values: list[float | None], tmp_path: Path
) -> None:
    edges = write(tmp_path / "e.parquet", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    labels = [gap if value is None else value for value in values]
    nodes = tmp_path / "n.parquet"
    parquet.write_table(pa.table({"id": [0, 1, 2, 3], "label": pa.array(labels, pa.float64())}), nodes)
    graph, said = imported(edges, nodes)
    whole = values[0] == 0
    assert graph.labels.tolist()[0::2] == values[0::2]
    assert graph.labels.dtype.kind == ("i" if whole else "f")
    assert graph.labels[1] == -1 if whole else np.isnan(graph.labels[1])
    assert [line for line in said if "column 'label': 1 of 4 values count as missing" in line]
    assert not [line for line in said if "text.nulls" in line]


def test_labels_that_hardly_repeat_are_said_to_look_like_numbers(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": list(range(20)), "dst": [*range(1, 20), 0]})
    for labels, says in (([3 * n for n in range(20)], True), ([n // 2 for n in range(20)], False)):
        nodes = write(tmp_path / "n.csv", {"id": list(range(20)), "label": labels})
        _, said = imported(edges, nodes)
        assert (
            any("20 labels belong to 20 classes: if they are regression targets" in line for line in said)
            == says
        )


def test_lists_called_label_are_no_features(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    columns = {"id": [0, 1, 2], "x": [0.5, 1.5, 2.5], "label": [[0, 1], [1, 0], [1, 1]]}
    graph, said = imported(edges, write(tmp_path / "n.parquet", columns))
    assert graph.features.values.tolist() == [[0.5], [1.5], [2.5]]
    assert [line for line in said if "no labels, because 'label' contains lists" in line]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"split": [0, 1, 2]}, "column 'split' contains '0', '1', '2', but the splits are train, val"),
        ({"Split": ["train", "holdout", "test"]}, "column 'Split' contains 'holdout'"),
        ({"train": [1, 0, 0], "test": [0, 0, 1]}, "this table has only 'train', 'test': add the missing"),
        ({"is_train": ["True", "False", "True"]}, "this table has only 'is_train'"),
        ({"train_mask_3": [1, 0, 0], "test_mask_3": [0, 0, 1]}, "only 'train_mask_3', 'test_mask_3'"),
        (
            {"phase": ["train", "val", "test"], "fold": ["test", "val", "train"]},
            r"several columns contain different splits \('phase'; 'fold'\): keep the columns of one split",
        ),
        (
            {"split": ["train", "val", "test"], "train": [1, 0, 0], "val": [0, 0, 1], "test": [0, 1, 0]},
            r"different splits \('train', 'val', 'test'; 'split'\)",
        ),
        (
            {
                f"{part}_mask_{n}": [part == p for p in parts]
                for n, parts in enumerate([("train", "val", "test"), ("val", "train", "test")])
                for part in ("train", "val", "test")
            },
            r"different splits \('train_mask_0', 'val_mask_0', 'test_mask_0'; 'train_mask_1',",
        ),
    ],
)
def test_a_split_that_cannot_be_read_is_refused(columns: Any, says: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "label": [0, 1, 1], **columns})
    with pytest.raises(DataError, match=says):
        imported(edges, nodes)


def test_numbers_called_like_a_part_of_a_split_stay(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2], "label": [0, 1, 1], "test": [40, 70, 90]})
    assert imported(edges, nodes)[0].features.values.ravel().tolist() == [40, 70, 90]


@pytest.mark.parametrize("damaged", [False, True])
def test_another_encoding_is_said_and_a_damaged_line_is_refused(damaged: bool, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    nodes = tmp_path / "n.csv"
    text = "id,label\n0,Café\n1,Thé\n2,Lait"
    nodes.write_bytes(text.encode() + b"\xff\n" if damaged else text.encode("cp1252") + b"\n")
    if damaged:
        with pytest.raises(DataError, match=r"n\.csv, line 4: .* is not UTF-8 text"):
            imported(edges, nodes)
        return
    _, said = imported(edges, nodes)
    assert names_of(tmp_path / "out", "classes.csv") == ["Café", "Lait", "Thé"]
    assert [line for line in said if "n.csv is not UTF-8 text and was read as cp1252" in line]
    assert not [line for line in said if "e.csv: is not UTF-8" in line]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    again=st.lists(st.integers(0, 12), max_size=3, unique=True),
    size=st.integers(8, 60),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_lines_that_repeat_the_names_of_columns_are_refused(
    again: list[int], size: int, end: str, tmp_path: Path
) -> None:
    """Other rows, such as those with a vertex called like a column, stay."""
    header = "src,weight,dst"
    rows = [f"{'src' if n % 3 == 0 else n},{n + 1},{'dst' if n % 2 else n}" for n in range(12)]
    lines = list(rows)
    for place in sorted(again, reverse=True):
        lines.insert(place, header)
    (tmp_path / "a.csv").write_bytes(end.join([header, *lines, ""]).encode())
    file = TextFile(tmp_path / "a.csv", "a.csv", CsvDialect())
    pieces = list(read_csv_batches(file, {"weight": "number", "src": "text"}, block_bytes=size))
    found = [float(value) for piece in pieces for value in piece.columns["weight"].to_pylist()]
    assert found == [n + 1 for n in range(12)]
    bad = [row.place for piece in pieces for row in piece.bad]
    assert bad == [number for number, line in enumerate(lines, 2) if line == header]
    places = np.concatenate([piece.places() for piece in pieces])
    assert places.tolist() == [number for number, line in enumerate(lines, 2) if line != header]


def test_names_that_look_the_same_are_said(tmp_path: Path) -> None:
    names = ["Jose\u0301", "José", "b", "b\u200b", "cat\u00a0", "cat", "日本", "alone\u200b"]
    edges = write(tmp_path / "e.csv", {"src": names, "dst": [*names[1:], names[0]]})
    nodes = write(tmp_path / "n.csv", {"id": names, "label": ["Dog", "dog", *["cat", "cat\u2009"] * 3]})
    graph, said = imported(edges, nodes)
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert graph.num_classes == 4
    text = "\n".join(said)
    assert r"some ids look the same ('Jose\u0301' and 'José', " in text
    assert r"'b\u200b' and 'b', 'cat\xa0' and 'cat')" in text
    assert r"some classes look the same ('cat\u2009' and 'cat')" in text
    assert "some classes differ only in capitalization ('Dog' and 'dog')" in text
    write(tmp_path / "n.csv", {"id": [*names[1:], "Jose"], "label": [0] * len(names)})
    with pytest.raises(DataError, match=r"'Jose\\u0301' is not in the vertex table"):
        imported(edges, nodes)


def test_ids_that_int64_does_not_hold_are_names(tmp_path: Path) -> None:
    ids = [2**64 - 1, 2**63, 2**63 + 1]
    table = pa.table({"src": pa.array(ids, pa.uint64()), "dst": pa.array(ids[1:] + ids[:1], pa.uint64())})
    parquet.write_table(table, tmp_path / "e.parquet")
    graph, _ = imported(tmp_path / "e.parquet")
    names = list(map(str, ids))
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert named_edges(graph, names) == sorted(zip(names, names[1:] + names[:1], strict=True))


def test_a_missing_id_is_refused_with_its_word(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": ["DE", "FR"], "dst": ["FR", "NA"]})
    with pytest.raises(DataError, match=r"line 3, column 'dst': 'NA' counts as missing"):
        imported(edges)


def test_missing_features_that_are_filled_are_counted(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1], "dst": [1, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1], "f": [2, None], "g": [None, None]})
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["e.csv"], source="src", target="dst"),
        vertices=VertexTableSchema(files=["n.csv"], id="id", features=["f", "g"], fill=0.5),
    )
    graph, said = imported(edges, nodes, schema=schema)
    assert graph.features.values.tolist() == [[2, 0.5], [0.5, 0.5]]
    assert [line for line in said if "n.csv: 3 missing features filled with 0.5" in line]


def _table(ending: str, folder: Path, columns: dict[str, Any]) -> tuple[Path, Path]:
    """Edges in a ring, and vertices with more columns."""
    count = len(columns["age"])
    edges = write(folder / f"e.{ending}", {"src": [*range(count)], "dst": [*range(1, count), 0]})
    rows = {"id": list(range(count)), "label": [("no", "yes")[n % 7 > 2] for n in range(count)], **columns}
    return edges, write(folder / f"n.{ending}", rows)


COUNT = 60
_AGES = np.random.default_rng(0).integers(20, 60, COUNT).tolist()
_SHUFFLED = np.random.default_rng(1).permutation(COUNT).tolist()
DOUBTFUL = {
    "__index_level_0__": _SHUFFLED,
    "Unnamed: 0": [5 * n for n in range(COUNT)],
    "": list(range(COUNT)),
    "index": _SHUFFLED[::-1],
    "rownames": [n + 1 for n in range(COUNT)],
    "nr. of the form": [n + 1 for n in range(COUNT)],
    "shuffled": [n + 1 for n in _SHUFFLED],  # 60 is not a vertex, so these are not ids.
    "coded": [3 if n % 7 > 2 else 1 for n in range(COUNT)],
}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_indicators_of_classes_are_no_features(ending: str, tmp_path: Path) -> None:
    """A column for each of three classes, as `pandas.get_dummies` writes them, and a coarser class."""
    classes = [n % 3 for n in range(COUNT)]
    columns = {f"is_{k}": [int(each == k) for each in classes] for k in range(3)}
    columns["level"] = [int(each > 0) for each in classes]
    edges = write(tmp_path / f"e.{ending}", {"src": [*range(COUNT)], "dst": [*range(1, COUNT), 0]})
    rows = {"id": list(range(COUNT)), "label": classes, "age": _AGES, **columns, "constant": [1] * COUNT}
    graph, said = imported(edges, write(tmp_path / f"n.{ending}", rows))
    assert graph.features.values.T.tolist() == [_AGES, [1] * COUNT]
    [line] = [each for each in said if "excluded columns" in each]
    assert "'level' (is the same for all vertices of a class)" in line


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 9), min_size=40, max_size=80),
    cuts=st.lists(st.integers(1, 79), max_size=2),
    seed=st.integers(0, 99),
)
def test_columns_follow_the_label_if_rows_of_all_classes_say_so(
    labels: list[int], cuts: list[int], seed: int
) -> None:
    """Rows of one class have the same value, by chance for few of them: counted here by hand."""
    rng = np.random.default_rng(seed)
    of_label = np.stack([rng.permutation(10), rng.integers(0, 2, 10), rng.integers(0, 4, 10)], axis=1)
    values = of_label[labels].astype(float)
    noise = rng.integers(0, 2, (len(labels), 1)).astype(float)
    values = np.concatenate([values, noise, rng.normal(size=(len(labels), 1))], axis=1)
    found = SuspiciousColumns(5)
    for part in np.split(np.arange(len(labels)), sorted(cuts)):
        found.add(values[part], np.array(labels)[part])
    wanted = set()
    for column in range(5):
        groups: dict[float, set[int]] = {}
        for label, value in zip(labels, values[:, column], strict=True):
            groups.setdefault(value, set()).add(label)
        if sum(map(len, groups.values())) > len(set(labels)):
            continue
        repeats = sorted(sum(labels.count(each) - 1 for each in group) for group in groups.values())
        if len(groups) == len(set(labels)) or sum(repeats[:-1]) >= 5:
            wanted.add(column)
    is_known = len(set(labels)) > 1 and len(labels) - len(set(labels)) >= 30
    assert set(found.find_reasons()) == (wanted if is_known else set())


@pytest.mark.parametrize("kind", ["numbers", "names"])
def test_labels_that_do_not_repeat_say_nothing_of_features(kind: str, tmp_path: Path) -> None:
    """With a different label for each vertex, every column has one value for each class."""
    rng = np.random.default_rng(3)
    edges = write(tmp_path / "e.csv", {"src": [*range(COUNT)], "dst": [*range(1, COUNT), 0]})
    labels = rng.normal(size=COUNT) if kind == "numbers" else [f"name {n}" for n in range(COUNT)]
    rows = {"id": list(range(COUNT)), "label": list(labels), "x": list(rng.normal(size=COUNT))}
    graph, said = imported(edges, write(tmp_path / "n.csv", rows))
    assert graph.features.values.ravel().tolist() == np.float32(rows["x"]).tolist()
    assert not [line for line in said if "excluded columns" in line]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("name", DOUBTFUL)
def test_numbers_of_rows_and_copies_of_the_label_are_no_features(
    name: str, ending: str, tmp_path: Path
) -> None:
    edges, nodes = _table(ending, tmp_path, {name: DOUBTFUL[name], "age": _AGES})
    graph, said = imported(edges, nodes)
    assert graph.features.values[:, 0].tolist() == _AGES
    assert graph.features.values.shape[1] == 1
    assert [line for line in said if "excluded columns that look like" in line and repr(name) in line]


def test_an_index_of_pandas_is_no_feature_whatever_it_is_called(tmp_path: Path) -> None:
    edges, nodes = _table("parquet", tmp_path, {"stamp": [2 * n + 9 for n in range(COUNT)], "age": _AGES})
    noted = {"pandas": '{"index_columns": ["stamp"], "columns": []}'}
    parquet.write_table(parquet.read_table(nodes).replace_schema_metadata(noted), nodes)
    assert imported(edges, nodes)[0].features.values.shape[1] == 1


@pytest.mark.parametrize("name", ["", "coded", "label itself"])
def test_a_schema_that_lists_such_a_column_is_warned(name: str, tmp_path: Path) -> None:
    columns = {**DOUBTFUL, "label itself": [n % 7 for n in range(COUNT)]}
    edges, nodes = _table("csv", tmp_path, {name: columns[name], "age": _AGES})
    is_number = name == "label itself"
    vertices = VertexTableSchema(
        files=["n.csv"],
        id="id",
        label=[name] if is_number else ["label"],
        label_kind="classes" if is_number else "names",
        features=[name, "age"],
    )
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["e.csv"], source="src", target="dst"), vertices=vertices
    )
    graph, said = imported(edges, nodes, schema=schema)
    assert graph.features.values.shape[1] == 2
    [line] = [each for each in said if "look like row numbers or copies of the label" in each]
    assert repr(name) in line
    assert "age" not in line


def test_features_that_only_look_like_numbers_of_rows_stay(tmp_path: Path) -> None:
    """Of few rows, or that repeat; a pattern takes them, but not an index without a name."""
    columns = {"": list(range(4)), "x": [1, 2, 3, 4], "index": [1, 2, 2, 3], "age": [5, 4, 3, 2]}
    edges, nodes = _table("csv", tmp_path, columns)
    assert imported(edges, nodes)[0].features.values.shape[1] == 3
    vertices = VertexTableSchema(
        files=["n.csv"], id="id", label=["label"], label_kind="names", features=["*"]
    )
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["e.csv"], source="src", target="dst"), vertices=vertices
    )
    assert imported(edges, nodes, schema=schema)[0].features.values.shape[1] == 3


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ends=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=20),
    first=st.sampled_from([0, 1, 1_000_000, 10**12]),
    step=st.sampled_from([1, 7, 10**9]),
    weighted=st.booleans(),
)
def test_only_ids_that_edges_name_are_vertices(
    ends: list[tuple[int, int]], first: int, step: int, weighted: bool, tmp_path: Path
) -> None:
    rows = [(first + step * u, first + step * v) for u, v in ends]
    columns: dict[str, list[Any]] = {"src": [u for u, _ in rows], "dst": [v for _, v in rows]}
    if weighted:
        columns["weight"] = [1 + number for number in range(len(rows))]
    edges = write(tmp_path / "e.csv", columns)
    with mock.patch.object(listed_edges, "_READ_EDGES", 3):
        graph, _ = imported(edges)
    names = names_of(tmp_path / "out", "ids.csv")
    if names is None:
        names = list(map(str, range(graph.num_vertices)))
    assert sorted(map(int, names)) == sorted({end for row in rows for end in row})
    assert named_edges(graph, names) == sorted({(str(u), str(v)) for u, v in rows})


def test_ids_with_gaps_are_said_and_a_schema_may_keep_them(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [10, 12, 15], "dst": [12, 15, 10]})
    graph, said = imported(edges)
    assert graph.num_vertices == 3
    assert names_of(tmp_path / "out", "ids.csv") == ["10", "12", "15"]
    assert "ids between 10 and 15 without edges are not vertices (3): set num_vertices" in said[-1]
    table = EdgeTableSchema(files=["*"], source="src", target="dst")
    graph, said = imported(edges, schema=ImportSchema(edges=table, num_vertices=20))
    assert graph.num_vertices == 20
    assert named_edges(graph, list(map(str, range(20)))) == [("10", "12"), ("12", "15"), ("15", "10")]
    with pytest.raises(DataError, match=r"'15' is not a vertex: ids range from 0 to 13\n.*Increase num_vert"):
        imported(edges, schema=ImportSchema(edges=table, num_vertices=14))
    with pytest.raises(
        ValueError, match="num_vertices is 3, but the ids in edges define the vertices: remove"
    ):
        ImportSchema(ids="names", edges=table, num_vertices=3)


def test_types_have_the_vertices_that_relations_name(tmp_path: Path) -> None:
    """Each of two types by both of its relations; gaps of one are kept."""
    first = write(tmp_path / "a.csv", {"s": [1_000_002, 1_000_005], "t": [3, 1]})
    second = write(tmp_path / "b.csv", {"s": [1, 4], "t": [1_000_009, 1_000_002]})
    schema = {
        "target_type": "user",
        "types": {"user": {}, "item": {"num_vertices": 6}},
        "relations": [
            {"relation": ["user", "buys", "item"], "files": ["a.csv"], "source": "s", "target": "t"},
            {"relation": ["item", "suits", "user"], "files": ["b.csv"], "source": "s", "target": "t"},
        ],
    }
    said: list[str] = []
    with mock.patch.object(listed_edges, "_READ_EDGES", 1):
        import_hetero_tables(
            ImportJob([first, second], tmp_path / "out", HeteroImportSchema.model_validate(schema)),
            said.append,
        )
    graph = open_graph(tmp_path / "out", check=True)
    names = [f"user {n}" for n in (1_000_002, 1_000_005, 1_000_009)] + [f"item {n}" for n in range(6)]
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert named_edges(graph, names) == sorted(
        [
            ("user 1000002", "item 3"),
            ("user 1000005", "item 1"),
            ("item 1", "user 1000009"),
            ("item 4", "user 1000002"),
        ]
    )
    assert "ids of user between 1,000,002 and 1,000,009 without edges are not vertices (5)" in said[-1]


_UUIDS = [uuid.UUID(int=number) for number in (1, 2, 3)]
TEXTS = {
    "large_string": pa.array(["a", "b", "c"], pa.large_string()),
    "string_view": pa.array(["a", "b", "c"], pa.string_view()),
    "binary": pa.array([b"a", b"b", b"c"], pa.binary()),
    "large_binary": pa.array([b"a", b"b", b"c"], pa.large_binary()),
    "fixed_size_binary": pa.array([b"aa", b"bb", b"cc"], pa.binary(2)),
    "dictionary": pa.array(["a", "b", "c"]).dictionary_encode(),
    "bool": pa.array([True, False, None]),
    "date": pa.array([1, 2, 3], pa.date32()),
    "uuid": pa.array([each.bytes for each in _UUIDS], pa.binary(16)),
}
if hasattr(pa, "uuid"):
    TEXTS["uuid"] = pa.ExtensionArray.from_storage(pa.uuid(), TEXTS["uuid"])


@pytest.mark.parametrize("kind", TEXTS)
def test_texts_of_all_types_are_texts(kind: str, tmp_path: Path) -> None:
    column = TEXTS[kind]
    wanted = {"uuid": list(map(str, _UUIDS)), "fixed_size_binary": ["aa", "bb", "cc"]}.get(
        kind, ["a", "b", "c"]
    )
    if kind == "date":
        wanted = ["1970-01-02", "1970-01-03", "1970-01-04"]
    if kind == "bool":
        column, wanted = pa.array([True, False, True]), ["true", "false", "true"]
    edges = write(
        tmp_path / "e.parquet",
        {"src": column, "dst": pa.concat_arrays([column.slice(1), column.slice(0, 1)])},
    )
    nodes = write(tmp_path / "n.parquet", {"id": column, "label": column})
    schema = ImportSchema(
        ids="names",
        edges=EdgeTableSchema(files=["e.parquet"], source="src", target="dst"),
        vertices=VertexTableSchema(files=["n.parquet"], id="id", label=["label"], label_kind="names"),
    )
    if kind == "bool":
        with pytest.raises(DataError, match="True is the id of an earlier row"):
            imported(edges, nodes, schema=schema)
        return
    graph, _ = imported(edges, nodes, schema=None if kind != "date" else schema)
    assert names_of(tmp_path / "out", "ids.csv") == wanted
    assert names_of(tmp_path / "out", "classes.csv") == wanted
    assert named_edges(graph, wanted) == sorted(zip(wanted, [*wanted[1:], wanted[0]], strict=True))


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (
            pa.array([b"\xff", b"\xfe"]),
            "column 'src' has binary values that are not UTF-8 text: convert them to text",
        ),
        (pa.array([[1], [2]]), "column 'src' has values of unsupported type list<.*: use strings or numbers"),
        (
            pa.array([{"a": 1}, {"a": 2}]),
            "column 'src' has values of unsupported type struct<.*: use strings or numbers",
        ),
    ],
    ids=["binary", "list", "struct"],
)
def test_values_that_are_no_texts_are_refused(column: Any, says: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", {"src": column, "dst": ["a", "b"]})
    with pytest.raises(DataError, match=says):
        imported(
            edges,
            schema=ImportSchema(ids="names", edges=EdgeTableSchema(files=["*"], source="src", target="dst")),
        )


def test_words_of_yaml_are_names_in_schemas(tmp_path: Path) -> None:
    """Columns, types and missing values that YAML takes for true, numbers or dates; null needs quotes."""
    write(tmp_path / "e.csv", {"no": ["off", "007", "1e3"], "on": ["007", "1e3", "off"]})
    nodes = {"0x1": ["off", "007", "1e3"], "2024-01-02": ["yes", "no", "0"], "null": [1, 2, 3]}
    write(tmp_path / "n.csv", nodes)
    (tmp_path / "s.yaml").write_text(
        "ids: names\n"
        "edges: {files: e.csv, source: no, target: on, undirected: no, text: {nulls: [n], header: yes}}\n"
        "vertices: {files: n.csv, id: 0x1, label: 2024-01-02, label_kind: names, features: 'null',\n"
        "  fill: 0.5, split: null, text: {nulls: [0, no]}}\n"
        "split: {train: 0.5, val: 0.5, test: 0, seed: 3}\n"
    )
    schema = read_schema(tmp_path / "s.yaml")
    assert isinstance(schema, ImportSchema)
    graph, _ = imported(tmp_path / "e.csv", tmp_path / "n.csv", schema=schema)
    assert names_of(tmp_path / "out", "ids.csv") == ["off", "007", "1e3"]
    assert names_of(tmp_path / "out", "classes.csv") == ["yes"]
    assert graph.labels.tolist() == [0, -1, -1]
    assert named_edges(graph, ["off", "007", "1e3"]) == [("007", "1e3"), ("1e3", "off"), ("off", "007")]
    typed = "target_type: no\ntypes: {no: {ids: names}, 1e3: {ids: names}}\nreverse: on\n"
    typed += "relations: [{relation: [no, on, 1e3], files: e.csv, source: no, target: on}]\n"
    (tmp_path / "t.yaml").write_text(typed)
    found = read_schema(tmp_path / "t.yaml")
    assert isinstance(found, HeteroImportSchema)
    assert (found.target_type, list(found.types), found.reverse) == ("no", ["no", "1e3"], True)
    import_hetero_tables(ImportJob([tmp_path / "e.csv"], tmp_path / "typed", found))
    assert names_of(tmp_path / "typed", "ids.csv") == [
        "no off",
        "no 007",
        "no 1e3",
        "1e3 007",
        "1e3 1e3",
        "1e3 off",
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("source: null, target: b", "a column named null must be written in quotes, as 'null'"),
        ("source: a, target: b, features: [~]", "a column named null must be written in quotes, as 'null'"),
        ("source: a, target: b, text: {nulls: [null]}", "write null and ~ in quotes: 'null'"),
        ("source: a, target: b, undirected: 7", "must be true or false"),
    ],
)
def test_what_is_not_text_in_a_schema(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"edges: {{files: e.csv, {line}}}")
    with pytest.raises(ConfigError, match=says):
        read_schema(tmp_path / "s.yaml")


WHOLE = [1_000_000_000, 7, 2_500_000_000]
"""Ids that are too far apart for positions, so that they are names."""


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("first", ["{}", "{}.0", "{}.00"])
@pytest.mark.parametrize("second", ["{}", "{}.0"])
def test_three_point_zero_is_three_if_all_ids_are_integers(
    first: str, second: str, ending: str, tmp_path: Path
) -> None:
    """In both ends of edges, in a second file, in the vertex table, and in types and classes."""
    a, b, c = ids = [str(each) for each in WHOLE]
    one = {"src": [first.format(a), second.format(b)], "dst": [second.format(b), first.format(c)]}
    two = {"src": [second.format(c)], "dst": [first.format(a)]}
    kinds = {"type": [first.format(5), second.format(5)]}
    files = [
        write(tmp_path / f"e.{ending}", one | kinds),
        write(tmp_path / f"f.{ending}", two | {"type": [second.format(2)]}),
    ]
    graph, said = imported(*files)
    assert names_of(tmp_path / "out", "ids.csv") == ids
    assert named_edges(graph, ids) == sorted([(a, b), (b, c), (c, a)])
    assert graph.topology.edge_types is not None
    assert sorted(graph.topology.edge_types.tolist()) == [2, 5, 5]
    text = "\n".join(said)
    assert ("are written like 3.0 and read as 3" in text) == (first != "{}" or second != "{}")
    labels = [first.format(3), second.format(9), second.format(3)]
    nodes = {"id": [second.format(each) for each in (c, a, b)], "label": labels}
    graph, _ = imported(*files, write(tmp_path / f"n.{ending}", nodes))
    assert names_of(tmp_path / "out", "ids.csv") == [c, a, b]
    assert named_edges(graph, [c, a, b]) == sorted([(a, b), (b, c), (c, a)])
    assert names_of(tmp_path / "out", "classes.csv") == ["3", "9"]
    assert graph.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (
            ["1.0", "1.10", "1.1", "1"],
            "ids: 2 of 4 equal another one as numbers ('1.0' and '1', '1.10' and '1.1')",
        ),
        (["7", "007", "v1"], "ids: 1 of 3 equal another one as numbers ('007' and '7')"),
        (["1000", "1e3", "-0.0", "0"], "ids: 2 of 4 equal another one as numbers ('1e3' and '1000', '-0.0'"),
        (["3", "3.0", "3.0.1"], "ids: 1 of 3 equal another one as numbers ('3.0' and '3')"),
        (
            ["1.23457E+12", "a", "b"],
            "ids: 1 of 3 are written like 1.23457E+12, so a spreadsheet has probably",
        ),
        (["1.0", "2.5", "3.0"], None),
    ],
)
def test_numbers_among_other_ids_stay_as_they_are_written(
    ids: list[str], said: str | None, tmp_path: Path
) -> None:
    edges = write(tmp_path / "e.csv", {"src": ids, "dst": [*ids[1:], ids[0]]})
    schema = ImportSchema(ids="names", edges=EdgeTableSchema(files=["*"], source="src", target="dst"))
    graph, lines = imported(edges, schema=schema)
    assert names_of(tmp_path / "out", "ids.csv") == ids
    assert named_edges(graph, ids) == sorted(zip(ids, [*ids[1:], ids[0]], strict=True))
    found = [line for line in lines if "as numbers" in line or "rounded" in line]
    assert len(found) == (said is not None)
    assert not found or said in found[0]
    assert not [line for line in lines if "read as 3" in line]


def test_one_integer_in_two_rows_of_a_vertex_table_is_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [9_000_000_000, 5], "dst": [5, 9_000_000_000]})
    nodes = write(tmp_path / "n.csv", {"id": ["5", "9000000000", "5.0"], "label": [0, 1, 0]})
    with pytest.raises(
        DataError, match=r"n\.csv, line 4, column 'id': 5 is the id of an earlier row, because 3"
    ):
        imported(edges, nodes)
    nodes = write(tmp_path / "n.csv", {"id": ["5", "9000000000", "5.5"], "label": [0, 1, 0]})
    write(tmp_path / "e.csv", {"src": ["9000000000", "5.0"], "dst": ["5.5", "5"]})
    schema = ImportSchema(
        ids="names",
        edges=EdgeTableSchema(files=["e.csv"], source="src", target="dst"),
        vertices=VertexTableSchema(files=["n.csv"], id="id", label=["label"]),
    )
    with pytest.raises(DataError, match=r"'5\.0' is not in the vertex table(.|\n)*Spell these ids as in the"):
        imported(edges, nodes, schema=schema)


def test_integers_of_floats_do_not_depend_on_other_rows(tmp_path: Path) -> None:
    """A batch with a fraction spells 1e15 as a batch without one does."""
    for ending, ids in (("e", [1e15, 3.0, 0.5]), ("f", [1e15, 3.0, 1e15])):
        write(tmp_path / f"{ending}.parquet", {"src": ids, "dst": [*ids[1:], ids[0]]})
    schema = ImportSchema(ids="names", edges=EdgeTableSchema(files=["*"], source="src", target="dst"))
    imported(tmp_path / "e.parquet", tmp_path / "f.parquet", schema=schema)
    assert names_of(tmp_path / "out", "ids.csv") == ["1000000000000000", "3", "0.5"]


def test_integers_of_a_type_are_merged_over_its_relations(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", {"s": ["8000000000", "5.0"], "t": ["1.1", "1.10"]})
    second = write(tmp_path / "b.csv", {"s": ["1.0", "1.1"], "t": ["8000000000.0", "5"]})
    schema = {
        "target_type": "user",
        "types": {"user": {"ids": "names"}, "item": {"ids": "names"}},
        "relations": [
            {"relation": ["user", "buys", "item"], "files": ["a.csv"], "source": "s", "target": "t"},
            {"relation": ["item", "suits", "user"], "files": ["b.csv"], "source": "s", "target": "t"},
        ],
    }
    job = ImportJob([first, second], tmp_path / "out", HeteroImportSchema.model_validate(schema))
    import_hetero_tables(job)
    names = ["user 8000000000", "user 5", "item 1.1", "item 1.10", "item 1.0"]
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert named_edges(open_graph(tmp_path / "out", check=True), names) == sorted(
        [
            ("user 8000000000", "item 1.1"),
            ("user 5", "item 1.10"),
            ("item 1.0", "user 8000000000"),
            ("item 1.1", "user 5"),
        ]
    )


NUMBERINGS = {
    "permutation": lambda order: order,
    "from 1": lambda order: order + 1,
    "gaps": lambda order: 1_000_003 * order + 17,
}


@pytest.mark.parametrize("numbering", NUMBERINGS)
@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("is_large", [False, True])
def test_a_later_column_with_the_ids_of_edges_is_the_id(
    numbering: str, ending: str, is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_large:  # The sample has only the first rows.
        monkeypatch.setattr("hyrt.graph.tables.table_files._BYTES", 200)
        monkeypatch.setattr("hyrt.graph.tables.table_files._ROWS", 8)
    num = 40
    order = np.random.default_rng(3).permutation(num)
    ids = NUMBERINGS[numbering](order)
    ring = np.sort(ids)
    edges = write(tmp_path / f"e.{ending}", {"src": ring.tolist(), "dst": np.roll(ring, -1).tolist()})
    columns = {
        "x": (order / 4).tolist(),
        "paper_nummer": ids.tolist(),
        "count": (2 * order).tolist(),  # Distinct, but not the ids of edges.
        "label": (order % 3).tolist(),
    }
    nodes = write(tmp_path / f"n.{ending}", columns)
    graph, said = imported(edges, nodes)
    assert [line for line in said if "column 'paper_nummer' is read as the id, because it contains" in line]
    # By position in the order of the ids, or in the order of the table if the ids have gaps.
    places = np.argsort(ids) if numbering != "gaps" else np.arange(num)
    assert graph.labels.tolist() == (order % 3)[places].tolist()
    assert graph.features.values.tolist() == [
        [columns["x"][place], columns["count"][place]] for place in places
    ]
    names = names_of(tmp_path / "out", "ids.csv") or list(map(str, range(num)))
    wanted = sorted(zip(map(str, ring.tolist()), map(str, np.roll(ring, -1).tolist()), strict=True))
    assert named_edges(graph, names) == wanted


def test_a_column_called_id_must_contain_the_ids_of_edges(tmp_path: Path) -> None:
    num = 12
    order = [5 * n % num for n in range(num)]
    edges = write(tmp_path / "e.csv", {"src": list(range(num)), "dst": order})
    numbers = {"f": [n / 4 for n in order], "id": [n + 100 for n in range(num)], "paper": order}
    graph, said = imported(edges, write(tmp_path / "n.csv", numbers))
    assert graph.features.values.ravel().tolist() == [n / 4 for n in range(num)]
    assert any("'paper' is read as the id, because it contains all ids of edges" in line for line in said)
    assert any("excluded columns" in line and "'id' (is called like an id)" in line for line in said)
    for rival in (list(range(num))[::-1], [*range(num)]):
        nodes = write(tmp_path / "n.csv", {"id": order, "f": numbers["f"], "rival": rival})
        if rival[0]:
            with pytest.raises(
                DataError, match="columns 'id' and 'rival' all contain the ids of edges: write"
            ):
                imported(edges, nodes)
            draft = draft_schema([edges, nodes], "").schema.vertices
            assert draft is not None
            assert draft.id == "id"
        else:  # Row numbers do not compete with the id.
            graph, said = imported(edges, nodes)
            assert graph.features.values.ravel().tolist() == [n / 4 for n in range(num)]
    edges = write(tmp_path / "e.csv", {"src": ["A1", "A2"], "dst": ["A2", "A1"]})
    names = {"name": ["Berlin", "Paris"], "code": ["A2", "A1"], "f": [0.5, 1.5]}
    graph, said = imported(edges, write(tmp_path / "n.csv", names))
    assert names_of(tmp_path / "out", "ids.csv") == ["A2", "A1"]
    assert any("column 'code' is read as the id, because" in line for line in said)


def test_several_later_columns_with_the_ids_of_edges_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    order = np.random.default_rng(3).permutation(20)
    edges = write(tmp_path / "e.csv", {"src": list(range(20)), "dst": [*range(1, 20), 0]})
    columns = {"x": (order / 4).tolist(), "paper": order.tolist(), "rank": order[::-1].tolist()}
    nodes = write(tmp_path / "n.csv", columns)
    with pytest.raises(DataError, match="the columns 'paper' and 'rank' all contain the ids of edges: name"):
        imported(edges, nodes)
    run_here("data", "import", "--print-schema", "e.csv", "n.csv", cwd=tmp_path)
    assert "all contain the ids of edges" in capsys.readouterr().out
    # The first column is the id if it matches; another one that matches is not a feature.
    nodes = write(tmp_path / "n.csv", {"paper": order.tolist(), "x": columns["x"], "rank": columns["rank"]})
    graph, said = imported(edges, nodes)
    assert graph.features.values.ravel().tolist() == (np.arange(20) / 4).tolist()
    assert [line for line in said if "'rank' (contains" in line]


def test_columns_named_and_numbered_like_ids_are_no_features(tmp_path: Path) -> None:
    num = 20
    edges = write(tmp_path / "e.csv", {"src": list(range(num)), "dst": [*range(1, num), 0]})
    columns = {
        "id": list(range(num)),
        "orcid_id": [7919 * n % 10007 for n in range(1, num + 1)],
        "personNr": [n * n + 5 for n in range(num)],
        "userId": [n * n + 3 for n in range(num)],
        "venue_id": [n % 5 for n in range(num)],
        "paid": [n * n for n in range(num)],
    }
    graph, said = imported(edges, write(tmp_path / "n.csv", columns))
    assert graph.features.values.T.tolist() == [columns["personNr"], columns["venue_id"], columns["paid"]]
    [line] = [line for line in said if "excluded columns" in line]
    for name in ("orcid_id", "userId"):
        assert f"'{name}' (has the name and the distinct integers of an id)" in line


UNIX_TIMES = {
    "seconds": [1_082_040_961 + 977 * (n * n % 31) for n in range(30)],
    "milliseconds": [1_082_040_961_000 + n for n in range(30)],
    "microseconds": [1_082_040_961_000_000 - n // 4 for n in range(30)],
    "seconds, whole days": [1_082_073_600 + 86_400 * (n * n % 7) for n in range(30)],
}


@pytest.mark.parametrize("kind", UNIX_TIMES)
def test_times_since_1970_without_a_header_are_times(kind: str, tmp_path: Path) -> None:
    times = UNIX_TIMES[kind]
    (tmp_path / "e.txt").write_text("".join(f"{n} {n + 1} {time}\n" for n, time in enumerate(times)))
    graph, said = imported(tmp_path / "e.txt")
    assert graph.topology.edge_weights is None
    assert graph.topology.edge_times is not None
    assert graph.topology.edge_times.tolist() == times
    unit = kind.partition(",")[0]
    assert [
        line for line in said if f"column '3' looks like times in {unit} since 1970: if it contains" in line
    ]
    assert [line for line in said if "; times '3'" in line]


@pytest.mark.parametrize(
    "weights",
    [
        [1.5 * n for n in range(1, 31)],
        [10**9 if n % 3 else 2 * 10**9 for n in range(30)],
        [10**9 * n for n in range(1, 31)],
    ],
    ids=["small", "few large ones", "a wide range"],
)
def test_weights_without_a_header_stay_weights(weights: list[float], tmp_path: Path) -> None:
    (tmp_path / "e.txt").write_text("".join(f"{n} {n + 1} {weight}\n" for n, weight in enumerate(weights)))
    graph, _ = imported(tmp_path / "e.txt")
    assert graph.topology.edge_times is None
    assert graph.topology.edge_weights is not None
    assert graph.topology.edge_weights.tolist() == np.float32(weights).tolist()


FLOATS = {"double": 2**53, "float": 2**24, "halffloat": 2**11}


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("ids", ["names", "positions"])
@pytest.mark.parametrize("table", ["edges", "vertices"])
def test_ids_that_floats_have_rounded_are_refused(kind: str, ids: str, table: str, tmp_path: Path) -> None:
    bound = FLOATS[kind]
    numbers = [bound - 1, bound, bound + 2]
    floats = pa.array(np.array(numbers, np.dtype({"halffloat": "f2", "float": "f4"}.get(kind, "f8"))))
    assert str(floats.type) == kind
    is_vertices = table == "vertices"
    edges = write(tmp_path / "e.parquet", {"src": numbers if is_vertices else floats, "dst": numbers})
    nodes = write(tmp_path / "n.parquet", {"id": floats if is_vertices else numbers, "x": [0.5, 1.5, 2.5]})
    schema = ImportSchema(
        ids=ids,
        first_id=0 if ids == "names" else bound - 1,
        edges=EdgeTableSchema(files=["e.parquet"], source="src", target="dst"),
        vertices=VertexTableSchema(files=["n.parquet"], id="id", features=["x"]) if is_vertices else None,
    )
    with pytest.raises(DataError) as told:
        imported(edges, *([nodes] if is_vertices else []), schema=schema)
    lines = [line for line in str(told.value).splitlines() if "is not exact, because" in line]
    name, column = ("n", "id") if is_vertices else ("e", "src")
    assert [line.partition(": ")[0].rpartition("/")[2] for line in lines] == [
        f"{name}.parquet, row {row}, column '{column}'" for row in (2, 3)
    ]
    assert f"because {kind} values round integers above {bound:,}" in lines[0]
    assert "set ids in the schema to names" not in str(told.value)


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.decimal128(20, 0)])
def test_smaller_ids_in_columns_of_floats_are_exact(kind: Any, tmp_path: Path) -> None:
    ids = [3, 2**24 - 1, 7]
    columns = {"src": pa.array(ids, kind), "dst": pa.array([*ids[1:], ids[0]], kind)}
    edges = write(tmp_path / "e.parquet", columns)
    names = list(map(str, ids))
    schema = ImportSchema(ids="names", edges=EdgeTableSchema(files=["*"], source="src", target="dst"))
    graph, _ = imported(edges, schema=schema)
    assert names_of(tmp_path / "out", "ids.csv") == names
    assert named_edges(graph, names) == sorted(zip(names, [*names[1:], names[0]], strict=True))


@pytest.mark.parametrize("rows_at_once", [2, 100])
def test_lists_of_other_lengths_are_named_with_their_rows(
    rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyrt.graph.tables.table_files._ROWS", rows_at_once)
    edges = write(tmp_path / "e.parquet", {"src": [0, 1, 2, 3, 4], "dst": [1, 2, 3, 4, 0]})
    rows: list[Any] = [[1.0, 2.0], None, [3.0], [4.0, 5.0, 6.0], []]
    nodes = write(tmp_path / "n.parquet", {"id": list(range(5)), "x": rows})
    schema = ImportSchema(
        edges=EdgeTableSchema(files=["e.parquet"], source="src", target="dst"),
        vertices=VertexTableSchema(files=["n.parquet"], id="id", features=["x"], fill=0),
    )
    with pytest.raises(DataError) as told:
        imported(edges, nodes, schema=schema)
    for row, value, length in (
        (3, "[3.0]", "1 number"),
        (4, "[4.0, 5.0, 6.0]", "3 numbers"),
        (5, "[]", "0 num"),
    ):
        assert f"n.parquet, row {row}, column 'x': {value} has {length}" in str(told.value)
    assert str(told.value).startswith("3 values or rows are wrong")
    assert "but the first list has 2" in str(told.value)
    assert "Use lists of equal length" in str(told.value)
    write(tmp_path / "n.parquet", {"id": list(range(5)), "x": [*rows[:2], *rows[:2], rows[0]]})
    graph, _ = imported(edges, nodes, schema=schema)
    assert graph.features.values.tolist() == [[1, 2], [0, 0], [1, 2], [0, 0], [1, 2]]
    write(tmp_path / "n.parquet", {"id": list(range(5)), "x": pa.array([None, None, None, None, [1.0]])})
    if rows_at_once == 2:
        with pytest.raises(DataError, match="has no list in the first 2 rows, so their length is unknown"):
            imported(edges, nodes, schema=schema)


def test_numbers_in_one_file_and_lists_in_another_are_refused(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    (tmp_path / "n").mkdir()
    write(tmp_path / "n" / "0.parquet", {"id": [0, 1], "x": [[1.0, 2.0], [3.0, 4.0]]})
    write(tmp_path / "n" / "1.parquet", {"id": [2, 3], "x": [1.0, 2.0]})
    with pytest.raises(
        DataError, match=r"1\.parquet, column 'x' has numbers, unlike earlier files: use either"
    ):
        imported(edges, tmp_path / "n")


def test_an_empty_first_file_of_lists_does_not_fix_their_length(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", {"src": [0, 1], "dst": [1, 0]})
    (tmp_path / "n").mkdir()
    kinds = {"id": pa.int64(), "x": pa.list_(pa.float64())}
    write(tmp_path / "n" / "0.parquet", {name: pa.array([], kind) for name, kind in kinds.items()})
    write(tmp_path / "n" / "1.parquet", {"id": [0, 1], "x": [[1.0, 2.0], [3.0, 4.0]]})
    assert imported(edges, tmp_path / "n")[0].features.values.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("text", "number", "point"),
    [
        ("src;dst;weight\n0;1;1.234,5\n1;2;12,5\n", "1.234,5", ","),
        ("src;dst;weight\n0;1;1.234\n1;2;12,5\n", "1.234", ","),
        ("src;dst;weight\n0;1;12.500\n1;2;1.234.567\n2;0;0,5\n", "12.500", ","),
        ("src;dst;weight;x\n0;1;1,234;0.5\n1;2;1,500;1.5\n", "1,234", "."),
        ("src\tdst\tweight\n0\t1\t1,234\n1\t2\t1,500\n", "1,234", "."),
        ('src,dst,weight\n0,1,"1,234.5"\n1,2,7\n', "1,234.5", "."),
        ('src,dst,weight\n0,1,"1,5"\n1,2,7\n', "1,5", "."),
        ("src,dst,weight\n0,1,1\u202f234\n1,2,7\n", "1\u202f234", "."),
        ("src,dst,weight\n0,1,1'234.5\n1,2,7\n", "1'234.5", "."),
    ],
)
def test_numbers_with_thousands_separators_are_refused(
    text: str, number: str, point: str, tmp_path: Path
) -> None:
    """In weights, labels and features, whether most numbers have separators or a few."""
    (tmp_path / "e.csv").write_text(text)
    says = f"column 'weight': {number!r} is not a number with the decimal point {point!r}: write numbers"
    with pytest.raises(DataError, match=f".*{re.escape(says)}"):
        imported(tmp_path / "e.csv")
    source, target, _, *rest = text.splitlines()[-1].split(text[3])
    few = text + "".join(text[3].join([source, target, "7", *rest]) + "\n" for _ in range(12))
    (tmp_path / "e.csv").write_text(few)
    with pytest.raises(
        DataError, match=rf"line 2, column 'weight': {re.escape(repr(number))} is not a valid"
    ):
        imported(tmp_path / "e.csv")
    with pytest.raises(DataError, match=r"Write numbers without thousands separators, and set text\.decimal"):
        imported(tmp_path / "e.csv")
    write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    for name in ("label", "income"):
        (tmp_path / "n.csv").write_text(text.replace("src", "id").replace("dst", "f").replace("weight", name))
        with pytest.raises(
            DataError, match=rf"n\.csv, column '{name}': {re.escape(repr(number))} is not a num"
        ):
            imported(tmp_path / "e.csv", tmp_path / "n.csv")


def test_numbers_with_decimal_commas_and_points(tmp_path: Path) -> None:
    """A point is read in a file with decimal commas only if it cannot separate thousands."""
    words = [
        "1,234",
        "-0,5",
        "0.5",
        "12.34",
        "1.2345",
        "1234.567",
        "0.123",
        "7",
        "1.234",
        "-12.500",
        "1.234,5",
    ]
    wanted = [1.234, -0.5, 0.5, 12.34, 1.2345, 1234.567, 0.123, 7, np.nan, np.nan, np.nan]
    values, missing, bad = read_real_numbers(pa.array(words), ",")
    assert np.array_equal(values, wanted, equal_nan=True)
    assert (bad.tolist(), missing.any()) == (np.isnan(wanted).tolist(), False)
    (tmp_path / "e.csv").write_text("src;dst;weight\n0;1;1,234\n1;2;1,500\n")
    graph, said = imported(tmp_path / "e.csv")
    assert graph.topology.edge_weights is not None
    assert graph.topology.edge_weights.tolist() == [np.float32(1.234), 1.5]
    assert f"{tmp_path / 'e.csv'}: commas in numbers are decimal points" in said


@pytest.mark.parametrize("word", ["\\N", "#N/A", "<NA>"])
def test_missing_values_of_databases_and_spreadsheets(word: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": ["b", word, "a", "b"], "x": [1, 2, 3, 4]})
    graph, _ = imported(edges, nodes)
    assert names_of(tmp_path / "out", "classes.csv") == ["a", "b"]
    assert graph.labels.tolist() == [1, -1, 0, 1]
    write(tmp_path / "e.csv", {"src": ["ann", word], "dst": ["bob", "ann"]})
    with pytest.raises(DataError, match=rf"line 3, column 'src': {re.escape(repr(word))} counts as missing"):
        imported(edges)


@pytest.mark.parametrize(("labels", "sign"), [("a?bb", "?"), (".bab", "."), ("+-+-", None), ("abab", None)])
def test_a_class_without_letters_is_told(labels: str, sign: str | None, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    _, said = imported(edges, write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": list(labels)}))
    found = [line for line in said if "neither letters nor digits" in line]
    assert [line.startswith(f"class {sign!r} has neither") for line in found] == [True] * (sign is not None)


@pytest.mark.parametrize(
    ("yes", "no"), [("t", "f"), ("TRUE", "FALSE"), ("y", "n"), ("Yes", "No"), ("1", "0")]
)
def test_masks_in_the_words_of_other_programs(yes: str, no: str, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    masks = {"train": [yes, no, no, yes], "val": [no, yes, no, no], "test": [no, no, yes, no]}
    nodes = write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": [0, 1, 0, 1], **masks})
    graph, _ = imported(edges, nodes)
    found = [graph.split(part) for part in ("train", "val", "test")]
    assert [part.tolist() for part in found] == [[0, 3], [1], [2]]
    write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": [0, 1, 0, 1], "train": masks["train"]})
    with pytest.raises(DataError, match="this table has only 'train': add the missing columns"):
        imported(edges, nodes)


@pytest.mark.parametrize(
    ("columns", "pair"),
    [
        ({"src": [0, 1], "SRC": [7, 8], "dst": [1, 0]}, "'src' and 'SRC'"),
        ({"src": [0, 1], "dst": [1, 0], "Weight": [5, 6], "weight": [7, 8]}, "'Weight' and 'weight'"),
        ({"src": [0, 1], "dst": [1, 0], "u": [5, 6], "U": [7, 8]}, None),
    ],
)
def test_columns_whose_names_differ_in_capitals(
    columns: dict[str, list[Any]], pair: str | None, tmp_path: Path
) -> None:
    """They are refused only if the import would choose one of them."""
    edges = write(tmp_path / "e.csv", columns)
    if pair is None:
        assert imported(edges)[0].num_edges == 2
        return
    with pytest.raises(DataError, match=f"the column names {pair} differ only in capitals or punctuation"):
        imported(edges)


@pytest.mark.parametrize(
    ("column", "value", "form"),
    [
        ("weight", "$10", "numbers"),
        ("date", "01/02/2024", "numbers, or dates such as 2024-05-31"),
        ("Datum", "03.04.2024", "numbers, or dates such as 2024-05-31"),
    ],
)
def test_weights_and_times_that_are_not_read_are_told(
    column: str, value: str, form: str, tmp_path: Path
) -> None:
    _, said = imported(write(tmp_path / "e.csv", {"src": [0, 1], "dst": [1, 0], column: [value, value]}))
    line = f"column {column!r} is not read, because its values (such as {value!r}) are not {form}"
    assert [each for each in said if each.endswith(line)]


@pytest.mark.parametrize(
    ("kinds", "undirected"), [(["Undirected"] * 3, True), (["Directed"] * 3, False), (["directed"] * 2, None)]
)
def test_directions_of_gephi_are_no_types(kinds: list[str], undirected: bool | None, tmp_path: Path) -> None:
    kinds = kinds + ["Undirected"] * (undirected is None)
    edges = write(tmp_path / "e.csv", {"Source": [0, 1, 2], "Target": [1, 2, 0], "Type": kinds})
    graph, said = imported(edges)
    found = named_edges(graph, ["0", "1", "2"])
    pairs = [("0", "1"), ("1", "2"), ("2", "0")]
    assert found == sorted([*pairs, *((v, u) for u, v in pairs if undirected)])
    if undirected is None:
        assert [
            line for line in said if "column 'Type' has directed and undirected edges, but all are" in line
        ]
        return
    assert graph.topology.edge_types is None
    where = "in both directions, as column 'Type' says" if undirected else "in this direction only"
    assert [line for line in said if where in line]


@pytest.mark.parametrize("last", ["Directed", ""])
def test_a_late_direction_of_gephi_is_refused_with_its_line(last: str, tmp_path: Path) -> None:
    num = 30_000  # More than the sample.
    columns: dict[str, list[Any]] = {"Source": [0] * num, "Target": [1] * num}
    columns["Type"] = [*["Undirected"] * (num - 1), last]
    with pytest.raises(DataError, match=r"line 30001, column 'Type': .*(is not undirected|is missing)"):
        infer_schema([write(tmp_path / "e.csv", columns)])
    columns["Type"] = [*["Directed"] * (num - 1), last]
    assert not infer_schema([write(tmp_path / "e.csv", columns)]).schema.edges.undirected
    columns["Type"][-2] = "undirected"
    with pytest.raises(DataError, match=r"line 30000, column 'Type': 'undirected' is not directed, as the"):
        infer_schema([write(tmp_path / "e.csv", columns)])


@pytest.mark.parametrize(("ids", "first"), [((1, 6), 1), ((1, 5), 0), ((0, 5), 0), ((2, 5), 0)])
def test_edges_from_1_with_a_table_without_ids_are_told(
    ids: tuple[int, int], first: int, tmp_path: Path
) -> None:
    low, high = ids
    sources = [high - 1] * 100_000 + [*range(high - 1, low - 1, -1)]  # The smallest id is beyond the sample.
    edges = write(tmp_path / "e.csv", {"src": sources, "dst": [id + 1 for id in sources]})
    graph, said = imported(edges, write(tmp_path / "n.csv", {"f": [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]}))
    pairs = {(id - first, id + 1 - first) for id in sources}
    targets = np.repeat(np.arange(6), np.diff(graph.topology.indptr)).tolist()
    assert set(zip(graph.topology.indices.tolist(), targets, strict=True)) == pairs
    lines = [line for line in said if "ids of edges range from 1 to 5, so row 1 of" in line]
    assert len(lines) == (ids == (1, 5))


def test_triples_without_a_header_have_their_type_in_the_middle(tmp_path: Path) -> None:
    rows = [("ann", "likes", "bob"), ("bob", "knows", "cid"), ("cid", "likes", "ann")]
    (tmp_path / "e.txt").write_text("".join("\t".join(row) + "\n" for row in rows))
    graph, said = imported(tmp_path / "e.txt")
    assert names_of(tmp_path / "out", "ids.csv") == ["ann", "bob", "cid"]
    assert named_edges(graph, ["ann", "bob", "cid"]) == [("ann", "bob"), ("bob", "cid"), ("cid", "ann")]
    assert [line for line in said if "edges from '1' to '3', in this direction only; types '2'" in line]
    assert names_of(tmp_path / "out", "edge_types.csv") == ["knows", "likes"]
    assert graph.topology.edge_types is not None
    assert graph.topology.edge_types.tolist() == [1, 1, 0]  # Into ann, bob and cid.
    (tmp_path / "e.txt").write_text("ann\tbob\told\nbob\tcid\told\n")
    _, said = imported(tmp_path / "e.txt")
    assert [line for line in said if "edges from '1' to '2'" in line]


@pytest.mark.parametrize(
    ("rows", "weights", "same"),
    [
        (["101 1 102", "102 2 103", "103 1 101"], True, False),  # Triples, or items with ratings.
        (["1 2 5 881250949", "2 1 3 881250950"], False, True),
        (["1 2 0.5", "2 3 0.25"], False, True),
        (["1 2", "2 3"], False, False),
    ],
)
def test_guesses_without_column_names_are_said(
    rows: list[str], weights: bool, same: bool, tmp_path: Path
) -> None:
    (tmp_path / "e.txt").write_text("\n".join([*rows, ""]))
    said = infer_schema([tmp_path / "e.txt"]).lines
    remedy = "if the columns are head, relation and tail of triples, set edges.target to '3' and edges.type"
    assert any("column '3' is read as weights" in line and remedy in line for line in said) == weights
    assert (
        any("equal ids in '1' and '2' are the same vertex: if they belong" in line for line in said) == same
    )


@pytest.mark.parametrize("words", [("True", "False"), ("TRUE", "FALSE"), ("true", "false")])
def test_flags_of_pandas_are_features_of_1_and_0(words: tuple[str, str], tmp_path: Path) -> None:
    num = 80
    flags = [bool(n * n % 3) for n in range(num)]
    edges = write(tmp_path / "e.csv", {"src": [*range(num)], "dst": [0] * num})
    nodes: dict[str, list[Any]] = {"id": [*range(num)], "label": [n % 2 for n in range(num)]}
    nodes["city"] = [["x", "True"][n % 2] for n in range(num)]
    found = []
    for name, column in (("n.parquet", flags), ("n.csv", [words[not flag] for flag in flags])):
        graph, _ = imported(edges, write(tmp_path / name, nodes | {"cat_a": column}))
        found.append(graph.features.values.tolist())
    assert found == [[[float(flag)] for flag in flags]] * 2
    nodes["cat_a"] = [words[label] for label in nodes["label"]]
    schema = infer_schema([edges, write(tmp_path / "n.csv", nodes)]).schema
    assert schema.vertices is not None
    assert not schema.vertices.features  # It is a copy of the label.
    nodes["cat_a"][-1] = "0.5"
    vertices = schema.vertices.model_copy(update={"features": ["cat_a"]})
    nodes_file = write(tmp_path / "n.csv", nodes)
    with pytest.raises(DataError, match=r"line 2, column 'cat_a': '[tT].*' is not a valid float32 number"):
        imported(edges, nodes_file, schema=schema.model_copy(update={"vertices": vertices}))


@pytest.mark.parametrize(
    ("labels", "missing"),
    [([1, 2, -1, 3], 0), ([0, 1, 3, 0], 2), ([0, 1, 2, -1], None), (list("acca"), None)],
)
def test_a_class_without_vertices_is_said(labels: list[Any], missing: int | None, tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0]})
    _, said = imported(edges, write(tmp_path / "n.csv", {"id": [0, 1, 2, 3], "label": labels}))
    lines = [
        line for line in said if "so training refuses these labels: number the classes from 0 to 2" in line
    ]
    assert len(lines) == (missing is not None)
    assert all(f"no vertex has class {missing}," in line for line in lines)


def test_lines_that_are_skipped_as_comments_are_counted(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("#a,#b\n\n#b,#c\nd,#a\n#c,d\n")
    (tmp_path / "n.csv").write_text("id\nd\n#a\n#c\n")
    graph, said = imported(tmp_path / "e.csv", tmp_path / "n.csv")
    assert graph.topology.num_edges == 2
    [line] = [line for line in said if "comments" in line]
    assert "e.csv: 2 lines above the rows skipped as comments, because they begin with # or %" in line
    (tmp_path / "e.csv").write_text('"#a",#b\n#b,#c\n')
    _, said = imported(tmp_path / "e.csv")
    assert not [line for line in said if "comments" in line]


def test_ids_of_two_columns_with_unknown_names_are_said_to_be_the_same(tmp_path: Path) -> None:
    line = "equal ids in 'user_id' and 'item_id' are the same vertex: if they belong to different types"
    for items, says in (([1, 2, 3], True), ([11, 12, 13], False)):
        _, said = imported(write(tmp_path / "e.csv", {"user_id": [1, 2, 3], "item_id": items}))
        assert any(line in each for each in said) == says


@pytest.mark.parametrize(
    "values", [["05/31/2024", "06/01/2024"], ["2024-05-31", ""]], ids=["form", "missing"]
)
def test_a_column_named_time_that_is_not_read_is_explained(values: list[str], tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1], "dst": [1, 0], "date": values})
    graph, said = imported(edges)
    assert graph.topology.edge_times is None
    reason = (
        "its values (such as '05/31/2024') are not" if "/" in values[0] else "some of its values are missing"
    )
    assert [line for line in said if f"column 'date' is not read, because {reason}" in line]
    schema = ImportSchema(edges=EdgeTableSchema(files=["*"], source="src", target="dst", time="date"))
    problem = "'05/31/2024' is not a time$" if "/" in values[0] else "the value is missing"
    with pytest.raises(DataError, match=f"(?m){problem}"):
        imported(edges, schema=schema)


def test_flags_named_like_times_are_not_times(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.parquet", {"src": [0, 1], "dst": [1, 0], "t": [True, False]})
    assert imported(edges)[0].topology.edge_times is None


def test_integers_that_features_round_are_counted(tmp_path: Path) -> None:
    edges = write(tmp_path / "e.csv", {"src": [0, 1, 2], "dst": [1, 2, 0]})
    columns = {"id": [0, 1, 2], "x": [1_600_000_001, 1_600_000_002, 2**30], "z": [2**24, 2.5, 1e30]}
    _, said = imported(edges, write(tmp_path / "n.csv", columns))
    assert [line for line in said if "n.csv, column 'x': 2 integers rounded, because features are" in line]
    assert not [line for line in said if "column 'z'" in line and "rounded" in line]
