"""Pieces of a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hyrt.errors import DataError, told_of_system
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.values import check_texts, plain

_ROWS = 1 << 18
_CELLS = 1 << 22


@contextmanager
def opened_parquet(path: Path, name: str) -> Iterator[Any]:
    """A Parquet file.

    Raises
    ------
    DataError
        If it is none, or is damaged, also while it is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            yield file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        what = str(error).partition("\n")[0]
        raise DataError(f"{name}: no Parquet file, or damaged ({what}): copy or write it again") from error
    except OSError as error:
        what = told_of_system(error) if error.strerror else str(error).partition("\n")[0]
        raise DataError(f"{name} cannot be read: {what}") from error


def parquet_columns(path: Path, name: str) -> list[str]:
    """The names of the columns, in order."""
    with opened_parquet(path, name) as file:
        return list(file.schema_arrow.names)


def pandas_index(path: Path, name: str) -> list[str]:
    """Return the columns that pandas wrote as the index of the rows, not as a part of the table."""
    with opened_parquet(path, name) as file:
        noted = (file.schema_arrow.metadata or {}).get(b"pandas")
    try:
        columns = [] if noted is None else json.loads(noted)["index_columns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [column for column in columns if isinstance(column, str)]


def parquet_pieces(path: Path, name: str, columns: Mapping[str, str]) -> Iterator[TablePiece]:
    """The rows of a file, piece by piece; see `csv_pieces`."""
    at = 0
    with opened_parquet(path, name) as file:
        step = max(1, min(_ROWS, _CELLS // max(1, len(columns))))
        for batch in file.iter_batches(step, columns=list(columns), use_threads=True):
            arrays = {
                key: _column(batch.column(batch.schema.get_field_index(key)), kind, f"{name}, column {key!r}")
                for key, kind in columns.items()
            }
            first = at + 1
            at += batch.num_rows
            yield TablePiece(
                name,
                batch.num_rows,
                arrays,
                "row",
                lambda a=first, b=at: np.arange(a, b + 1),  # type: ignore[misc]
            )


def _column(column: Any, kind: str, where: str) -> Any:
    try:
        column = plain(column)
        if kind == "text":
            check_texts(column)
    except DataError as error:
        if kind != "any":
            raise DataError(f"{where}: {error}") from None
    return column
