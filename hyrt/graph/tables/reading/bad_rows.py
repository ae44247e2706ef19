"""All rows of tables that are wrong: counted, and the first of them named."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.quantities import counted

MOST_SHOWN = 20
_SHOWN_LETTERS = 60


class BadRows:
    """Collects what is wrong with rows."""

    def __init__(self) -> None:
        self.total = 0
        """How many things are wrong."""
        self._lines: list[str] = []
        self._remedies: dict[str, None] = {}

    def add_unreadable(self, piece: TablePiece) -> None:
        """The rows that a piece left out."""
        for row in piece.bad:
            self._add(f"{piece.name}, {piece.unit} {row.place}: {row.problem}")

    def add(
        self, piece: TablePiece, column: str, wrong: NDArray[np.bool_], problem: str, remedy: str
    ) -> None:
        """Rows of a piece.

        Parameters
        ----------
        piece
            The piece.
        column
            The name of the column that has what is wrong.
        wrong
            [n] whether each row is.
        problem
            What the value is (`is no whole number`).
        remedy
            What to do, as a sentence.
        """
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        room = max(0, MOST_SHOWN - len(self._lines))
        if room:
            places, values = piece.places(), piece.columns[column]
            as_written = piece.as_written.get(column, values)
            for row in rows[:room].tolist():
                value, word = values[row].as_py(), as_written[row].as_py()
                problem_here = (
                    f"{word!r} counts as missing" if value is None and word else _told(value, problem)
                )
                self._add(f"{piece.name}, {piece.unit} {places[row]}, column {column!r}: {problem_here}")
        self.total += max(0, len(rows) - room)
        self._remedies[remedy] = None

    def add_line(self, line: str, remedy: str) -> None:
        """One thing that is wrong, told in full."""
        self._add(line)
        self._remedies[remedy] = None

    def _add(self, line: str) -> None:
        self.total += 1
        if len(self._lines) < MOST_SHOWN:
            self._lines.append(line)

    def check(self) -> None:
        """See that nothing was wrong.

        Raises
        ------
        DataError
            Naming the first rows, how many there are, and what to do.
        """
        if not self.total:
            return
        lines = [f"{counted(self.total, 'value or row is', 'values or rows are')} wrong; nothing is written"]
        lines += [f"  {line}" for line in self._lines]
        if self.total > len(self._lines):
            lines.append(f"  and {self.total - len(self._lines):,} more")
        lines += list(self._remedies)
        error = DataError("\n".join(lines))
        error.has_lines = True
        raise error


def escaped(value: object) -> str:
    """Return a value as in a program, with escapes if it does not look like what it is."""
    is_plain = not isinstance(value, str) or unicodedata.is_normalized("NFC", value)
    return repr(value) if is_plain else ascii(value)


def _told(value: Any, problem: str) -> str:
    if value is None:
        return "the value is missing"
    text = escaped(value)
    return f"{text if len(text) <= _SHOWN_LETTERS else f'{text[:_SHOWN_LETTERS]}...'} {problem}"
