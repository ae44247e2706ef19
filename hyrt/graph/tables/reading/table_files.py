"""The files of a table: CSV and Parquet files, and folders of them."""

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
# Of a whole disk; a search of it would take minutes.
_MOST_FOLDERS = 50_000


def is_parquet(path: Path) -> bool:
    """Whether a file of this name is one of Parquet."""
    return path.suffix.lower() in PARQUET


def files_of(given: Path) -> list[Path]:
    """A file, or the files of tables in a folder, in the order of their names.

    Raises
    ------
    DataError
        If there is none, or the folder has more folders than any dataset.
    """
    name = readable(str(given))
    if given.is_dir():
        found = sorted(path for path in _paths_below(given) if os.path.isfile(path) and _is_table(path))
        if not found:
            raise DataError(
                f"{name}: no CSV or Parquet files in this folder: give the folder or the files of tables"
            )
        return found
    if not given.exists():
        raise DataError(f"{name}: no such file or folder: give the path of a table")
    if given.is_fifo():
        raise DataError(f"{name}: a pipe, which can be read only once: write it to a file first")
    return [given]


def _paths_below(given: Path) -> Iterator[Path]:
    for looked_at, (folder, _, names) in enumerate(os.walk(given)):
        if looked_at >= _MOST_FOLDERS:
            raise DataError(
                f"{readable(str(given))}: has more than {_MOST_FOLDERS:,} folders: give the files of the "
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
    """The rows of several files of the same columns, one file after the other."""

    paths: Sequence[Path]
    text: TextForm

    @property
    def names(self) -> list[str]:
        """The names of the files for messages."""
        return [readable(str(path)) for path in self.paths]

    @property
    def are_plain(self) -> bool:
        """Whether no file is packed."""
        return all(path.suffix.lower() in _TEXT for path in self.paths)

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.paths)

    def columns(self) -> list[str]:
        """The names of the columns of the first file."""
        return self._columns(self.paths[0])

    def _columns(self, path: Path) -> list[str]:
        if is_parquet(path):
            return parquet_columns(path, readable(str(path)))
        return TextFile(path, readable(str(path)), self.text).columns()

    def pieces(self, kinds: Mapping[str, str]) -> Iterator[TablePiece]:
        """All rows, piece by piece; see `csv_pieces`."""
        for path, name in zip(self.paths, self.names, strict=True):
            columns = self._columns(path)
            for wanted in kinds:
                if wanted not in columns:
                    hint = nearest(wanted, columns)
                    known = ", ".join(map(repr, columns[:20]))
                    raise DataError(f"{name}: has no column {wanted!r}{hint or f': name one of {known}'}")
            if is_parquet(path):
                yield from parquet_pieces(path, name, kinds)
            else:
                yield from csv_pieces(TextFile(path, name, self.text), kinds)

    def places(self, rows: NDArray[np.int64]) -> list[str]:
        """Where rows are (`edges.csv, line 12`), by their numbers from 0 over all files, in rising order."""
        found: list[str] = []
        at = 0
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
                here = rows[(rows >= at) & (rows < at + len(numbers))]
                found += [f"{name}, {unit} {numbers[row - at]}" for row in here]
                at += len(numbers)
            if len(found) == len(rows):
                break
        return found

    def num_rows(self) -> int | None:
        """The number of rows, where files say it."""
        if not all(map(is_parquet, self.paths)):
            return None
        total = 0
        for path, name in zip(self.paths, self.names, strict=True):
            with opened_parquet(path, name) as file:
                total += file.metadata.num_rows
        return total
