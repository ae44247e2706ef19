"""CSV and Parquet files of a table, read in batches, and a sample of the first rows with the inferred
dialect.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, escape_undecodable, system_error_text
from hyrt.graph.check import suggest_name
from hyrt.graph.tables.csv_batches import TextFile, read_csv_batches
from hyrt.graph.tables.schema import CsvDialect
from hyrt.graph.tables.table_batch import (
    TableBatch,
    check_texts,
    decode_column,
    has_codes,
    is_list_column,
    read_real_numbers,
    read_whole_numbers,
)


def require_pyarrow() -> None:
    """Raise DataError, with the install command, if pyarrow is missing."""
    if importlib.util.find_spec("pyarrow") is None:
        raise DataError('hyrt data import needs pyarrow: pip install "hyrt[import]"')


_ROWS = 1 << 18
_CELLS = 1 << 22


@contextmanager
def open_parquet(path: Path, name: str) -> Iterator[Any]:
    """Open a Parquet file.

    Raises DataError, also within the context, if the file is damaged or not a Parquet file.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            yield file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(
            f"{name} is damaged or not a Parquet file ({reason}): copy or write it again"
        ) from error
    except OSError as error:
        reason = system_error_text(error) if error.strerror else str(error).partition("\n")[0]
        raise DataError(f"{name} cannot be read: {reason}") from error


def read_parquet_columns(path: Path, name: str) -> list[str]:
    """Return the column names in order."""
    with open_parquet(path, name) as file:
        return list(file.schema_arrow.names)


def read_pandas_index(path: Path, name: str) -> list[str]:
    """Return the columns that pandas wrote as the row index, which are not part of the table."""
    with open_parquet(path, name) as file:
        metadata = (file.schema_arrow.metadata or {}).get(b"pandas")
    try:
        columns = [] if metadata is None else json.loads(metadata)["index_columns"]
    except (ValueError, KeyError, TypeError):
        return []
    return [column for column in columns if isinstance(column, str)]


def read_parquet_batches(path: Path, name: str, columns: Mapping[str, str]) -> Iterator[TableBatch]:
    """Yield the rows of a file in batches; see `read_csv_batches`."""
    num_read = 0
    with open_parquet(path, name) as file:
        step = max(1, min(_ROWS, _CELLS // max(1, len(columns))))
        for batch in file.iter_batches(step, columns=list(columns), use_threads=True):
            arrays = {
                key: _column(batch.column(batch.schema.get_field_index(key)), kind, f"{name}, column {key!r}")
                for key, kind in columns.items()
            }
            first = num_read + 1
            num_read += batch.num_rows
            yield TableBatch(
                name,
                batch.num_rows,
                arrays,
                "row",
                lambda a=first, b=num_read: np.arange(a, b + 1),  # type: ignore[misc]
            )


def _column(column: Any, kind: str, where: str) -> Any:
    try:
        column = decode_column(column)
        if kind == "text":
            check_texts(column)
    except DataError as error:
        if kind != "any":
            raise DataError(f"{where} {error}") from None
    return column


PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".tsv", ".txt", ".tab", ".edges", ".edgelist")
_PACKED = (".gz", ".bz2", ".xz")
# Refuse to search a whole disk, which takes minutes and has more folders than this.
_MAX_FOLDERS = 50_000


def is_parquet(path: Path) -> bool:
    """Return whether a file name has the extension of a Parquet file."""
    return path.suffix.lower() in PARQUET


def list_table_files(root: Path) -> list[Path]:
    """Return a file, or the table files in a folder, sorted by name.

    Raises DataError if there are none, or the folder has more subfolders than any dataset.
    """
    name = escape_undecodable(str(root))
    if root.is_dir():
        tables = sorted(path for path in _paths_below(root) if os.path.isfile(path) and _is_table(path))
        if not tables:
            raise DataError(f"{name} contains no CSV or Parquet files: pass the table files or their folder")
        return tables
    if not root.exists():
        raise DataError(f"{name} does not exist: pass the path of a table")
    if root.is_fifo():
        raise DataError(f"{name} is a pipe, which can be read only once: write it to a file first")
    return [root]


def _paths_below(root: Path) -> Iterator[Path]:
    for num_folders, (folder, _, names) in enumerate(os.walk(root)):
        if num_folders >= _MAX_FOLDERS:
            raise DataError(
                f"{escape_undecodable(str(root))} contains more than {_MAX_FOLDERS:,} folders: pass the "
                "table files, or a folder with only these files"
            )
        yield from (Path(folder, name) for name in names)


def _is_table(path: Path) -> bool:
    if path.name.startswith((".", "_")):
        return False
    plain = path.with_suffix("") if path.suffix.lower() in _PACKED else path
    return is_parquet(path) or plain.suffix.lower() in _TEXT


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Files with the same columns, read one after the other."""

    paths: Sequence[Path]
    text: CsvDialect

    @property
    def names(self) -> list[str]:
        """Return the names of the files for messages."""
        return [escape_undecodable(str(path)) for path in self.paths]

    @property
    def are_plain(self) -> bool:
        """Return whether no file is compressed."""
        return all(path.suffix.lower() in _TEXT for path in self.paths)

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def columns(self) -> list[str]:
        """Return the column names of the first file."""
        return self._columns(self.paths[0])

    def _columns(self, path: Path) -> list[str]:
        if is_parquet(path):
            return read_parquet_columns(path, escape_undecodable(str(path)))
        return TextFile(path, escape_undecodable(str(path)), self.text).columns()

    def batches(self, kinds: Mapping[str, str]) -> Iterator[TableBatch]:
        """Yield all rows in batches; see `read_csv_batches`."""
        for path, name in zip(self.paths, self.names, strict=True):
            columns = self._columns(path)
            for column in kinds:
                if column not in columns:
                    hint = suggest_name(column, columns)
                    known = ", ".join(map(repr, columns[:20]))
                    raise DataError(f"{name} has no column {column!r}{hint or f': choose one of {known}'}")
            if is_parquet(path):
                yield from read_parquet_batches(path, name, kinds)
            else:
                yield from read_csv_batches(TextFile(path, name, self.text), kinds)

    def locate_rows(self, rows: NDArray[np.int64]) -> list[str]:
        """Return locations such as `edges.csv, line 12` for increasing row numbers that span all files."""
        locations: list[str] = []
        first_row = 0
        for path, name in zip(self.paths, self.names, strict=True):
            if is_parquet(path):
                with open_parquet(path, name) as file:
                    count = file.metadata.num_rows
                lines = (np.arange(1, count + 1) for _ in range(1))
                unit = "row"
            else:
                lines = (block.lines for block in TextFile(path, name, self.text).blocks())
                unit = "line"
            for numbers in lines:
                in_block = rows[(rows >= first_row) & (rows < first_row + len(numbers))]
                locations += [f"{name}, {unit} {numbers[row - first_row]}" for row in in_block]
                first_row += len(numbers)
            if len(locations) == len(rows):
                break
        return locations

    def num_rows(self) -> int | None:
        """Return the number of rows if the file format stores it, otherwise None."""
        if not all(map(is_parquet, self.paths)):
            return None
        total = 0
        for path, name in zip(self.paths, self.names, strict=True):
            with open_parquet(path, name) as file:
                total += file.metadata.num_rows
        return total


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
    """Kinds of the columns: `whole`, `code` (integers, some spelled like 007 or +1), `number`, `text`,
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

    @property
    def decimal(self) -> str:
        """Return the decimal point in strings."""
        return "." if self.dialect is None else self.dialect.decimal

    def min_value(self, column: str) -> int:
        """Return the minimum of the first integers of a column; 0 if all are missing."""
        values, missing, _ = read_whole_numbers(self.rows[column], self.decimal)
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
    raise DataError(f"{escape_undecodable(str(root))} has no rows: add rows, or remove it")


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
    if start.startswith(b"%%MatrixMarket"):
        # Read as a table, its size line would be an edge, and its ids would be one too large.
        raise DataError(
            f"{name} is a Matrix Market file: load it with scipy.io.mmread, and write its row, col and data "
            "as columns of a CSV file"
        )
    file = TextFile(path, name, sniff_dialect(start))
    columns = file.columns()
    if file.dialect.delimiter == " " and "" in columns:
        raise DataError(
            f"{name}: the columns are aligned by runs of spaces: replace each run with one separator, for "
            f"example with sed -E 's/ +/,/g' {shlex.quote(name)} > table.csv"
        )
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

    if is_list_column(column):
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
