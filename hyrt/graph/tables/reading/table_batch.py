"""Batch of consecutive table rows, and a collector of errors in them."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize, short_repr


@dataclass(frozen=True, slots=True)
class UnreadableRow:
    """Line that is not a row of the table."""

    place: int
    """Line number, from 1."""
    problem: str
    """The problem, as the end of a sentence."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Consecutive rows of a file."""

    name: str
    """Name of the file in messages."""
    num_rows: int
    columns: Mapping[str, Any]
    """Arrow arrays [n] by column name: numbers, or strings as written in the file."""
    unit: str
    """Unit of `places`: `line` or `row`."""
    places: Callable[[], NDArray[np.int64]]
    """Return the line or row number [n] of each row in its file, from 1."""
    bad: Sequence[UnreadableRow] = ()
    """Rows that were dropped because they cannot be parsed."""
    padded: int = 0
    """Number of values from which surrounding spaces or tabs were removed."""
    as_written: Mapping[str, Any] = field(default_factory=dict)
    """Original strings [n] of the columns with missing values, which are null in `columns`."""

    __repr__ = short_repr


MAX_SHOWN = 20
_SHOWN_LETTERS = 60


class RowProblems:
    """Collector of errors in table rows."""

    def __init__(self) -> None:
        self.total = 0
        self._lines: list[str] = []
        self._remedies: dict[str, None] = {}

    def add_unreadable(self, piece: TableBatch) -> None:
        """Add the rows that could not be parsed."""
        for row in piece.bad:
            self._add(f"{piece.name}, {piece.unit} {row.place}: {row.problem}")

    def add(
        self, piece: TableBatch, column: str, wrong: NDArray[np.bool_], problem: str, remedy: str
    ) -> None:
        """Add the values in a column of a batch where the mask `wrong` [n] is set.

        `problem` completes a sentence, such as `is not a whole number`; `remedy` is a sentence.
        """
        rows = np.flatnonzero(wrong)
        if not len(rows):
            return
        num_shown = max(0, MAX_SHOWN - len(self._lines))
        if num_shown:
            places, values = piece.places(), piece.columns[column]
            as_written = piece.as_written.get(column, values)
            for row in rows[:num_shown].tolist():
                value, word = values[row].as_py(), as_written[row].as_py()
                description = (
                    f"{word!r} counts as missing" if value is None and word else _describe(value, problem)
                )
                self._add(f"{piece.name}, {piece.unit} {places[row]}, column {column!r}: {description}")
        self.total += max(0, len(rows) - num_shown)
        self._remedies[remedy] = None

    def add_line(self, line: str, remedy: str) -> None:
        """Add one error by its complete description."""
        self._add(line)
        self._remedies[remedy] = None

    def _add(self, line: str) -> None:
        self.total += 1
        if len(self._lines) < MAX_SHOWN:
            self._lines.append(line)

    def check(self) -> None:
        """Raise DataError if there were errors: the first wrong rows, the total number, and the remedies."""
        if not self.total:
            return
        lines = [
            f"{pluralize(self.total, 'value or row is', 'values or rows are')} wrong; nothing is written"
        ]
        lines += [f"  {line}" for line in self._lines]
        if self.total > len(self._lines):
            lines.append(f"  and {self.total - len(self._lines):,} more")
        lines += list(self._remedies)
        error = DataError("\n".join(lines))
        error.is_multiline = True
        raise error


def escaped(value: object) -> str:
    """Format a value as a literal, with ASCII escapes if it is a string with decomposed characters."""
    is_plain = not isinstance(value, str) or unicodedata.is_normalized("NFC", value)
    return repr(value) if is_plain else ascii(value)


def _describe(value: Any, problem: str) -> str:
    if value is None:
        return "the value is missing"
    text = escaped(value)
    return f"{text if len(text) <= _SHOWN_LETTERS else f'{text[:_SHOWN_LETTERS]}...'} {problem}"
