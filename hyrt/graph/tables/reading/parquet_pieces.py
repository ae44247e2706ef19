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
    """Open a Parquet file.

    Raises
    ------
    DataError
        If the file is not a Parquet file or is damaged, also while it is read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            yield file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"{name}: no Parquet file, or damaged ({reason}): copy or write it again") from error
    except OSError as error:
        reason = told_of_system(error) if error.strerror else str(error).partition("\n")[0]
        raise DataError(f"{name} cannot be read: {reason}") from error


def parquet_columns(path: Path, name: str) -> list[str]:
    """Return the column names in order."""
    with opened_parquet(path, name) as file:
        return list(file.schema_arrow.names)


def pandas_index(path: Path, name: str) -> list[str]:
    """Return the columns that pandas wrote as the row index, not as a part of the table."""
    with opened_parquet(path, name) as file:
        metadata = (file.schema_arrow.metadata or {}).get(b"pandas")
    try:
        columns = [] if metadata is None else json.loads(metadata)["index_columns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [column for column in columns if isinstance(column, str)]


def parquet_pieces(path: Path, name: str, columns: Mapping[str, str]) -> Iterator[TablePiece]:
    """Yield the rows of a file in pieces; see `csv_pieces`."""
    num_read = 0
    with opened_parquet(path, name) as file:
        step = max(1, min(_ROWS, _CELLS // max(1, len(columns))))
        for batch in file.iter_batches(step, columns=list(columns), use_threads=True):
            arrays = {
                key: _column(batch.column(batch.schema.get_field_index(key)), kind, f"{name}, column {key!r}")
                for key, kind in columns.items()
            }
            first = num_read + 1
            num_read += batch.num_rows
            yield TablePiece(
                name,
                batch.num_rows,
                arrays,
                "row",
                lambda a=first, b=num_read: np.arange(a, b + 1),  # type: ignore[misc]
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
