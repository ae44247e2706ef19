"""Selection of columns by name patterns, and feature matrices from several columns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import suggest_name
from hyrt.graph.tables.reading.table_batch import RowProblems, TableBatch
from hyrt.graph.tables.reading.values import read_list_matrix, read_real_numbers
from hyrt.graph.tables.vertex_ids import NameIndex

FLOAT32_MAX = float(np.finfo(np.float32).max)
_ROW_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Columns that pandas writes for an unnamed index."""


def match_columns(
    patterns: Sequence[str], columns: Sequence[str], name: str, taken: Collection[str] = ()
) -> list[str]:
    """Return the columns that match names or patterns with `*`, in the order of the patterns, without
    duplicates.

    Patterns match neither `taken` columns, which have another role, nor the row index of pandas. `name` is
    the file's name in messages. Raises DataError if a name or pattern matches no column.
    """
    selected: dict[str, None] = {}
    for pattern in patterns:
        matches = (
            [pattern]
            if pattern in columns
            else [
                column
                for column in columns
                if column not in taken and not _ROW_INDEX.fullmatch(column) and fnmatchcase(column, pattern)
            ]
        )
        if not matches:
            known = ", ".join(map(repr, columns[:20]))
            raise DataError(
                f"{name}: has no column "
                f"{pattern!r}{suggest_name(pattern, columns) or f': name one of {known}'}"
            )
        selected |= dict.fromkeys(matches)
    return list(selected)


class FeatureColumns:
    """Feature rows from columns of numbers, or of lists of numbers.

    `decimal` is the decimal point in strings. `fill` replaces missing values; None reports them as errors,
    which name `fill_setting` as the remedy unless it is empty.
    """

    def __init__(self, columns: Sequence[str], decimal: str, fill: float | None, fill_setting: str) -> None:
        self._columns = columns
        self._decimal = decimal
        self._fill = fill
        self._where = fill_setting
        self._widths: dict[str, int] = {}
        self.filled = 0
        """Number of missing values that were replaced."""

    def rows(self, piece: TableBatch, bad: RowProblems) -> NDArray[np.float32]:
        """Return the features [n, width] of a batch; the first batch determines the length of lists."""
        parts = [self._column_values(piece, column, bad) for column in self._columns]
        # Values beyond float32 are reported as wrong values.
        with np.errstate(over="ignore"):
            return np.concatenate(parts, axis=1).astype(np.float32)

    def names(self) -> list[str]:
        """Return a name for each column of the matrix; call this after reading rows."""
        lists = self._widths
        return [
            name if name not in lists else f"{name}[{at}]"
            for name in self._columns
            for at in range(lists.get(name, 1))
        ]

    def _column_values(self, piece: TableBatch, column: str, bad: RowProblems) -> NDArray[Any]:
        lists = read_list_matrix(piece.columns[column])
        if lists is None:
            values, missing, wrong = read_real_numbers(piece.columns[column], self._decimal)
            values = values[:, None]
        else:
            values, missing, wrong = lists
            width = self._widths.setdefault(column, values.shape[1])
            if values.shape[1] != width:
                if len(values):
                    bad.add(
                        piece,
                        column,
                        np.ones(len(values), np.bool_),
                        f"has not {width} numbers, as earlier rows have",
                        "Give lists of one length",
                    )
                return np.zeros((len(values), width))
        remedy = "Give a number in each of these rows, or leave the column out of the features"
        fill = f", or what stands for a missing one: {self._where} in the schema" if self._where else ""
        wrong = wrong | (np.abs(values) > FLOAT32_MAX).any(axis=1)
        bad.add(piece, column, wrong, "is not a number that float32 holds", remedy)
        if missing.any():
            if self._fill is None:
                bad.add(piece, column, missing & ~wrong, "is not a feature", remedy + fill)
            else:
                self.filled += int(np.isnan(values[~wrong]).sum())
                values = np.where(np.isnan(values), self._fill, values)
        return values


def sort_names(names: NameIndex) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names in order (integers by value), and the position [n] of each name in that order."""
    all_names = [name for block in names.blocks() for name in block]
    try:
        keys: list[Any] = [(int(name), name) for name in all_names]
    except ValueError:
        keys = all_names
    order = sorted(range(len(all_names)), key=keys.__getitem__)
    places = np.empty(len(all_names), np.int64)
    places[order] = np.arange(len(all_names))
    return [all_names[i] for i in order], places
