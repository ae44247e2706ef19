"""Vertex pairs in CSV tables, with the dataset's vertex ids."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.graph.links.link_file import checked_pairs
from hyrt.machine.atomic_write import atomic_file

_PAIRS_PER_WRITE = 1 << 12
_ENDS = ("source", "target")


def read_named_pairs(path: Path, graph: Graph) -> tuple[NDArray[Any], list[list[str]]]:
    """Read a CSV table with source and target ids in the first two columns; the header is optional.

    Returns
    -------
    [n, 2] vertices, and [n] pairs of ids as written in the file.

    Raises
    ------
    DataError
        If an id is unknown; the message has the line number.
    """
    assert graph.links is not None, "only runs that predict links score pairs"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            lines = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise DataError(f"--links {path}: no such file: give the path of a .csv or .npy file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"--links {path}: {error}: give a CSV table in UTF-8") from None
    for number, row in lines:
        if len(row) < 2:
            raise DataError(f"--links {path}, line {number}: has one column: give a source and a target")
    ends = graph.links.ends
    types = ends.names or (None, None)
    numbers = [_numbers_of_names({row[end] for _, row in lines}, types[end], graph) for end in (0, 1)]
    if lines and all(lines[0][1][end] not in numbers[end] for end in (0, 1)):
        lines = lines[1:]
    pairs = np.empty((len(lines), 2), np.int64)
    for row_number, (line, row) in enumerate(lines):
        for end in (0, 1):
            if row[end] not in numbers[end]:
                of_type = "" if types[end] is None else f" of type {types[end]!r}"
                raise DataError(
                    f"--links {path}, line {line}: {row[end]!r} is not the id of a vertex{of_type} "
                    f"(column of the {_ENDS[end]}): correct it, or leave out the line"
                )
            pairs[row_number, end] = numbers[end][row[end]]
    vertices = checked_pairs(str(path), pairs, graph.num_vertices, ends, graph.vertices.positions)
    return vertices, [row[:2] for _, row in lines]


def _numbers_of_names(names: set[str], vertex_type: str | None, graph: Graph) -> dict[str, int]:
    """Return the original vertex numbers of the ids that exist, limited to `vertex_type` if given."""
    with graph.names.read_ids() as ids:
        if ids is not None:
            kind = [] if vertex_type is None else [vertex_type]
            return {
                row[-1]: number
                for number, row in enumerate(ids)
                if row[-1] in names and row[:-1] in (kind, [])
            }
    plain = {text: int(text) for text in names if text.strip().isdecimal()}
    return {text: number for text, number in plain.items() if number < graph.num_vertices}


def write_named_pairs(path: Path, names: Sequence[Sequence[object]], scores: NDArray[np.float32]) -> None:
    """Write a table with columns `source`, `target` and `score`, atomically.

    Raises
    ------
    OSError
        If the file cannot be written; no partial file remains.
    """
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
