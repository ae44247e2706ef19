"""What an import says of values that it reads as something else than they stand there."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

from hyrt.graph.tables.ids.vertex_names import VertexNames
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.quantities import counted

_SHOWN = 5


class ReadingNotes:
    """Counts removed padding and missing values, by table and column."""

    def __init__(self) -> None:
        self._padded: Counter[str] = Counter()
        self._rows: Counter[str] = Counter()
        self._missing: dict[tuple[str, str], Counter[str]] = {}
        self._lines: list[str] = []

    def add(self, table: str, piece: TablePiece, columns: Iterable[str] = ()) -> None:
        """Count what was removed from a piece, and what is missing in columns that may have gaps.

        Parameters
        ----------
        table
            The name of the table for messages.
        piece
            The piece.
        columns
            The columns.
        """
        self._padded[table] += piece.padded
        self._rows[table] += piece.num_rows
        for column in columns:
            values = piece.columns[column]
            if not values.null_count:
                continue
            words = self._missing.setdefault((table, column), Counter())
            if column in piece.as_written:
                words.update(piece.as_written[column].filter(values.is_null()).to_pylist())
            else:
                words[""] += values.null_count

    def add_line(self, line: str) -> None:
        """Add a line of another kind."""
        self._lines.append(line)

    def add_padded(self, what: str, names: VertexNames) -> None:
        """Note names that differ from others only by spaces around them, as in quotes or in Parquet files."""
        pairs = list(itertools.islice(names.padded(), _SHOWN))
        if pairs:
            shown = ", ".join(f"{name!r} and {other!r}" for name, other in pairs)
            self._lines.append(
                f"some {what} differ only by spaces around them ({shown}): if they are the same, remove the "
                "spaces from the file"
            )

    def lines(self) -> Iterator[str]:
        """Return the lines to print."""
        for table, count in self._padded.items():
            if count:
                yield (
                    f"{table}: spaces or tabs around {counted(count, 'value')} are removed (within quotes, "
                    "they would stay)"
                )
        for (table, column), words in self._missing.items():
            shown = [
                f"{repr(word) if word else 'empty'} {count:,}" for word, count in words.most_common(_SHOWN)
            ]
            line = (
                f"{table}, column {column!r}: {words.total():,} of {self._rows[table]:,} values count as "
                f"missing ({', '.join(shown)})"
            )
            if set(words) - {""}:
                line += ": if one of these is a value, leave it out of text.nulls in a schema"
            yield line
        yield from self._lines
