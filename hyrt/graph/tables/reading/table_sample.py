"""The first rows of a table, and what its columns have in them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt.errors import DataError, readable
from hyrt.graph.tables.reading.csv_pieces import csv_pieces
from hyrt.graph.tables.reading.guess_form import guess_form
from hyrt.graph.tables.reading.parquet_pieces import parquet_columns, parquet_pieces
from hyrt.graph.tables.reading.table_files import files_of, is_parquet
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.text_blocks import TextFile
from hyrt.graph.tables.reading.text_form import TextForm
from hyrt.graph.tables.reading.values import matrix, real_numbers, whole_numbers

_BYTES = 1 << 18
_MOST_WRONG = 0.2
"""The part of values that may be no numbers in a column of numbers."""


@dataclass(frozen=True, slots=True)
class TableSample:
    """The first rows of a file, or of the first one in a folder."""

    path: Path
    """The file or the folder, as it was given."""
    form: TextForm | None
    """How it is written; None for Parquet."""
    columns: dict[str, str]
    """For each column `whole`, `number`, `text`, `list` (of numbers), or `none` where all is missing or of
    another kind."""
    rows: dict[str, Any]
    """The first values of each column, as Arrow has them."""

    @property
    def name(self) -> str:
        return readable(str(self.path))

    @property
    def given(self) -> str:
        """What a schema calls it."""
        return self.path.name or self.path.resolve().name

    def values(self, column: str) -> list[Any]:
        """The first values of a column, those of texts as they stand there."""
        found: list[Any] = self.rows[column].to_pylist()
        return found

    def least(self, column: str) -> int:
        """The least of the first whole numbers of a column; 0 where all are missing."""
        values, missing, _ = whole_numbers(self.rows[column], "." if self.form is None else self.form.decimal)
        return int(values[~missing].min(initial=2**62)) if (~missing).any() else 0


def sample_of(given: Path) -> TableSample:
    """Read the first rows of a file, or of the first one in a folder that has any.

    Raises
    ------
    DataError
        If it is missing, empty, damaged, or has columns of one name.
    """
    for path in files_of(given):
        if (found := _sample_of(path, given)) is not None:
            return found
    raise DataError(f"{readable(str(given))}: has no rows: fill it, or leave it out")


def _sample_of(path: Path, given: Path) -> TableSample | None:
    """The first rows of a file, where it has any."""
    name = readable(str(path))
    if is_parquet(path):
        columns = parquet_columns(path, name)
        piece = next(parquet_pieces(path, name, dict.fromkeys(columns, "text")), None)
        return _sample(given, None, columns, piece)
    file = TextFile(path, name, TextForm())
    file = TextFile(path, name, guess_form(file.start(_BYTES)))
    columns = file.columns()
    pieces = csv_pieces(file, dict.fromkeys(columns, "text"), block_bytes=_BYTES, most_blocks=1)
    return _sample(given, file.form, columns, next(pieces, None))


def _sample(
    given: Path, form: TextForm | None, columns: list[str], piece: TablePiece | None
) -> TableSample | None:
    if piece is None or not (piece.num_rows or piece.bad):
        return None
    decimal = "." if form is None else form.decimal
    kinds = {column: _kind(piece.columns[column], decimal) for column in columns}
    return TableSample(given, form, kinds, dict(piece.columns))


def _kind(column: Any, decimal: str) -> str:
    import pyarrow as pa

    if matrix(column) is not None:
        return "list"
    if column.null_count == len(column):
        return "none"
    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    is_text = pa.types.is_string(plain.type) or pa.types.is_large_string(plain.type)
    for kind, read in (("whole", whole_numbers), ("number", real_numbers)):
        _, missing, bad = read(plain, decimal)
        # A few others among many numbers are mistakes, of which the import tells.
        if bad.sum() <= _MOST_WRONG * (~missing).sum():
            return kind
    return "text" if is_text else "none"
