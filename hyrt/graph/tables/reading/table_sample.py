"""Sample of a table's first rows, and the kinds of its columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyrt.errors import DataError, readable
from hyrt.graph.tables.reading.csv_pieces import csv_pieces
from hyrt.graph.tables.reading.guess_form import guess_form
from hyrt.graph.tables.reading.parquet_pieces import pandas_index, parquet_columns, parquet_pieces
from hyrt.graph.tables.reading.table_files import TableFiles, files_of, is_parquet
from hyrt.graph.tables.reading.text_blocks import TextFile
from hyrt.graph.tables.reading.text_form import TextForm
from hyrt.graph.tables.reading.values import are_codes, matrix, plain, real_numbers, whole_numbers

_BYTES = 1 << 18
_MAX_WRONG = 0.2
"""Maximum fraction of values that are not numbers in a column of numbers."""


@dataclass(frozen=True, slots=True)
class TableSample:
    """The first rows of a file, or of the first non-empty file in a folder."""

    path: Path
    """The file or folder."""
    form: TextForm | None
    """CSV dialect; None for Parquet."""
    columns: dict[str, str]
    """Kind of each column: `whole`, `code` (whole numbers, some of them written like 007 or +1), `number`,
    `text`, `list` (of numbers), or `none` if all values are missing or of another kind."""
    rows: dict[str, Any]
    """The first values of each column, as Arrow arrays."""
    index: list[str]
    """The columns that pandas wrote as the row index."""
    total_rows: float
    """Approximate number of rows of the table; infinite if unknown."""
    is_whole: bool
    """Whether the sample is the whole table."""

    @property
    def name(self) -> str:
        return readable(str(self.path))

    @property
    def given(self) -> str:
        """Return the name of the file or folder in a schema."""
        return self.path.name or self.path.resolve().name

    def values(self, column: str) -> list[Any]:
        """Return the first values of a column; strings are as written in the file."""
        values: list[Any] = self.rows[column].to_pylist()
        return values

    def least(self, column: str) -> int:
        """Return the smallest of the first whole numbers of a column; 0 if all are missing."""
        values, missing, _ = whole_numbers(self.rows[column], "." if self.form is None else self.form.decimal)
        return int(values[~missing].min(initial=2**62)) if (~missing).any() else 0


def sample_of(given: Path) -> TableSample:
    """Read the first rows of a file, or of the first non-empty file in a folder.

    Raises
    ------
    DataError
        If the file is missing, empty, damaged, or has duplicate column names.
    """
    paths = files_of(given)
    for path in paths:
        found = _parquet_sample(path, given, paths) if is_parquet(path) else _text_sample(path, given, paths)
        if found is not None:
            return found
    raise DataError(f"{readable(str(given))}: has no rows: fill it, or leave it out")


def _parquet_sample(path: Path, root: Path, paths: list[Path]) -> TableSample | None:
    """Return the first rows of a Parquet file; None if it has no rows."""
    name = readable(str(path))
    columns = parquet_columns(path, name)
    piece = next(parquet_pieces(path, name, dict.fromkeys(columns, "any")), None)
    if piece is None or not piece.num_rows:
        return None
    kinds = {column: _kind(piece.columns[column], ".") for column in columns}
    total = TableFiles(paths, TextForm()).num_rows()
    return TableSample(
        path=root,
        form=None,
        columns=kinds,
        rows=dict(piece.columns),
        index=pandas_index(path, name),
        total_rows=math.inf if total is None else total,
        is_whole=total == piece.num_rows,
    )


def _text_sample(path: Path, root: Path, paths: list[Path]) -> TableSample | None:
    name = readable(str(path))
    file = TextFile(path, name, TextForm())
    start = file.start(_BYTES)
    file = TextFile(path, name, guess_form(start))
    columns = file.columns()
    pieces = csv_pieces(file, dict.fromkeys(columns, "text"), block_bytes=_BYTES, most_blocks=1)
    piece = next(pieces, None)
    if piece is None or not (piece.num_rows or piece.bad):
        return None
    is_whole = len(paths) == 1 and len(start) < _BYTES
    files = TableFiles(paths, file.form)
    rows_per_byte = piece.num_rows / min(path.stat().st_size, _BYTES)
    return TableSample(
        path=root,
        form=file.form,
        columns={column: _kind(piece.columns[column], file.form.decimal) for column in columns},
        rows=dict(piece.columns),
        index=[],
        total_rows=piece.num_rows
        if is_whole
        else files.num_bytes * rows_per_byte
        if files.are_plain
        else math.inf,
        is_whole=is_whole,
    )


def _kind(column: Any, decimal: str) -> str:
    import pyarrow as pa

    if matrix(column) is not None:
        return "list"
    if column.null_count == len(column):
        return "none"
    try:
        column = plain(column)
    except DataError:  # Binary values are not supported; an import that needs them raises the error.
        return "none"
    is_text = pa.types.is_string(column.type)
    _, missing, bad = whole_numbers(column, decimal)
    # A few other values among many numbers are mistakes, which the import reports.
    max_wrong = _MAX_WRONG * (~missing).sum()
    if is_text and are_codes(column, bad) and real_numbers(column, decimal)[2].sum() <= max_wrong:
        return "code" if _are_whole(column, decimal) else "number"
    if bad.sum() <= max_wrong:
        return "whole"
    if pa.types.is_uint64(column.type):  # Numbers beyond int64, such as hashes.
        return "code"
    if real_numbers(column, decimal)[2].sum() <= max_wrong:
        return "number"
    return "text" if is_text else "none"


def _are_whole(column: Any, decimal: str) -> bool:
    values, missing, bad = real_numbers(column, decimal)
    good = values[~(missing | bad)]
    return bool((good == np.floor(good)).all())
