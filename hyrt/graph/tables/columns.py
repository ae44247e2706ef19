"""Several columns as one matrix, and names of columns by patterns."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.check import nearest
from hyrt.graph.tables.ids.vertex_names import VertexNames
from hyrt.graph.tables.reading.bad_rows import BadRows
from hyrt.graph.tables.reading.table_piece import TablePiece
from hyrt.graph.tables.reading.values import matrix, real_numbers

LARGEST = float(np.finfo(np.float32).max)
_ROW_INDEX = re.compile(r"__index_level_\d+__|Unnamed: \d+|")
"""Columns that pandas writes for an index without a name."""


def matching(
    patterns: Sequence[str], columns: Sequence[str], name: str, taken: Collection[str] = ()
) -> list[str]:
    """The columns that names or patterns mean, in the order of the patterns, each once.

    Parameters
    ----------
    patterns
        Names of columns, or patterns with `*` in them. They do not mean what pandas writes for the index of
        the rows.
    columns
        All columns.
    name
        The file's name for messages.
    taken
        Columns that are something else, and that patterns do not mean.

    Raises
    ------
    DataError
        If one means none.
    """
    found: dict[str, None] = {}
    for pattern in patterns:
        some = (
            [pattern]
            if pattern in columns
            else [
                each
                for each in columns
                if each not in taken and not _ROW_INDEX.fullmatch(each) and fnmatchcase(each, pattern)
            ]
        )
        if not some:
            known = ", ".join(map(repr, columns[:20]))
            raise DataError(
                f"{name}: has no column {pattern!r}{nearest(pattern, columns) or f': name one of {known}'}"
            )
        found |= dict.fromkeys(some)
    return list(found)


class FeatureColumns:
    """Rows of features from columns of numbers, or of lists of numbers.

    Parameters
    ----------
    columns
        The names of the columns.
    decimal
        The decimal point of texts.
    fill
        What stands in the place of what is missing; None takes that for an error.
    where
        The setting that fills, for messages; empty where there is none.
    """

    def __init__(self, columns: Sequence[str], decimal: str, fill: float | None, where: str) -> None:
        self._columns = columns
        self._decimal = decimal
        self._fill = fill
        self._where = where
        self._widths: dict[str, int] = {}
        self.filled = 0
        """How many missing values were filled."""

    def rows(self, piece: TablePiece, bad: BadRows) -> NDArray[np.float32]:
        """[n, width] of a piece; the first one says how long lists are."""
        parts = [self._of(piece, column, bad) for column in self._columns]
        # What is too large is told as a wrong value.
        with np.errstate(over="ignore"):
            return np.concatenate(parts, axis=1).astype(np.float32)

    def names(self) -> list[str]:
        """Return a name for each column of the matrix, once rows were read."""
        lists = self._widths
        return [
            name if name not in lists else f"{name}[{at}]"
            for name in self._columns
            for at in range(lists.get(name, 1))
        ]

    def _of(self, piece: TablePiece, column: str, bad: BadRows) -> NDArray[Any]:
        lists = matrix(piece.columns[column])
        if lists is None:
            values, missing, wrong = real_numbers(piece.columns[column], self._decimal)
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
        wrong = wrong | (np.abs(values) > LARGEST).any(axis=1)
        bad.add(piece, column, wrong, "is not a number that float32 holds", remedy)
        if missing.any():
            if self._fill is None:
                bad.add(piece, column, missing & ~wrong, "is not a feature", remedy + fill)
            else:
                self.filled += int(np.isnan(values[~wrong]).sum())
                values = np.where(np.isnan(values), self._fill, values)
        return values


def ordered_names(names: VertexNames) -> tuple[list[str], NDArray[np.int64]]:
    """Names in order, whole numbers by value, and [n] the place of each in it."""
    found = [name for block in names.blocks() for name in block]
    try:
        keys: list[Any] = [(int(name), name) for name in found]
    except ValueError:
        keys = found
    order = sorted(range(len(found)), key=keys.__getitem__)
    places = np.empty(len(found), np.int64)
    places[order] = np.arange(len(found))
    return [found[i] for i in order], places
