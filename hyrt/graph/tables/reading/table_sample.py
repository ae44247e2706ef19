"""Sample of a table's first rows, its inferred CSV dialect, and the kinds of its columns."""

from __future__ import annotations

import csv
import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hyrt.errors import DataError, escape_undecodable
from hyrt.graph.tables.reading.csv_batches import TextFile, read_csv_batches
from hyrt.graph.tables.reading.table_files import (
    TableFiles,
    is_parquet,
    list_table_files,
    read_pandas_index,
    read_parquet_batches,
    read_parquet_columns,
)
from hyrt.graph.tables.reading.values import (
    decode_column,
    has_codes,
    read_list_matrix,
    read_real_numbers,
    read_whole_numbers,
)
from hyrt.graph.tables.schema import CsvDialect

_DELIMITERS = (",", ";", "\t", "|", " ")
_LINES = 100
_COMMENTS = ("#", "%")
_NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*")
_COMMA_NUMBER = re.compile(r"\s*[-+]?\d*,\d+\s*")


def sniff_dialect(start: bytes) -> CsvDialect:
    """Infer the CSV dialect from the first bytes of a file, decompressed.

    The delimiter is the one that splits most lines into equal numbers of values. The first line is a header
    if it has no number, and if none of its names occurs below in a file without numbers. The decimal point is
    a comma if numbers contain one.
    """
    settings: dict[str, Any] = {}
    whole = start[: start.rfind(b"\n") + 1] or start
    try:
        text = whole.decode("utf-8-sig")
    except UnicodeDecodeError:
        if _are_mostly_utf8(whole):
            text = whole.decode("utf-8-sig", errors="replace")
        else:
            text = whole.decode("cp1252", errors="replace")
            settings["encoding"] = "cp1252"
    lines = [line for line in text.splitlines() if line.strip()]
    while lines and lines[0].startswith(_COMMENTS):
        lines.pop(0)
    lines = lines[:_LINES]
    delimiter = max(_DELIMITERS, key=lambda candidate: _regularity(lines, candidate))
    if not any(_regularity(lines, candidate) > (0, 0) for candidate in _DELIMITERS):
        delimiter = ","
    settings["delimiter"] = delimiter
    quote = _quote(lines, delimiter)
    settings["quote"] = quote
    rows = _rows(lines, delimiter, quote)
    settings["header"] = bool(rows) and not any(_NUMBER.fullmatch(value) for value in rows[0])
    # Ignore repetitions of the header, as in concatenated files.
    below = {value for row in rows[1:] if row != rows[0] for value in row}
    if below.intersection(rows[0] if rows else ()) - {""} and not any(map(_NUMBER.fullmatch, below)):
        # If names of the first line occur below, they are vertex names, not a header.
        settings["header"] = False
    if delimiter != "," and any(_COMMA_NUMBER.fullmatch(value) for row in rows for value in row):
        settings["decimal"] = ","
    defaults = CsvDialect()
    return CsvDialect(**{key: value for key, value in settings.items() if value != getattr(defaults, key)})


def _are_mostly_utf8(data: bytes) -> bool:
    """Return whether most non-ASCII lines are valid UTF-8, in which case the others are damaged UTF-8."""
    lines = [line for line in data.split(b"\n") if not line.isascii()]
    good = 0
    for line in lines:
        try:
            line.decode()
        except UnicodeDecodeError:
            continue
        good += 1
    return 2 * good >= len(lines)


def _rows(lines: list[str], delimiter: str, quote: str = '"') -> list[list[str]]:
    """Split lines into values like the import, i.e. without surrounding spaces."""
    try:
        rows = list(csv.reader(lines, delimiter=delimiter, quotechar=quote, skipinitialspace=True))
    except csv.Error:
        rows = [line.split(delimiter) for line in lines]
    return [[value.strip() for value in row] for row in rows]


def _quote(lines: list[str], delimiter: str) -> str:
    """Return a single quote if it quotes most strings and no double quote occurs, or a double quote."""
    if any('"' in line for line in lines):
        return '"'
    values = [value.strip() for line in lines for value in line.split(delimiter)]
    texts = [value for value in values if value and not _NUMBER.fullmatch(value)]
    quoted = sum(len(value) > 1 and value[0] == value[-1] == "'" for value in texts)
    return "'" if 2 * quoted > len(texts) else '"'


def _regularity(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Return the fraction of lines with the most frequent number of values (above 1), and that number."""
    counts = Counter(map(len, _rows(lines, delimiter)))
    if not counts:
        return 0.0, 0
    width, often = counts.most_common(1)[0]
    return (often / len(lines), width) if width > 1 else (0.0, 0)


_BYTES = 1 << 18
_MAX_WRONG = 0.2
"""Maximum fraction of values that are not numbers in a column of numbers."""


@dataclass(frozen=True, slots=True)
class TableSample:
    """The first rows of a file, or of the first non-empty file in a folder."""

    path: Path
    dialect: CsvDialect | None
    """CSV dialect; None for Parquet."""
    columns: dict[str, str]
    """Kinds of the columns: `whole`, `code` (whole numbers, some spelled like 007 or +1), `number`, `text`,
    `list` (of numbers), or `none` if all values are missing or of another kind.
    """
    rows: dict[str, Any]
    """First values of each column, as Arrow arrays."""
    index: list[str]
    """Columns that pandas wrote as the row index."""
    total_rows: float
    """Approximate number of rows of the table; infinite if unknown."""
    is_whole: bool
    """Whether the sample has all rows of the table."""

    @property
    def name(self) -> str:
        return escape_undecodable(str(self.path))

    @property
    def schema_name(self) -> str:
        """Return the name of the file or folder in a schema."""
        return self.path.name or self.path.resolve().name

    def values(self, column: str) -> list[Any]:
        """Return the first values of a column; strings are as written in the file."""
        values: list[Any] = self.rows[column].to_pylist()
        return values

    def min_value(self, column: str) -> int:
        """Return the minimum of the first whole numbers of a column; 0 if all are missing."""
        values, missing, _ = read_whole_numbers(
            self.rows[column], "." if self.dialect is None else self.dialect.decimal
        )
        return int(values[~missing].min(initial=2**62)) if (~missing).any() else 0


def read_sample(root: Path) -> TableSample:
    """Read the first rows of a file, or of the first non-empty file in a folder.

    Raises DataError if the file is missing, empty, damaged, or has duplicate column names.
    """
    paths = list_table_files(root)
    for path in paths:
        found = _parquet_sample(path, root, paths) if is_parquet(path) else _text_sample(path, root, paths)
        if found is not None:
            return found
    raise DataError(f"{escape_undecodable(str(root))}: has no rows: fill it, or leave it out")


def _parquet_sample(path: Path, root: Path, paths: list[Path]) -> TableSample | None:
    """Return the first rows of a Parquet file; None if it has no rows."""
    name = escape_undecodable(str(path))
    columns = read_parquet_columns(path, name)
    piece = next(read_parquet_batches(path, name, dict.fromkeys(columns, "any")), None)
    if piece is None or not piece.num_rows:
        return None
    kinds = {column: _kind(piece.columns[column], ".") for column in columns}
    total = TableFiles(paths, CsvDialect()).num_rows()
    return TableSample(
        path=root,
        dialect=None,
        columns=kinds,
        rows=dict(piece.columns),
        index=read_pandas_index(path, name),
        total_rows=math.inf if total is None else total,
        is_whole=total == piece.num_rows,
    )


def _text_sample(path: Path, root: Path, paths: list[Path]) -> TableSample | None:
    name = escape_undecodable(str(path))
    file = TextFile(path, name, CsvDialect())
    start = file.start(_BYTES)
    file = TextFile(path, name, sniff_dialect(start))
    columns = file.columns()
    pieces = read_csv_batches(file, dict.fromkeys(columns, "text"), block_bytes=_BYTES, max_blocks=1)
    piece = next(pieces, None)
    if piece is None or not (piece.num_rows or piece.bad):
        return None
    is_whole = len(paths) == 1 and len(start) < _BYTES
    files = TableFiles(paths, file.dialect)
    rows_per_byte = piece.num_rows / min(path.stat().st_size, _BYTES)
    return TableSample(
        path=root,
        dialect=file.dialect,
        columns={column: _kind(piece.columns[column], file.dialect.decimal) for column in columns},
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

    if read_list_matrix(column) is not None:
        return "list"
    if column.null_count == len(column):
        return "none"
    try:
        column = decode_column(column)
    except DataError:  # Binary values are not supported; an import raises the error if it needs them.
        return "none"
    is_text = pa.types.is_string(column.type)
    _, missing, bad = read_whole_numbers(column, decimal)
    # A few other values among many numbers are mistakes; the import reports them.
    max_wrong = _MAX_WRONG * (~missing).sum()
    if is_text and has_codes(column, bad) and read_real_numbers(column, decimal)[2].sum() <= max_wrong:
        return "code" if _are_whole(column, decimal) else "number"
    if bad.sum() <= max_wrong:
        return "whole"
    if pa.types.is_uint64(column.type):  # Numbers beyond int64, such as hashes.
        return "code"
    if read_real_numbers(column, decimal)[2].sum() <= max_wrong:
        return "number"
    return "text" if is_text else "none"


def _are_whole(column: Any, decimal: str) -> bool:
    values, missing, bad = read_real_numbers(column, decimal)
    good = values[~(missing | bad)]
    return bool((good == np.floor(good)).all())
