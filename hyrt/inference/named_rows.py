"""CSV tables of vertex rows, with vertex ids and class names."""

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

_ROWS_PER_WRITE = 1 << 12


def write_named_rows(
    path: Path,
    rows: NDArray[Any],
    vertices: NDArray[np.int64],
    graph: Graph,
    classes: Sequence[str] | None,
    what: str,
) -> None:
    """Write a table, atomically.

    Parameters
    ----------
    path
        File to write.
    rows
        [n] or [n, columns], one row per vertex.
    vertices
        [n] vertices.
    graph
        Graph of the vertices; its dataset may have ids.
    classes
        Names of the run's classes or labels; None if unnamed.
    what
        `scores`, `classes` or `embeddings`.

    Raises
    ------
    DataError
        If the dataset has ids for another number of vertices.
    OSError
        If the file cannot be written; no partial file remains.
    """
    if what == "classes" and rows.ndim == 1:
        columns = ["class"]
    elif what != "embeddings" and classes is not None and len(classes) == rows.shape[1]:
        columns = list(classes)
    else:
        columns = [str(number) for number in range(1 if rows.ndim == 1 else rows.shape[1])]
    numbers = graph.vertices.vertex_ids
    numbers = vertices if numbers is None else numbers[vertices]
    with atomic_file(path) as file, graph.names.read_ids() as ids:
        id_columns = ["id"] if graph.types is None or ids is None else ["type", "id"]
        text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*id_columns, *columns])
        id_cells = _iter_ids(numbers, ids, graph.name)
        for start in range(0, len(rows), _ROWS_PER_WRITE):
            part = rows[start : start + _ROWS_PER_WRITE]
            # float32 digits; conversion to Python's float64 would add meaningless ones.
            values: list[Any] = (part.astype("U32") if part.dtype.kind == "f" else part).tolist()
            if columns == ["class"]:
                values = [[value if classes is None else classes[value]] for value in values]
            writer.writerows([*next(id_cells), *row] for row in values)
        text.flush()
        text.detach()


def _iter_ids(numbers: NDArray[Any], ids: Iterator[list[str]] | None, source: str) -> Iterator[list[Any]]:
    """Iterate over the id of each vertex (with its type in a heterogeneous graph), or its number."""
    if ids is None:
        yield from ([number] for number in numbers.tolist())
        return
    names: dict[int, list[str]] = {}
    in_order = bool((np.diff(numbers) > 0).all())
    remaining = iter(numbers.tolist()) if in_order else None
    if remaining is None:
        requested = set(numbers.tolist())
        names = {number: name for number, name in enumerate(ids) if number in requested}
        for number in numbers.tolist():
            yield _check_name(names.get(number), source)
        return
    position = -1
    for number in remaining:
        name = None
        while position < number:
            name, position = next(ids, None), position + 1
        yield _check_name(name, source)


def _check_name(name: list[str] | None, source: str) -> list[str]:
    if name is None:
        raise DataError(f"{source}: {IDS} has fewer lines than there are vertices: make the dataset again")
    return name
