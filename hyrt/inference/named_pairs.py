"""Pairs of vertices in CSV tables, by the ids that the dataset has for them."""

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

_ROWS = 1 << 12
_ENDS = ("source", "target")


def read_named_pairs(path: Path, graph: Graph) -> tuple[NDArray[Any], list[list[str]]]:
    """Read a CSV table whose first two columns are the ids of sources and targets, with or without a header.

    Returns
    -------
    [n, 2] the vertices, and [n] the two ids of each pair as they are written.

    Raises
    ------
    DataError
        If an id is unknown, naming the line.
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
    numbers = [_numbers({row[end] for _, row in lines}, types[end], graph) for end in (0, 1)]
    if lines and all(lines[0][1][end] not in numbers[end] for end in (0, 1)):
        lines = lines[1:]
    pairs = np.empty((len(lines), 2), np.int64)
    for at, (line, row) in enumerate(lines):
        for end in (0, 1):
            if row[end] not in numbers[end]:
                of_type = "" if types[end] is None else f" of type {types[end]!r}"
                raise DataError(
                    f"--links {path}, line {line}: {row[end]!r} is not the id of a vertex{of_type} "
                    f"(column of the {_ENDS[end]}): correct it, or leave out the line"
                )
            pairs[at, end] = numbers[end][row[end]]
    found = checked_pairs(str(path), pairs, graph.num_vertices, ends, graph.vertices.positions)
    return found, [row[:2] for _, row in lines]


def _numbers(wanted: set[str], vertex_type: str | None, graph: Graph) -> dict[str, int]:
    """Return the original numbers of the ids that the graph has, of vertices of the type if there is one."""
    with graph.names.read_ids() as ids:
        if ids is not None:
            kind = [] if vertex_type is None else [vertex_type]
            return {
                row[-1]: number
                for number, row in enumerate(ids)
                if row[-1] in wanted and row[:-1] in (kind, [])
            }
    plain = {text: int(text) for text in wanted if text.strip().isdecimal()}
    return {text: number for text, number in plain.items() if number < graph.num_vertices}


def write_named_pairs(path: Path, names: Sequence[Sequence[object]], scores: NDArray[np.float32]) -> None:
    """Write a table of `source`, `target` and `score`; the file appears whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written; none is left then.
    """
    with atomic_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*_ENDS, "score"])
        for start in range(0, len(scores), _ROWS):
            values = scores[start : start + _ROWS].astype("U32").tolist()
            writer.writerows(
                [*pair, value] for pair, value in zip(names[start : start + _ROWS], values, strict=True)
            )
        text.flush()
        text.detach()
