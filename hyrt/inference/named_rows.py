"""Rows of vertices as a CSV table, with the vertices' and the classes' own names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.graph import Graph
from hyrt.graph.names.name_files import IDS
from hyrt.machine.atomic_write import atomic_file

_ROWS = 1 << 12


def write_named_rows(
    path: Path,
    rows: NDArray[Any],
    vertices: NDArray[np.int64],
    graph: Graph,
    classes: Sequence[str] | None,
    what: str,
) -> None:
    """Write a table; the file appears whole or not at all.

    Parameters
    ----------
    path
        The file to write.
    rows
        [n] or [n, columns], a row for each vertex.
    vertices
        [n] the vertices.
    graph
        The graph that they are of, whose dataset may have ids.
    classes
        The names of the run's classes, or of its labels; None if they have none.
    what
        `scores`, `classes` or `embeddings`.

    Raises
    ------
    DataError
        If there are files of names, but of another number of vertices.
    OSError
        If it cannot be written; none is left then.
    """
    if what == "classes" and rows.ndim == 1:
        columns = ["class"]
    elif what != "embeddings" and classes is not None and len(classes) == rows.shape[1]:
        columns = list(classes)
    else:
        columns = [str(number) for number in range(1 if rows.ndim == 1 else rows.shape[1])]
    numbers = graph.vertices.vertex_ids
    numbers = vertices if numbers is None else numbers[vertices]
    with atomic_file(path) as file, graph.names.read_ids() as known:
        named_by = ["id"] if graph.types is None or known is None else ["type", "id"]
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*named_by, *columns])
        named = _named(numbers, known, graph.name)
        for start in range(0, len(rows), _ROWS):
            part = rows[start : start + _ROWS]
            # As many digits as float32 has, not those of the float64 that Python would make of it.
            values: list[Any] = (part.astype("U32") if part.dtype.kind == "f" else part).tolist()
            if columns == ["class"]:
                values = [[value if classes is None else classes[value]] for value in values]
            writer.writerows([*next(named), *row] for row in values)
        text.flush()
        text.detach()


def _named(numbers: NDArray[Any], ids: Iterator[list[str]] | None, source: str) -> Iterator[list[Any]]:
    """Return the id of each vertex, with its type in a heterogeneous graph, or its number."""
    if ids is None:
        yield from ([number] for number in numbers.tolist())
        return
    found: dict[int, list[str]] = {}
    in_order = bool((np.diff(numbers) > 0).all())
    wanted = iter(numbers.tolist()) if in_order else None
    if wanted is None:
        chosen = set(numbers.tolist())
        found = {number: name for number, name in enumerate(ids) if number in chosen}
        for number in numbers.tolist():
            yield _known(found.get(number), source)
        return
    at = -1
    for number in wanted:
        name = None
        while at < number:
            name, at = next(ids, None), at + 1
        yield _known(name, source)


def _known(name: list[str] | None, source: str) -> list[str]:
    if name is None:
        raise DataError(f"{source}: {IDS} has fewer lines than there are vertices: make the dataset again")
    return name
