"""Files of a table: CSV and Parquet files, and folders of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError, readable
from hyrt.graph.check import nearest
from hyrt.graph.tables.reading.csv_pieces import csv_pieces
from hyrt.graph.tables.reading.parquet_pieces import opened_parquet, parquet_columns, parquet_pieces
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.text_blocks import TextFile
from hyrt.graph.tables.reading.text_form import TextForm

PARQUET = (".parquet", ".pq")
_TEXT = (".csv", ".tsv", ".txt", ".tab", ".edges", ".edgelist")
_PACKED = (".gz", ".bz2", ".xz")
# A whole disk has more folders; searching it would take minutes.
_MAX_FOLDERS = 50_000


def is_parquet(path: Path) -> bool:
    """Return whether a file name is that of a Parquet file."""
    return path.suffix.lower() in PARQUET


def files_of(given: Path) -> list[Path]:
    """Return a file, or the table files in a folder, sorted by name.

    Raises
    ------
    DataError
        If there is none, or the folder has more subfolders than any dataset.
    """
    name = readable(str(given))
    if given.is_dir():
        tables = sorted(path for path in _paths_below(given) if os.path.isfile(path) and _is_table(path))
        if not tables:
            raise DataError(
                f"{name}: no CSV or Parquet files in this folder: give the folder or the files of tables"
            )
        return tables
    if not given.exists():
        raise DataError(f"{name}: no such file or folder: give the path of a table")
    if given.is_fifo():
        raise DataError(f"{name}: a pipe, which can be read only once: write it to a file first")
    return [given]


def _paths_below(root: Path) -> Iterator[Path]:
    for num_folders, (folder, _, names) in enumerate(os.walk(root)):
        if num_folders >= _MAX_FOLDERS:
            raise DataError(
                f"{readable(str(root))}: has more than {_MAX_FOLDERS:,} folders: give the files of the "
                "tables, or a folder that has nothing else"
            )
        yield from (Path(folder, name) for name in names)


def _is_table(path: Path) -> bool:
    if path.name.startswith((".", "_")):
        return False
    plain = path.with_suffix("") if path.suffix.lower() in _PACKED else path
    return is_parquet(path) or plain.suffix.lower() in _TEXT


@dataclass(frozen=True, slots=True)
class TableFiles:
    """Rows of several files with the same columns, one file after the other."""

    paths: Sequence[Path]
    text: TextForm

    @property
    def names(self) -> list[str]:
        """Return the names of the files for messages."""
        return [readable(str(path)) for path in self.paths]

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
            return parquet_columns(path, readable(str(path)))
        return TextFile(path, readable(str(path)), self.text).columns()

    def pieces(self, kinds: Mapping[str, str]) -> Iterator[TablePiece]:
        """Yield all rows in pieces; see `csv_pieces`."""
        for path, name in zip(self.paths, self.names, strict=True):
            columns = self._columns(path)
            for column in kinds:
                if column not in columns:
                    hint = nearest(column, columns)
                    known = ", ".join(map(repr, columns[:20]))
                    raise DataError(f"{name}: has no column {column!r}{hint or f': name one of {known}'}")
            if is_parquet(path):
                yield from parquet_pieces(path, name, kinds)
            else:
                yield from csv_pieces(TextFile(path, name, self.text), kinds)

    def places(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the locations of rows (`edges.csv, line 12`), given their increasing numbers over all files,
        from 0.
        """
        locations: list[str] = []
        first_row = 0
        for path, name in zip(self.paths, self.names, strict=True):
            if is_parquet(path):
                with opened_parquet(path, name) as file:
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
        """Return the number of rows, if the file format stores it, otherwise None."""
        if not all(map(is_parquet, self.paths)):
            return None
        total = 0
        for path, name in zip(self.paths, self.names, strict=True):
            with opened_parquet(path, name) as file:
                total += file.metadata.num_rows
        return total
