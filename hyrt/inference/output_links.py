"""Scores of vertex pairs: pairs from .npy files or text tables with vertex ids, and files of their scores."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.npy import header_bytes
from hyrt.graph.graph import Graph
from hyrt.graph.links.build_split import check_pairs
from hyrt.graph.metadata import ENDPOINT_COLUMN_NAMES, normalize_name
from hyrt.graph.tables.csv_batches import TextBlock, TextFile
from hyrt.graph.tables.schema import CsvDialect, read_first_lines
from hyrt.inference.infer import infer_layerwise
from hyrt.inference.output_rows import NotFiniteRows
from hyrt.nn.model import GNN
from hyrt.objective.link_prediction import Score, score_pairs
from hyrt.runtime.files import atomic_file
from hyrt.runtime.workers import Workers

_PAIRS_PER_WRITE = 1 << 12
_ENDS = ("source", "target")
_SAMPLE_BYTES = 1 << 18
_INTEGER = re.compile(r"(0|-?[1-9][0-9]*)([.,]0*)?")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d*)?")


def read_named_pairs(
    path: Path, graph: Graph, say: Callable[[str], None] = lambda line: None
) -> tuple[NDArray[Any], list[list[str]]]:
    """Read a text table with source and target ids; the header is optional.

    Delimiter, quotes, encoding and comments before the first row are inferred as in a dataset import. If the
    first line has two column names that dataset imports know, such as `source` and `target`, or the names of
    two vertex types that the run links, the ids are in these columns. Otherwise, they are in the first two
    columns, and a first line without ids is a header, which is reported through `say`. Three columns of
    integers without a header are refused.

    Returns [n, 2] vertices, and [n] pairs of ids as written in the file. Raises DataError with the line
    number if an id is unknown, or if a column is named after the vertex type at the other end.
    """
    assert graph.links is not None, "only runs that predict links score pairs"
    if not path.exists():
        raise DataError(f"--links {path} does not exist: specify a table or a .npy file")
    lines = _read_rows(path, say)
    ends = graph.links.ends
    types = ends.names or (None, None)
    named_columns = _columns_by_name(lines[0][1], types) if lines else None
    columns = named_columns or (0, 1)
    for number, row in lines:
        if len(row) < 2:
            raise DataError(f"--links {path}: line {number} has one column, expected a source and a target")
        if len(row) <= max(columns):
            raise DataError(
                f"--links {path}: line {number} has {len(row)} columns, expected {len(lines[0][1])} "
                "as in the first line"
            )
    rows = [(number, [row[column] for column in columns]) for number, row in lines]
    numbers = [_numbers_of_names({row[end] for _, row in rows}, types[end], graph) for end in (0, 1)]
    if named_columns is not None and any(rows[0][1][end] not in numbers[end] for end in (0, 1)):
        rows = rows[1:]
    elif rows and _is_header(rows[0][1], types, graph):
        _check_header(path, rows[0][1], types)
        say(f"{path}: line {rows[0][0]} is read as column names ({', '.join(map(repr, rows[0][1]))})")
        rows = rows[1:]
    elif rows and named_columns is None and all(_are_three_integers(row) for _, row in lines):
        raise DataError(
            f"--links {path} has three columns of integers without a header, so it is unknown which two are "
            "the vertices: add a header with the names source and target, or remove the other column"
        )
    pairs = np.empty((len(rows), 2), np.int64)
    for row_number, (line, row) in enumerate(rows):
        for end in (0, 1):
            if row[end] not in numbers[end]:
                row[end] = row[end].strip()
            if row[end] not in numbers[end]:
                of_type = "" if types[end] is None else f" of type {types[end]!r}"
                raise DataError(
                    f"--links {path}: {row[end]!r} in line {line} ({_ENDS[end]} column) is not a vertex "
                    f"id{of_type}: correct it, or remove the line"
                )
            pairs[row_number, end] = numbers[end][row[end]]
    vertices = check_pairs(str(path), pairs, graph.num_vertices, ends, graph.vertices.positions)
    return vertices, [row for _, row in rows]


def _read_rows(path: Path, say: Callable[[str], None]) -> list[tuple[int, list[str]]]:
    """Return the line number and the values of each row of a text table, including its header."""
    name = f"--links {path}"
    start = TextFile(path, name, CsvDialect()).start(_SAMPLE_BYTES)
    dialect = read_first_lines(start).dialect
    file = TextFile(path, name, dialect.model_copy(update={"header": False}))
    try:
        rows = [row for block in file.blocks() for row in _rows_of_block(block, file.csv_arguments)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name} cannot be read ({error}): use a table in UTF-8") from None
    if rows and any(line.startswith((b"#", b"%")) for line in start.splitlines()[: rows[0][0] - 1]):
        say(f"{path}: the lines before line {rows[0][0]} are skipped as comments")
    return rows


def _rows_of_block(block: TextBlock, csv_arguments: Mapping[str, Any]) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(block.stripped()[0].decode(), newline=""), **csv_arguments)
    return ((block.first_line + reader.line_num - 1, row) for row in reader if row)


def _columns_by_name(row: list[str], types: tuple[str | None, str | None]) -> tuple[int, int] | None:
    """Return the columns of sources and targets if the row names both, otherwise None."""
    plain = [normalize_name(name) for name in row]
    for source, target in ENDPOINT_COLUMN_NAMES:
        if source in plain and target in plain:
            return plain.index(source), plain.index(target)
    columns = [[number for number, name in enumerate(row) if _is_named_after(name, each)] for each in types]
    if types[0] != types[1] and all(len(found) == 1 for found in columns):
        return columns[0][0], columns[1][0]
    return None


def _is_named_after(column: str, vertex_type: str | None) -> bool:
    """Return whether a column has the name of a vertex type, such as `user`, `users` or `user_id`."""
    plain = None if vertex_type is None else normalize_name(vertex_type)
    return plain is not None and normalize_name(column) in {f"{plain}{end}" for end in ("", "s", "id", "ids")}


def _check_header(path: Path, row: list[str], types: tuple[str | None, str | None]) -> None:
    """Refuse a header whose first two columns would be read as the other ends than they are named after."""
    if types[0] == types[1]:
        return
    for end in (0, 1):
        if _is_named_after(row[end], types[1 - end]) and not _is_named_after(row[end], types[end]):
            raise DataError(
                f"--links {path}: column {row[end]!r} would be read as the {_ENDS[end]}, which is of type "
                f"{types[end]!r}: name the two columns {types[0]!r} and {types[1]!r}, or source and target"
            )


def _are_three_integers(row: list[str]) -> bool:
    return len(row) == 3 and all(_INTEGER.fullmatch(word.strip()) for word in row)


def _is_header(row: list[str], types: tuple[str | None, str | None], graph: Graph) -> bool:
    """Return whether the first line is a header: it has no vertex numbers and no ids of any type."""
    words = {*row, *(word.strip() for word in row)}
    if any(_NUMBER.fullmatch(word.strip()) for word in row):
        return False
    return not any(_numbers_of_names(words, vertex_type, graph) for vertex_type in types)


def _numbers_of_names(names: set[str], vertex_type: str | None, graph: Graph) -> dict[str, int]:
    """Return the original vertex numbers of the known ids, only of `vertex_type` if given."""
    names = names | {name.strip() for name in names}
    integers = {name: found[1] for name in names if (found := _INTEGER.fullmatch(name))}
    wanted = names | set(integers.values())
    with graph.names.read_ids() as ids:
        if ids is not None:
            kind = [] if vertex_type is None else [vertex_type]
            numbers, are_integers = {}, True
            for number, row in enumerate(ids):
                if row[:-1] in (kind, []):
                    are_integers = are_integers and (not integers or bool(_INTEGER.fullmatch(row[-1])))
                    if row[-1] in wanted:
                        numbers[row[-1]] = number
            # As in an import, 3.0 is 3 only if all ids are integers.
            equal = {name: numbers[text] for name, text in integers.items() if text in numbers}
            return (equal if are_integers else {}) | {name: numbers[name] for name in names & numbers.keys()}
    return {name: int(text) for name, text in integers.items() if 0 <= int(text) < graph.num_vertices}


def write_named_pairs(path: Path, names: Sequence[Sequence[object]], scores: NDArray[np.float32]) -> None:
    """Write a table with the columns `source`, `target` and `score`. An OSError leaves no partial file."""
    with atomic_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*_ENDS, "score"])
        for start in range(0, len(scores), _PAIRS_PER_WRITE):
            values = scores[start : start + _PAIRS_PER_WRITE].astype("U32").tolist()
            writer.writerows(
                [*pair, value]
                for pair, value in zip(names[start : start + _PAIRS_PER_WRITE], values, strict=True)
            )
        text.flush()
        text.detach()


_NPY_PAIRS_PER_WRITE = 1 << 20


def read_pairs(path: Path, graph: Graph) -> NDArray[Any]:
    """Read vertex pairs [n, 2] from a .npy file with the original vertex numbers of the dataset.

    Raises DataError, with the first bad position, if the file does not contain vertex pairs.
    """
    hint = "use a .npy file of [n, 2] vertex numbers, or a table such as .csv or .tsv"
    try:
        with path.open("rb") as file:
            pairs = np.lib.format.read_array(file, allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"--links {path} does not exist: {hint}") from None
    # MemoryError and OverflowError: the header states more elements than fit in memory or in an int64.
    except (OSError, ValueError, MemoryError, OverflowError) as error:
        raise DataError(f"--links {path} cannot be read ({error}): {hint}") from None
    assert graph.links is not None, "only runs that predict links score pairs"
    return check_pairs(str(path), pairs, graph.num_vertices, graph.links.ends, graph.vertices.positions)


def write_link_scores(
    path: Path,
    model: GNN,
    graph: Graph,
    pairs: NDArray[Any],
    score: Score,
    workers: Workers,
    *,
    memory_bytes: int,
) -> int:
    """Apply a model to the vertices of `pairs` [n, 2], write one score per pair, and return n.

    The .npy file, [n] float32, is written atomically; an OSError leaves no partial file. `memory_bytes`
    limits hidden rows and results in memory; other rows are stored in a temporary file there.
    """
    vertices, positions = np.unique(pairs, return_inverse=True)
    rows = infer_layerwise(
        model,
        graph,
        vertices.astype(np.int64),
        workers,
        memory_bytes=memory_bytes,
        scratch=path.absolute().parent,
    )
    not_finite = NotFiniteRows(model, "the scores", ("links", "link"))
    ids = graph.vertices.vertex_ids
    values, positions = torch.from_numpy(rows), positions.reshape(pairs.shape)
    with atomic_file(path) as file, torch.no_grad():
        file.write(header_bytes(np.dtype(np.float32), (len(pairs),)))
        for start in range(0, len(pairs), _NPY_PAIRS_PER_WRITE):
            scores = score_pairs(values, positions[start : start + _NPY_PAIRS_PER_WRITE], score)
            ends = pairs[start : start + _NPY_PAIRS_PER_WRITE]
            not_finite.add(scores, ends if ids is None else ids[ends])
            file.write(scores.data)
    not_finite.warn()
    return len(pairs)
