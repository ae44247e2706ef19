"""Work on datasets is cut into pieces of millions of rows or edges: small pieces give the same bytes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from in_process import run_here

import hyrt.graph

PIECES: dict[str, dict[str, int]] = {
    "check": {"CHUNK": 7},
    "csr": {"RANGE_ENTRIES": 60, "_RANGE": 50},
    "formats.npy": {"_LARGE_BYTES": 100},
    "formats.dataset_files": {"_READ_BYTES": 256},
    "formats.reorder": {"RANGE_ENTRIES": 30, "ENTRIES": 50, "_WITH_VALUES": 50, "_ROWS": 3},
    "graph": {"_PIECE": 5},
    "hetero.check_types": {"_ROWS": 3},
    "hetero.csr": {"_MIN_ROWS": 2, "_GRAIN": 5, "ENTRIES": 50, "_ROWS": 3},
    "hetero.dataset": {"_PIECE": 40, "BUILD_ENTRIES": 60},
    "info": {"_EDGES": 30},
    "links.edges": {"_EDGES_AT_ONCE": 30},
    "links.link_split": {"_PIECE": 5},
    "normalize": {"_ROWS": 5},
    "partition.metis_parts": {"_PIECE": 50, "_RANGE": 50},
    "partition.metis_process": {"_PIECE": 50},
    "partition.partitioned_rows": {"ENTRIES": 40},
    "partition.refine": {"_TRIAL": 20},
    "quantized.features": {"CHUNK": 7},
    "quantized.rows": {"_GRAIN": 3},
    "row_source": {"_GRAIN": 3},
    "synthetic.planted_partition": {"_PIECE_EDGES": 90, "_PIECE_VALUES": 50},
    "tables.edge_list": {"RANGE_BYTES": 64, "_READ_EDGES": 2, "_GATHERED": 3},
    "tables.csv_batches": {"BLOCK_BYTES": 40},
    "tables.table_files": {"_ROWS": 4, "_CELLS": 9},
    "tables.vertex_ids": {"_MIN_NAMES": 2, "_NAMES_AT_ONCE": 4},
    "quantized.dataset": {"_CHECKED_ROWS": 3},
    "topology": {"_MIN_COLUMNS": 5, "_ROWS_AT_ONCE": 5, "_BLOCKS_AT_ONCE": 1},
}
"""Constants that cut work into pieces, by module, and small values for them."""
ELSEWHERE = {
    "formats.npy": {"CHUNK_BYTES"},
    "formats.ogb_dataset": {"_PIECE"},
    "formats.ogb_files": {"_LINES"},
    "partition.write_parts": {"_OPEN_FILES"},
}
"""Constants that `test_formats`, `test_ogb_layout` and `test_partition` make small."""
NO_PIECES = {
    "check": {"MAX_CLASSES", "MAX_EDGE_TYPES"},
    "formats.npy": {"_MAX_HEADER"},
    "formats.dataset_files": {"_MAX_EXPANSION"},
    "formats.dgl": {"_PAGE"},
    "formats.ogb_files": {"MAX_EDGES_IN_MEMORY"},
    "formats.schema": {"LARGE_BYTES"},
    "labels": {"_MAX_CLASSES"},
    "partition.manifest": {"MAX_PARTS"},
    "partition.metis_parts": {"_WEIGHT"},
    "partition.refine": {"_MAX_EDGES", "_SMALL", "_WORTH_EDGES"},
    "source": {"_MAX_LABELLED", "_MAX_VALUES"},
    "synthetic.planted_partition": {"_SAMPLED_EDGES"},
    "tables.import_tables": {"LARGE_INPUT"},
    "tables.infer_schema": {"_DAY"},
    "tables.read_vertices": {"MAX_CLASSES"},
    "tables.csv_batches": {"MAX_RECORD_BYTES"},
    "tables.table_files": {"_BYTES", "_MAX_FOLDERS", "_START"},
    "tables.vertex_ids": {"_MAX_ODD"},
}
"""Large numbers that bound what is allowed or looked at, mark a format, or estimate."""
LARGE = 500


def large_constants() -> dict[str, set[str]]:
    """The constants, and the defaults of arguments, of each module that are whole numbers from `LARGE` on."""
    root = Path(hyrt.graph.__file__).parent
    found: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        numbers = [
            (node.targets[0].id, node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                defaults = (*node.args.defaults, *node.args.kw_defaults)
                numbers += [(f"{node.name}(...)", each) for each in defaults if each is not None]
        for name, expression in numbers:
            try:
                value = eval(compile(ast.Expression(expression), module, "eval"), {})
            except Exception:  # What needs other names is no number.
                continue
            if type(value) is int and LARGE <= value < 1 << 40:
                found.setdefault(module, set()).add(name)
    return found


def test_all_constants_that_cut_work_are_known() -> None:
    found = large_constants()
    known = {module: set(names) for module, names in PIECES.items()}
    for more in (ELSEWHERE, NO_PIECES):
        for module, names in more.items():
            assert not known.get(module, set()) & names, module
            known[module] = known.get(module, set()) | names
    assert {
        module: names - known.get(module, set())
        for module, names in found.items()
        if names - known.get(module, set())
    } == {}
    for module, names in known.items():
        for name in names:
            assert hasattr(import_module(f"hyrt.graph.{module}"), name), f"{module}.{name}"


@contextmanager
def small_pieces() -> Iterator[None]:
    with ExitStack() as patches:
        for module, values in PIECES.items():
            for name, value in values.items():
                patches.enter_context(mock.patch(f"hyrt.graph.{module}.{name}", value))
        yield


def tables(folder: Path) -> None:
    """Edges and vertices with all that an import reads."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 30, (70, 2)).tolist()
    lines = [f"n{u}, n{v},{1 + i / 8},{'abc'[i % 3]},{i},{-i}" for i, (u, v) in enumerate(ends)]
    (folder / "e.csv").write_text("src,dst,weight,type,f0,f1\n" + "\n".join(lines) + "\n")
    rows = [f"n{v};{'xyz'[v % 3]};{v / 7};{v * v}" for v in rng.permutation(30)]
    # Names that look like others are noted: a space in quotes belongs to the name.
    rows += ['"n5 ";x;1;1', "7;x;1;1", "7.0;x;1;1"]
    (folder / "n.csv").write_text("id;label;f0;f1\n" + "\n".join(rows) + "\n")
    schema = "ids: names\nedges: {files: e.csv, source: src, target: dst, %s}\n"
    read = "{files: n.csv, id: id, label: label, label_kind: names, features: 'f*', text: {delimiter: ';'}}"
    vertices = f"vertices: {read}\n"
    (folder / "weights.yaml").write_text(schema % "weight: weight, undirected: true" + vertices)
    (folder / "values.yaml").write_text(schema % "type: type, features: 'f*', duplicates: first" + vertices)
    (folder / "numbers.csv").write_text("src,dst\n" + "".join(f"{5 + 3 * u},{5 + 3 * v}\n" for u, v in ends))
    (folder / "typed.yaml").write_text(
        "target_type: v\n"
        f"types: {{v: {{ids: names, table: {read}}}, w: {{ids: names}}}}\n"
        "relations:\n"
        "  - {relation: [v, to, w], files: e.csv, source: src, target: dst, weight: weight}\n"
        "reverse: true\n"
    )


COMMANDS = [
    "data import e.csv n.csv --schema weights.yaml -o weights",
    "data import e.csv n.csv --schema values.yaml -o values",
    "data import e.csv n.csv --schema typed.yaml -o typed",
    "data import numbers.csv -o numbers",
    "data generate community,vertices=200,edges=1500,features=5 planted",
    "data generate typed,vertices=200,edges=1500,features=5 planted_types",
    "data convert planted packed.npz --sort --unique --normalize standard",
    "data convert packed.npz narrow --feature-dtype int8",
    "data convert packed.npz columns --feature-dtype int8-columns --rounding stochastic",
    "data convert weights ordered --order degree",
    "data convert values moved --order degree",
    "data convert planted_types turned --order degree --normalize standard",
    "data convert planted_types both --reverse",
    "data convert planted halved --feature-dtype float16 --normalize row",
    "partition --data planted --parts 3 --method random -o random",
    "partition --data planted --parts 3 --method volume -o volume",
    "partition --data weights --parts 2 -o metis",
    "data info planted --check",
    "data info planted_types --check",
]


def made(folder: Path) -> dict[str, bytes]:
    """The contents of all that the commands write, but for records of times and of sizes of pieces."""
    folder.mkdir()
    tables(folder)
    for command in COMMANDS:
        run_here(*command.split(), cwd=folder)
    files = [path for path in sorted(folder.rglob("*")) if path.suffix in (".npy", ".npz", ".csv")]
    return {str(path.relative_to(folder)): content(path) for path in files}


def content(path: Path) -> bytes:
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            values = {key: arrays[key] for key in sorted(arrays) if key != "meta.json"}
        return b"".join(
            key.encode() + (value if isinstance(value, bytes) else value.tobytes())
            for key, value in values.items()
        )
    return path.read_bytes()


@pytest.mark.limit(400)
def test_small_pieces_give_the_same_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = made(tmp_path / "whole")
    printed = capsys.readouterr().out
    with small_pieces():
        pieces = made(tmp_path / "pieces")
    assert pieces.keys() == whole.keys()
    assert [name for name in whole if pieces[name] != whole[name]] == []
    # Bounds on memory depend on pieces, and what is said of the scale of features on the first of them.
    differ = re.compile("memory:|order: at most|features .*not scaled")
    both = (printed, capsys.readouterr().out)
    lines = [[line for line in text.splitlines() if not differ.match(line)] for text in both]
    assert lines[0] == lines[1]
