"""Tables with the ids of the dataset: pairs of vertices to score, and vertices of several types."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
from in_process import refused, run_here

import hyrt
from hyrt.config import build_config
from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.inference import output_links, output_rows
from hyrt.inference.output_links import read_named_pairs
from hyrt.training.open_graph import link_graph

SCHEMA = """
target_type: item
types:
  customer: {ids: names}
  item: {ids: names, table: {files: i.csv, id: id, label: y, features: [x]}}
relations:
- {relation: [customer, buys, item], files: e.csv, source: who, target: what}
"""
CUSTOMERS, ITEMS = 12, 9


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Customers and items share some ids; only items have labels."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(1)
    edges = {(int(c), int(i)) for c, i in rng.integers(0, (CUSTOMERS, ITEMS), (60, 2))}
    (folder / "e.csv").write_text("who,what\n" + "".join(f"C-{c},C-{i}\n" for c, i in sorted(edges)))
    (folder / "i.csv").write_text("id,y,x\n" + "".join(f"C-{i},{i % 2},{i / 7}\n" for i in range(ITEMS)))
    (folder / "s.yaml").write_text(SCHEMA)
    run_here("data", "import", "e.csv", "i.csv", "-o", "d", "--schema", "s.yaml", cwd=folder)
    return folder


def split_graph(folder: Path) -> Graph:
    settings = {"train": {"objective": "links"}, "model": {"kind": "rsage"}, "links": {"candidates": 3}}
    return link_graph(build_config(settings), hyrt.load(folder / "d"))


def names_of(folder: Path) -> list[list[str]]:
    return list(csv.reader((folder / "d" / "ids.csv").read_text().splitlines()))[1:]


@pytest.mark.parametrize("header", ["", "from,to\n"])
def test_pairs_are_found_by_the_ids_of_their_types(shop: Path, tmp_path: Path, header: str) -> None:
    rows = [("C-11", "C-0"), ("C-3", "C-8"), ("C-3", "C-3")]
    (tmp_path / "p.csv").write_text(header + "".join(f"{u},{v},more\n" for u, v in rows))
    pairs, names = read_named_pairs(tmp_path / "p.csv", split_graph(shop))
    known = names_of(shop)
    found = [(known[u], known[v]) for u, v in pairs.tolist()]
    assert found == [(["customer", u], ["item", v]) for u, v in rows]
    assert names == [list(row) for row in rows]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "C-1,C-2\nC-1,C-10\n",
            r"'C-10' in line 2 \(target column\) is not a vertex id of type 'item'",
        ),
        (
            "from,to\nC-1,C-2\nX,C-1\n",
            r"'X' in line 3 \(source column\) is not a vertex id of type 'customer'",
        ),
        ("C-1\n", "line 1 has one column"),
        ('"sep=,"\nfrom,to\nC-1,C-2\nX,C-1\n', r"'X' in line 4 \(source column\) is not a vertex id"),
        # A first line with an id, even one of the other end, or a number is no header.
        ("C-10,X\nC-1,C-2\n", r"'X' in line 1 \(target column\) is not a vertex id of type 'item'"),
        ("X,C-11\nC-1,C-2\n", r"'X' in line 1 \(source column\) is not a vertex id of type 'customer'"),
        ("17,18\nC-1,C-2\n", r"'17' in line 1 \(source column\) is not a vertex id of type 'customer'"),
        ("day,source,target\n1,C-1,C-2\n2,C-1\n", "line 3 has 2 columns, expected 3 as in the first line"),
    ],
)
def test_an_unknown_id_is_named_with_its_line(shop: Path, tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        read_named_pairs(tmp_path / "p.csv", split_graph(shop))


@pytest.mark.parametrize(
    "text",
    [
        "what,target,day,Source\nx,C-0,1,C-11\ny,C-8,2,C-3\n",
        "dst;src\nC-0;C-11\n C-8; C-3\n",
        "sep=;\nsrc;dst\nC-11;C-0\nC-3;C-8\n",
        "TO\tFROM\nC-0\tC-11\nC-8\tC-3\n",
        "source_id,target_id\nC-11 ,C-0\nC-3,C-8\n",
        "customer,item\nC-11, C-0\nC-3,C-8\n",
        "Items,day,Customer ID\nC-0,1,C-11\nC-8,2,C-3\n",
        "# of today,\n% 1\n\ncustomer|what\nC-11|C-0\nC-3|C-8\n",
        "'C-11' 'C-0'\n'C-3' 'C-8'\n",
    ],
)
def test_columns_are_found_by_their_names(shop: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    said: list[str] = []
    pairs, names = read_named_pairs(tmp_path / "p.csv", split_graph(shop), said.append)
    assert names == [["C-11", "C-0"], ["C-3", "C-8"]]
    known = names_of(shop)
    assert [(known[u], known[v]) for u, v in pairs.tolist()] == [
        (["customer", u], ["item", v]) for u, v in names
    ]
    if text.startswith("#"):
        lines = (
            "the lines before line 4 are skipped as comments",
            "line 4 is read as column names ('customer'",
        )
        assert [line in text for line, text in zip(lines, said, strict=True)] == [True, True]
    else:
        assert not said


def test_names_in_the_other_order_are_refused(shop: Path, tmp_path: Path) -> None:
    """Customers and items share ids, so that the wrong pairs would have scores."""
    for header, told in (
        ("item,who", r"column 'item' would be read as the source, which is of type 'customer': name the two"),
        ("who,customer_id", "column 'customer_id' would be read as the target, which is of type 'item'"),
        ("items,item", "column 'items' would be read as the source"),
    ):
        (tmp_path / "p.csv").write_text(f"{header}\nC-1,C-2\n")
        with pytest.raises(DataError, match=told):
            read_named_pairs(tmp_path / "p.csv", split_graph(shop))


def test_tables_of_infer(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs by name and by number have the same scores; tables of vertices are of the labelled type."""
    monkeypatch.setattr(output_links, "_PAIRS_PER_WRITE", 1)
    monkeypatch.setattr(output_rows, "_ROWS_PER_WRITE", 3)
    given = ("--data", "d", "--model", "rsage", "model.hidden=4", "train.epochs=1", "--quiet")
    run_here("run", *given, "train.objective=links", "links.test=0.2", "--name", "links", cwd=shop)
    (shop / "p.csv").write_text("C-11,C-0\nC-3,C-8\n")
    known = names_of(shop)
    numbers = [
        [known.index(["customer", u]), known.index(["item", v])] for u, v in (("C-11", "C-0"), ("C-3", "C-8"))
    ]
    np.save(shop / "p.npy", np.array(numbers))
    run_here("infer", "runs/links", "--links", "p.csv", "-o", "s.csv", cwd=shop)
    run_here("infer", "runs/links", "--links", "p.npy", "-o", "s.npy", cwd=shop)
    (shop / "p.tsv").write_text("# by hand\nitem\tcustomer\nC-0\tC-11\nC-8\tC-3\n")
    run_here("infer", "runs/links", "--links", "p.tsv", "-o", "t.npy", cwd=shop)
    assert (np.load(shop / "t.npy") == np.load(shop / "s.npy")).all()
    rows = list(csv.reader((shop / "s.csv").read_text().splitlines()))
    assert [row[:2] for row in rows] == [["source", "target"], ["C-11", "C-0"], ["C-3", "C-8"]]
    assert [float(row[2]) for row in rows[1:]] == pytest.approx(np.load(shop / "s.npy").tolist())
    assert "q.csv does not exist" in refused(
        "infer", "runs/links", "--links", "q.csv", "-o", "t.csv", cwd=shop
    )
    run_here("run", *given, "--name", "items", cwd=shop)
    run_here("infer", "runs/items", "-o", "classes.csv", "--output-kind", "classes", cwd=shop)
    rows = list(csv.reader((shop / "classes.csv").read_text().splitlines()))
    shutil.copytree(shop / "d", shop / "unsplit")
    np.save(shop / "unsplit" / "val_mask.npy", np.zeros(CUSTOMERS + ITEMS, np.bool_))
    (shop / "unsplit" / "meta.json").unlink()
    words = ("infer", "runs/items", "--data", "unsplit", "--vertices")
    assert "--vertices val selects nothing, because unsplit has no such vertices: use" in refused(
        *words, "val", "-o", "t.csv", cwd=shop
    )
    run_here(*words, "test", "-o", "t.csv", cwd=shop)
    assert rows[0] == ["type", "id", "class"]
    assert [row[:2] for row in rows[1:]] == [["item", f"C-{i}"] for i in range(ITEMS)]


@pytest.mark.parametrize(
    ("ids", "known", "unknown"),
    [
        # Integers, as names and as the numbers of the vertices: 3.0 is 3, but 007 is not 7.
        (["9000000000", "7", "3"], ["9000000000.0", "7", "3.00"], ["007", "3.5", "1e1"]),
        (["0", "1", "2"], ["0.0", "1", "2"], ["01", "1.5", "3", "-1", "\uff11"]),
        # Versions: 1.0 is not 1.
        (["1", "1.1", "1.10"], ["1", "1.1", "1.10"], ["1.0", "01.1"]),
    ],
)
def test_numbers_of_pairs_are_read_as_an_import_reads_them(
    ids: list[str], known: list[str], unknown: list[str], tmp_path: Path
) -> None:
    edges = zip(ids, [*ids[1:], ids[0]], strict=True)
    (tmp_path / "e.csv").write_text("src,dst\n" + "".join(f"{u},{v}\n" for u, v in edges))
    kind = "positions" if ids[0] == "0" else "names"
    schema = f"ids: {kind}\nedges: {{files: e.csv, source: src, target: dst}}\n"
    (tmp_path / "s.yaml").write_text(schema)
    run_here("data", "import", "e.csv", "-o", "d", "--schema", "s.yaml", cwd=tmp_path)
    settings = {"train": {"objective": "links"}, "links": {"candidates": 1, "val": 0.3, "test": 0.3}}
    graph = link_graph(build_config(settings), hyrt.load(tmp_path / "d"))
    file = tmp_path / "p.csv"
    file.write_text("src,dst\n" + "".join(f"{name},{ids[0]}\n" for name in known))
    pairs, names = read_named_pairs(file, graph)
    assert pairs.tolist() == [[0, 0], [1, 0], [2, 0]]
    assert [name for name, _ in names] == known
    for name in unknown:
        file.write_text(f"src,dst\n{name},{ids[0]}\n")
        with pytest.raises(DataError, match=r"in line 2 \(source column\) is not a vertex id"):
            read_named_pairs(file, graph)


@pytest.mark.parametrize("rows", ["5,1,2\n6,2,3\n", "1 2 1\n2 3 0\n"])
def test_three_columns_of_integers_need_a_header(tmp_path: Path, rows: str) -> None:
    settings = {"train": {"objective": "links"}, "links": {"candidates": 3}}
    graph = link_graph(build_config(settings), hyrt.load("synthetic:tiny"))
    file = tmp_path / "p.csv"
    file.write_text(rows)
    with pytest.raises(DataError, match=r"three columns of integers without a header.*: add a header with"):
        read_named_pairs(file, graph)
    separator = "," if "," in rows else " "
    file.write_text(separator.join(["number", "source", "target"]) + "\n" + rows)
    expected = [[int(word) for word in row.replace(",", " ").split()[1:]] for row in rows.splitlines()]
    assert read_named_pairs(file, graph)[0].tolist() == expected
    file.write_text(rows.replace("\n", ".5\n"))
    assert len(read_named_pairs(file, graph)[0]) == 2
