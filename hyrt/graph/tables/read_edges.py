"""Reading of an edge table into an edge list."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.check import MOST_TYPES
from hyrt.graph.formats.schema import EDGE_FEATURES, EDGE_TIME, EDGE_TYPE, EDGE_WEIGHT
from hyrt.graph.tables.columns import LARGEST, FeatureColumns, matching, ordered_names
from hyrt.graph.tables.ids.vertex_ids import VertexIds
from hyrt.graph.tables.ids.vertex_names import VertexNames
from hyrt.graph.tables.import_schema import EdgeTable
from hyrt.graph.tables.listed_edges import ListedEdges
from hyrt.graph.tables.reading.bad_rows import BadRows
from hyrt.graph.tables.reading.table_files import TableFiles
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.values import TimeColumn, real_numbers, texts
from hyrt.graph.tables.reading_notes import ReadingNotes

Array = NDArray[Any]


def read_edges(
    table: EdgeTable,
    files: TableFiles,
    source_ids: VertexIds,
    target_ids: VertexIds,
    bad: BadRows,
    notes: ReadingNotes,
    scratch: Path,
    dtype: np.dtype[Any],
) -> tuple[ListedEdges, list[str], list[str]]:
    """Read all edges of a table.

    Parameters
    ----------
    table
        Schema of the table.
    files
        The files of the table.
    source_ids, target_ids
        Id mappings of both endpoints; may be the same object.
    bad
        Collector of errors.
    notes
        Collector of notes about values that are changed or count as missing.
    scratch
        Folder for the edge list.
    dtype
        int32 or int64, the dtype of vertices.

    Returns
    -------
    The edge list, the names of the edge types unless they are numbers, and the names of the feature columns.
    """
    columns = (table.source, table.target, table.weight, table.type, table.time)
    taken = [column for column in columns if column is not None]
    features = matching(table.features, files.columns(), files.names[0], taken)
    kinds = dict.fromkeys((table.source, table.target), "text")
    kinds |= dict.fromkeys(features, "number")
    if table.weight is not None:
        kinds[table.weight] = "number"
    if table.type is not None:
        kinds[table.type] = "text"
    if table.time is not None:
        kinds[table.time] = "any"
    rows = FeatureColumns(features, table.text.decimal, None, "")
    types, times = VertexNames(), TimeColumn(table.text.decimal)
    edges: ListedEdges | None = None
    try:
        for piece in files.pieces(kinds):
            bad.add_unreadable(piece)
            notes.add(files.names[0], piece)
            sources = source_ids.numbers(piece, table.source, table.unknown, bad)
            targets = target_ids.numbers(piece, table.target, table.unknown, bad)
            left_out = (sources < 0) | (targets < 0)
            if left_out.any():
                sources[left_out] = targets[left_out] = -1
            extras: dict[str, Array] = {}
            if table.weight is not None:
                extras[EDGE_WEIGHT] = _weights(piece, table.weight, table.text.decimal, bad)
            if table.type is not None:
                extras[EDGE_TYPE] = _types(piece, table.type, types, bad)
            if features:
                extras[EDGE_FEATURES] = rows.rows(piece, bad)
            edge_times: dict[str, Array] = {}
            if table.time is not None:
                edge_times[EDGE_TIME] = _times(piece, table.time, times, bad)
            if edges is None:
                shapes = {key: part.shape[1:] for key, part in extras.items()}
                edges = ListedEdges(
                    scratch, dtype, shapes, edge_times[EDGE_TIME].dtype if edge_times else None
                )
            edges.append(sources, targets, extras | edge_times)
        if edges is None:
            edges = ListedEdges(scratch, dtype, {})
    finally:
        if edges is not None:
            edges.close()
    return edges, _named_types(types, edges), rows.names()


def _weights(piece: TablePiece, column: str, decimal: str, bad: BadRows) -> Array:
    values, missing, wrong = real_numbers(piece.columns[column], decimal)
    with np.errstate(invalid="ignore", over="ignore"):
        weights = values.astype(np.float32)
        wrong = missing | wrong | ~(weights > 0) | (values > LARGEST)
    bad.add(piece, column, wrong, "is not a weight", "Give each edge a weight, a finite number above 0")
    return weights


def _times(piece: TablePiece, column: str, times: TimeColumn, bad: BadRows) -> Array:
    values, wrong = times.values(piece.columns[column])
    remedy = "Give each edge a time, written in the same way: a number, or a date such as 2024-05-31 12:00:00"
    bad.add(piece, column, wrong, "is not a time as the first one is", remedy)
    return values


def _types(piece: TablePiece, column: str, types: VertexNames, bad: BadRows) -> Array:
    names, missing = texts(piece.columns[column])
    bad.add(piece, column, missing, "is not a type", "Give each edge a type, a whole number or a text")
    numbers = types.add(names, missing)
    bad.add(
        piece,
        column,
        numbers >= MOST_TYPES,
        "is one type too many",
        f"Have at most {MOST_TYPES:,} types of edges",
    )
    return numbers.astype(np.int32)


def _named_types(types: VertexNames, edges: ListedEdges) -> list[str]:
    """Replace the provisional type numbers by the final ones and return the type names.

    Types that are written as numbers keep them; other types are numbered in the order of their names.
    """
    if not types.num or not edges.num:
        return []
    found = [name for block in types.blocks() for name in block]
    are_numbers = all(map(_is_type_number, found))
    names, places = ordered_names(types)
    final = np.array([int(name) for name in found] if are_numbers else places, np.int32)
    edges.renumber(EDGE_TYPE, final)
    return [] if are_numbers else names


def _is_type_number(name: str) -> bool:
    # 007 and 7 are different types.
    is_number = name.isascii() and name.isdigit() and len(name) < 9
    return is_number and str(int(name)) == name and int(name) < MOST_TYPES
