"""CSV and Parquet files of a table, read in batches, and a sample of the first rows with the inferred
dialect.
"""

from __future__ import annotations

import codecs
import importlib.util
import itertools
import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, escape_undecodable, system_error_text
from hyrt.formatting import pluralize
from hyrt.graph.check import suggest_name
from hyrt.graph.tables.csv_batches import TextFile, read_csv_batches
from hyrt.graph.tables.schema import CsvDialect, find_separator_line, read_first_lines
from hyrt.graph.tables.table_batch import (
    SEPARATOR_REMEDY,
    TableBatch,
    check_texts,
    decode_column,
    find_separated_number,
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
        return [column for column in _pandas_index(file) if isinstance(column, str)]


def _pandas_index(file: Any) -> list[Any]:
    """Return the parts of the row index of pandas: names of columns, and ranges that are not stored."""
    metadata = (file.schema_arrow.metadata or {}).get(b"pandas")
    try:
        return [] if metadata is None else list(json.loads(metadata)["index_columns"])
    except (ValueError, KeyError, TypeError):
        return []


def _range_index(file: Any) -> tuple[range, str | None] | None:
    """Return the row index of pandas and its name if it is a range that is not stored as a column."""
    for part in _pandas_index(file):
        try:
            numbers = range(part["start"], part["stop"], part["step"])
            name = part.get("name")
        except (ValueError, KeyError, TypeError):
            continue
        # Other programs keep the metadata of a file when they change its rows; pandas then ignores it.
        if len(numbers) == file.metadata.num_rows:
            return numbers, name
    return None


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


PARQUET = (".parquet", ".pq", ".parq")
_TEXT = (".csv", ".tsv", ".txt", ".tab", ".edges", ".edgelist")
_PACKED = (".gz", ".bz2", ".xz")
# Refuse to search a whole disk, which takes minutes and has more folders than this.
_MAX_FOLDERS = 50_000
_OTHER_TABLES = (".dat", ".data", ".arrow", ".feather", ".orc", ".avro", ".jsonl", ".ndjson", ".xlsx", ".xls")
_OTHER_PACKED = (".zip", ".zst", ".lz4", ".snappy", ".sz", ".br")
_UNNAMED_TABLE = re.compile(r"part-.*\d")
"""Name of a file of Hadoop, which has no extension."""
_PARTITION = re.compile(r"([^=]+)=.+")
"""Name of a folder of Spark that stands for a value of a column."""
_LOGS = {"_delta_log": "a Delta Lake", ".hoodie": "a Hudi"}


def is_parquet(path: Path) -> bool:
    """Return whether a file name has the extension of a Parquet file."""
    return path.suffix.lower() in PARQUET


def list_table_files(root: Path) -> list[Path]:
    """Return a file, or the table files in a folder, sorted by name; numbers in names are sorted by value.

    Raises DataError if there are none, the folder has more subfolders than any dataset, or it has tables or
    values of a column that would not be read.
    """
    name = escape_undecodable(str(root))
    if root.is_dir():
        paths = [path for path in _paths_below(root) if os.path.isfile(path)]
        _check_contents(root, paths)
        tables = [path for path in paths if _is_table(root, path)]
        if not tables:
            raise DataError(f"{name} contains no CSV or Parquet files: pass the table files or their folder")
        return sorted(tables, key=_number_key)
    if not root.exists():
        raise DataError(f"{name} does not exist: pass the path of a table")
    if root.is_fifo():
        raise DataError(f"{name} is a pipe, which can be read only once: write it to a file first")
    return [root]


def list_skipped_files(root: Path) -> list[str]:
    """Return the names of the files in a folder that are not read; empty if `root` is a file."""
    paths = sorted(_paths_below(root), key=_number_key) if root.is_dir() else []
    visible = [path for path in paths if not path.name.startswith((".", "_"))]
    return [escape_undecodable(str(path.relative_to(root))) for path in visible if not _is_table(root, path)]


def check_partitions(paths: Sequence[Path], root: Path | None = None) -> None:
    """Raise DataError if folders such as `split=train` have values that the files, below `root`, lack."""
    found = [[_PARTITION.fullmatch(part) for part in path.parent.parts] for path in paths]
    if root is not None:
        found = [parts[len(root.parts) :] for parts in found]
    values = [tuple(part[0] for part in parts if part is not None) for parts in found]
    for path, parts, here in zip(paths, found, values, strict=True):
        columns = [part[1] for part in parts if part is not None]
        if is_parquet(path) and columns:
            stored = read_parquet_columns(path, escape_undecodable(str(path)))
            columns = [column for column in columns if column not in stored]
        if columns and (root is not None or len(set(values)) > 1):
            raise DataError(
                f"{escape_undecodable(str(path))}: the values of {columns[0]!r} are only in the name of the "
                f"folder {here[0]!r}: write the table with this column into one file, for example with "
                "pandas.read_parquet(FOLDER).to_parquet(FILE)"
            )


def _check_contents(root: Path, paths: Sequence[Path]) -> None:
    """Raise DataError if the files in a folder have rows that would not be read, or must not be read."""
    for path in paths:
        name = escape_undecodable(str(path))
        parts = path.relative_to(root).parts
        kinds = [kind for log, kind in _LOGS.items() if log in parts]
        kinds += ["an Iceberg"] if "metadata" in parts and path.name.endswith(".metadata.json") else []
        if kinds:
            raise DataError(
                f"{escape_undecodable(str(root))} is {kinds[0]} table, whose folder also has deleted rows: "
                "read it with its library, and write the rows to a Parquet file"
            )
        if not _is_hidden(parts) and not _is_table(root, path) and _may_be_table(path):
            raise DataError(
                f"{name} looks like a table, but this format is not supported: write it as CSV (.csv or "
                ".csv.gz) or Parquet (.parquet), or move it to another folder"
            )
    tables = sorted(path for path in paths if _is_table(root, path))
    check_partitions(tables, root)
    by_stem: dict[Path, Path] = {}
    for path in tables:
        plain = path.with_suffix("") if path.suffix.lower() in _PACKED else path
        other = by_stem.setdefault(plain.with_suffix(""), path)
        if other != path:
            raise DataError(
                f"{escape_undecodable(str(other))} and {escape_undecodable(path.name)} seem to be copies of "
                "one table, whose rows would be read twice: remove one of them, or rename it"
            )


def _may_be_table(path: Path) -> bool:
    """Return whether a file has the name of a table in a form that is not read."""
    is_packed = path.suffix.lower() in (*_PACKED, *_OTHER_PACKED)
    plain = path.with_suffix("") if is_packed else path
    if not plain.suffix:
        return _UNNAMED_TABLE.fullmatch(plain.name) is not None or (
            is_packed and path.suffix.lower() != ".zip"
        )
    return plain.suffix.lower() in (*_TEXT, *PARQUET, *_OTHER_TABLES)


def _is_hidden(parts: Sequence[str]) -> bool:
    """Return whether programs such as Spark ignore a file or its folder."""
    return any(part.startswith((".", "_")) for part in parts)


_DIGITS = re.compile(r"([0-9]+)")


def _number_key(path: Path) -> tuple[list[list[str | int]], Path]:
    """Return a key that sorts part-2 before part-10."""
    parts = [
        [int(piece) if number % 2 else piece for number, piece in enumerate(_DIGITS.split(part))]
        for part in path.parts
    ]
    return parts, path


def have_numbered_names(paths: Sequence[Path]) -> bool:
    """Return whether names of files differ only in their numbers, which define an order."""
    return len({_DIGITS.sub("0", str(path)) for path in paths}) <= 1


def _paths_below(root: Path) -> Iterator[Path]:
    for num_folders, (folder, _, names) in enumerate(os.walk(root)):
        if num_folders >= _MAX_FOLDERS:
            raise DataError(
                f"{escape_undecodable(str(root))} contains more than {_MAX_FOLDERS:,} folders: pass the "
                "table files, or a folder with only these files"
            )
        yield from (Path(folder, name) for name in names)


def is_text_table(path: Path) -> bool:
    """Return whether a file name has the extension of a text table, which may be compressed."""
    plain = path.with_suffix("") if path.suffix.lower() in _PACKED else path
    return plain.suffix.lower() in _TEXT


def _is_table(root: Path, path: Path) -> bool:
    return not _is_hidden(path.relative_to(root).parts) and (is_parquet(path) or is_text_table(path))


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Files with the same columns, read one after the other."""

    paths: Sequence[Path]
    text: CsvDialect
    has_order: bool = True
    """Whether the user has listed the files, or numbers in their names define their order."""

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
        return self.columns_of(self.paths[0])

    def columns_of(self, path: Path) -> list[str]:
        """Return the column names of a file."""
        if is_parquet(path):
            return read_parquet_columns(path, escape_undecodable(str(path)))
        return self._text_file(path).columns()

    def _text_file(self, path: Path) -> TextFile:
        """Return a CSV file with its dialect, which may have another delimiter than that of the first file.

        Raises DataError if the first file has column names and this file has other names or none, or the
        reverse.
        """
        name = escape_undecodable(str(path))
        file = _follow_separator_line(TextFile(path, name, self.text))
        texts = [other for other in self.paths if not is_parquet(other)]
        if path == texts[0]:
            return file
        first = _follow_separator_line(TextFile(texts[0], escape_undecodable(str(texts[0])), self.text))
        expected, columns = first.columns(), file.columns()
        if not self.text.header:
            _check_without_names(first, file)
        elif not set(expected) & set(columns):
            found = read_first_lines(file.start(_START)).dialect
            changed = {"delimiter": found.delimiter, "quote": found.quote}
            file = TextFile(path, name, self.text.model_copy(update=changed))
            if not set(expected) & set(file.columns()):
                raise DataError(
                    f"{name}, line 1: {_join(columns)} are not the column names of {first.name} "
                    f"({_join(expected)}): write the same column names in the first line of both files"
                )
        return file

    def batches(self, kinds: Mapping[str, str]) -> Iterator[TableBatch]:
        """Yield all rows in batches; see `read_csv_batches`."""
        for path, name in zip(self.paths, self.names, strict=True):
            columns = self.columns_of(path)
            for column in kinds:
                if column not in columns:
                    hint = suggest_name(column, columns)
                    known = ", ".join(map(repr, columns[:20]))
                    raise DataError(f"{name} has no column {column!r}{hint or f': choose one of {known}'}")
            if is_parquet(path):
                yield from read_parquet_batches(path, name, kinds)
            else:
                yield from read_csv_batches(self._text_file(path), kinds)

    def describe_comments(self) -> Iterator[str]:
        """Yield a line about skipped comments if there are any."""
        texts = [path for path in self.paths if not is_parquet(path)]
        if count := sum(self._text_file(path).count_comments() for path in texts):
            yield (
                f"{self.names[0]}: {pluralize(count, 'line')} above the rows skipped as comments, because "
                "they begin with # or %: if they are rows, write their first value in quotes"
            )

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
                lines = (block.lines for block in self._text_file(path).blocks())
                unit = "line"
            for numbers in lines:
                in_block = rows[(rows >= first_row) & (rows < first_row + len(numbers))]
                locations += [f"{name}, {unit} {numbers[row - first_row]}" for row in in_block]
                first_row += len(numbers)
            if len(locations) == len(rows):
                break
        return locations

    def describe_order(self) -> str | None:
        """Return a line about the order of several files whose rows have no ids; None for one file.

        Raises DataError if the order is not clear.
        """
        if len(self.paths) < 2:
            return None
        first, last = self.names[0], self.paths[-1].name
        if not self.has_order:
            raise DataError(
                f"{first} and {len(self.paths) - 1} more: vertices without ids are numbered in the order of "
                "the files, which their names do not define: add an id column, or pass the files one by one "
                "in the right order"
            )
        for path, later in itertools.pairwise(self.paths):
            if have_numbered_names([path, later]) and _number_key(path) > _number_key(later):
                raise DataError(
                    f"{escape_undecodable(str(path))} comes before {escape_undecodable(later.name)}, but "
                    "vertices without ids are numbered in the order of the files: pass the files in the "
                    "order of their numbers, or add an id column"
                )
        second = "" if len(self.paths) == 2 else f"{escape_undecodable(self.paths[1].name)} ... "
        return (
            f"{first}: vertices are numbered in the order of the {len(self.paths):,} files "
            f"({escape_undecodable(self.paths[0].name)}, {second}{escape_undecodable(last)}): if this order "
            "is wrong, add an id column"
        )

    def check_row_index(self, first_id: int) -> None:
        """Raise DataError if the row index of pandas has ids that are neither a column nor the row numbers.

        Ids start at `first_id`.
        """
        num_read = 0
        for path, name in zip(self.paths, self.names, strict=True):
            if not is_parquet(path):
                continue
            with open_parquet(path, name) as file:
                count, found = file.metadata.num_rows, _range_index(file)
            if found is not None:
                numbers, column = found
                starts = {first_id + num_read} | ({0, num_read} if column is None else set())
                if numbers not in [range(start, start + count) for start in starts]:
                    raise DataError(
                        f"{name}: the row index of pandas{f' ({column!r})' if column else ''} is from "
                        f"{numbers[0]:,} to {numbers[-1]:,}, and no column contains ids: write the index as "
                        "a column with reset_index(), or drop it with reset_index(drop=True) if vertices are "
                        "in the order of the rows"
                    )
            num_read += count

    def num_rows(self) -> int | None:
        """Return the number of rows if the file format stores it, otherwise None."""
        if not all(map(is_parquet, self.paths)):
            return None
        total = 0
        for path, name in zip(self.paths, self.names, strict=True):
            with open_parquet(path, name) as file:
                total += file.metadata.num_rows
        return total


def _follow_separator_line(file: TextFile) -> TextFile:
    """Return a file with the delimiter of its first line if that is `sep=;`."""
    line = file.start(_START).removeprefix(codecs.BOM_UTF8).partition(b"\n")[0]
    delimiter = find_separator_line(line)
    if delimiter is None:
        return file
    return TextFile(file.path, file.name, file.dialect.model_copy(update={"delimiter": delimiter}))


def _check_without_names(first: TextFile, file: TextFile) -> None:
    """Raise DataError if a file has another form than the first file, whose columns have no names."""
    samples = [read_first_lines(some.start(_START)) for some in (first, file)]
    delimiters = [sample.dialect.delimiter for sample in samples]
    line = f"{file.name}, line {samples[1].first_line}"
    remedy = f"use the same form as in {first.name}, or write column names in all files"
    if delimiters[0] != delimiters[1]:
        raise DataError(
            f"{line}: values seem to be separated by {delimiters[1]!r} instead of {delimiters[0]!r}: {remedy}"
        )
    if samples[1].has_names() and not samples[0].has_names():
        raise DataError(f"{line}: {_join(samples[1].rows[0])} seem to be column names: {remedy}")
    widths = [len(some.columns()) for some in (first, file)]
    if widths[0] != widths[1]:
        raise DataError(f"{line} has {widths[1]} columns instead of {widths[0]}: {remedy}")


def _join(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:8])) + (" ..." if len(names) > 8 else "")


_BYTES = 1 << 18
_START = 1 << 14
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
    problem: str | None = None
    """Reason if the first line is probably not read correctly."""

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

    def check_separators(self, columns: Sequence[str]) -> None:
        """Raise DataError if a column would be read as text because its numbers have separators."""
        for column in columns:
            if self.columns[column] != "text":
                continue
            number = find_separated_number(self.rows[column], self.decimal)
            if number is not None:
                raise DataError(
                    f"{self.name}, column {column!r}: {number!r} is not a number with the decimal point "
                    f"{self.decimal!r}: {SEPARATOR_REMEDY[0].lower()}{SEPARATOR_REMEDY[1:]}"
                )

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
            _check_folder(paths, found)
            return found
    raise DataError(f"{escape_undecodable(str(root))} has no rows: add rows, or remove it")


def _check_folder(paths: list[Path], sample: TableSample) -> None:
    """Raise DataError if the files of a folder have different columns; their order may differ."""
    files = TableFiles(paths, sample.dialect or CsvDialect())
    for path in paths if len(paths) > 1 else []:
        if sorted(columns := files.columns_of(path)) != sorted(sample.columns):
            raise DataError(
                f"{escape_undecodable(str(path))} has the columns {_join(columns)}, but other files in "
                f"{sample.name} have {_join(list(sample.columns))}: put the files of each table into a "
                "separate folder, or pass the files one by one"
            )


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
    first = read_first_lines(start)
    file = TextFile(path, name, first.dialect)
    columns = file.columns()
    if file.dialect.delimiter == " " and "" in columns:
        raise DataError(
            f"{name}: the columns are aligned by runs of spaces: replace each run with one separator, for "
            f"example with sed -E 's/ +/,/g' {shlex.quote(name)} > table.csv"
        )
    problem = first.find_problem()
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
        problem=None if problem is None else f"{name}, line {first.first_line}: {problem}",
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
