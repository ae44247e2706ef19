"""CSV and Parquet files of a table, and folders of them, read in batches."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, escape_undecodable, system_error_text
from hyrt.graph.check import suggest_name
from hyrt.graph.tables.reading.csv_batches import TextFile, read_csv_batches
from hyrt.graph.tables.reading.table_batch import TableBatch
from hyrt.graph.tables.reading.values import check_texts, decode_column
from hyrt.graph.tables.schema import CsvDialect


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
        raise DataError(f"{name}: no Parquet file, or damaged ({reason}): copy or write it again") from error
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
            raise DataError(f"{where}: {error}") from None
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
            raise DataError(
                f"{name}: no CSV or Parquet files in this folder: give the folder or the files of tables"
            )
        return tables
    if not root.exists():
        raise DataError(f"{name}: no such file or folder: give the path of a table")
    if root.is_fifo():
        raise DataError(f"{name}: a pipe, which can be read only once: write it to a file first")
    return [root]


def _paths_below(root: Path) -> Iterator[Path]:
    for num_folders, (folder, _, names) in enumerate(os.walk(root)):
        if num_folders >= _MAX_FOLDERS:
            raise DataError(
                f"{escape_undecodable(str(root))}: has more than {_MAX_FOLDERS:,} folders: give the files "
                "of the tables, or a folder that has nothing else"
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
                    raise DataError(f"{name}: has no column {column!r}{hint or f': name one of {known}'}")
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
