"""Columns of a table: selection by name patterns, feature matrices, and detection of columns that are
probably not features.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from os.path import commonprefix
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import pluralize
from hyrt.graph.check import suggest_name
from hyrt.graph.metadata import normalize_name
from hyrt.graph.tables.table_batch import (
    RowProblems,
    TableBatch,
    convert_bools,
    is_list_column,
    read_list_matrix,
    read_real_numbers,
)
from hyrt.graph.tables.vertex_ids import NameIndex

Array = NDArray[Any]
Flags = NDArray[np.bool_]

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
                f"{name} has no column "
                f"{pattern!r}{suggest_name(pattern, columns) or f': choose one of {known}'}"
            )
        selected |= dict.fromkeys(matches)
    return list(selected)


_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")


def find_thousands_point(values: Sequence[str | None]) -> tuple[str, bool] | None:
    """Return a number such as 12.345 if the points of all numbers may separate thousands, otherwise None.

    The second result is whether there are also numbers without points, which are below 1000.
    """
    numbers = [value for value in values if value and value[-1].isdigit()]
    pointed = [value for value in numbers if "." in value]
    others = [value.lstrip("+-") for value in numbers if "." not in value]
    if not pointed or not all(map(_THOUSANDS.fullmatch, pointed)) or any(len(value) > 3 for value in others):
        return None
    return pointed[0], bool(others)


_MANY = 8


def find_column(columns: Collection[str], names: Sequence[str]) -> str | None:
    """Return the first column whose normalized name is in `names`, in the order of `names`.

    Raises DataError if two columns have this normalized name.
    """
    plain = [(normalize_name(column), column) for column in columns]
    for name in names:
        matches = [column for normalized, column in plain if normalized == name]
        if len(matches) > 1:
            raise DataError(
                f"the column names {matches[0]!r} and {matches[1]!r} differ only in capitals or punctuation: "
                "rename one of them"
            )
        if matches:
            return matches[0]
    return None


def match_by_prefix(features: list[str], columns: list[str]) -> list[str]:
    """Replace many columns by one pattern, if the pattern matches exactly these columns."""
    prefix = commonprefix(features).rstrip("0123456789")  # noqa: RUF071
    if len(features) > _MANY and prefix and not set("*?[") & set(prefix):
        if match_columns([f"{prefix}*"], columns, "") == features:
            return [f"{prefix}*"]
    return features


def format_columns(names: list[str]) -> str:
    """Format column names, as a range if there are many."""
    if len(names) <= _MANY:
        return ", ".join(map(repr, names))
    return f"{names[0]!r} to {names[-1]!r} ({len(names)} columns)"


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
        self._widths: dict[str, int | None] = {}
        self.filled = 0
        """Number of missing values that were replaced."""
        self._rounded: Counter[str] = Counter()

    def rows(self, piece: TableBatch, bad: RowProblems) -> NDArray[np.float32]:
        """Return the features [n, width] of a batch with rows; its first list determines the width of all.

        Raises DataError if a column has lists in some batches only, or none in the first batch.
        """
        parts = [self._column_values(piece, column, bad) for column in self._columns]
        # Values beyond float32 are reported as wrong values.
        with np.errstate(over="ignore"):
            return np.concatenate(parts, axis=1).astype(np.float32)

    def names(self) -> list[str]:
        """Return a name for each column of the matrix; call this after reading rows."""
        names = []
        for name in self._columns:
            width = self._widths.get(name)
            names += [name] if width is None else [f"{name}[{at}]" for at in range(width)]
        return names

    def _column_values(self, piece: TableBatch, column: str, bad: RowProblems) -> Array:
        values, missing, wrong = self._read(piece, column, bad)
        remedy = "Write a number in each of these rows, or remove the column from the features"
        fill = (
            f", or set {self._where} in the schema to a number that replaces missing features"
            if self._where
            else ""
        )
        wrong = wrong | (np.abs(values) > FLOAT32_MAX).any(axis=1)
        bad.add(piece, column, wrong, "is not a valid float32 number", remedy)
        if missing.any():
            if self._fill is None:
                bad.add(piece, column, missing & ~wrong, "is not a valid feature", remedy + fill)
            else:
                self.filled += int(np.isnan(values[~wrong]).sum())
                values = np.where(np.isnan(values), self._fill, values)
        if (np.abs(values) >= 2**24).any():
            with np.errstate(over="ignore"):
                rounded = (np.abs(values) < 2**53) & (values == np.floor(values))
                rounded &= values.astype(np.float32) != values
            self._rounded[column] += int((rounded & ~wrong[:, None]).sum())
        return values

    def lines(self, location: str) -> Iterator[str]:
        """Yield lines about integers that float32 has rounded; `location` is the name of the file."""
        for column, count in self._rounded.items():
            if count:
                yield (
                    f"{location}, column {column!r}: {pluralize(count, 'integer')} rounded, because "
                    "features are float32: if the last digits matter, subtract a constant from the column"
                )

    def _read(self, piece: TableBatch, column: str, bad: RowProblems) -> tuple[Array, Flags, Flags]:
        """Return values [n, width], and masks of missing and wrong rows; report lists of other lengths."""
        array, location = piece.columns[column], f"{piece.name}, column {column!r}"
        is_list = is_list_column(array)
        if column in self._widths and is_list != (self._widths[column] is not None):
            raise DataError(
                f"{location} has {'lists' if is_list else 'numbers'}, unlike earlier files: use either "
                "numbers or lists in all files"
            )
        if not is_list:
            self._widths[column] = None
            values, missing, wrong = read_real_numbers(convert_bools(array), self._decimal)
            return values[:, None], missing, wrong
        if column not in self._widths and array.null_count == len(array):
            raise DataError(
                f"{location} has no list in the first {len(array):,} rows, so their length is unknown: "
                "begin with a row that has a list"
            )
        lists = read_list_matrix(array, self._widths.get(column))
        width = self._widths[column] = lists.values.shape[1]
        unequal = ~array.is_null().to_numpy(zero_copy_only=False) & (lists.lengths != width)
        for length in np.unique(lists.lengths[unequal]).tolist():
            bad.add(
                piece,
                column,
                unequal & (lists.lengths == length),
                f"has {pluralize(length, 'number')}, but the first list has {width:,}",
                "Use lists of equal length (add zeros to short ones), or remove the column from the features",
            )
        return np.where(unequal[:, None], 0, lists.values), lists.missing, lists.wrong


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


MIN_ROWS = 10
"""With fewer rows, a column may equal row numbers or labels by chance."""
_MIN_PAIRED = 30
"""Minimum number of rows that have the value of an earlier row of their class; fewer may be chance."""
_MIN_OTHERS = 5
"""Minimum number of these rows with a value other than the most frequent one."""
_MAX_LABELS = 256
_SHOWN = 8

COUNTS = "contains row numbers"
IS_LABEL = "equals the label"
GIVES_LABEL = "has one value for each class"
FOLLOWS_LABEL = "is the same for all vertices of a class"


class SuspiciousColumns:
    """Detector of suspicious columns in a matrix of `width` columns, whose rows are added in batches."""

    def __init__(self, width: int) -> None:
        self._rows = 0
        self._labelled = 0
        self._first = np.zeros(width)
        self._of_label: dict[float, Array] = {}
        self._counts: Counter[float] = Counter()
        # Columns that still may be row numbers, copies of the label, or functions of the label.
        self._counting = self._like_label = self._paired = np.arange(width)

    def add(self, values: Array, labels: Array | None, numbers: Array | None = None) -> None:
        """Examine further rows [n, width], in which missing values are NaN.

        `labels` [n] are numbers (NaN: no label) or class numbers (below 0: no label); None without labels, or
        with several label columns. `numbers` [n] are row numbers; by default they continue those of the
        previous call.
        """
        if not len(values):
            return
        if numbers is None:
            numbers = np.arange(self._rows, self._rows + len(values))
        counted = numbers.astype(np.float64)
        if not self._rows:
            self._first = values[0].astype(np.float64) - counted[0]
        # Compare row numbers in the dtype of the values, because float32 has no odd numbers beyond 2^24.
        self._counting = _filter_columns(
            self._counting,
            values,
            lambda rows, columns: (counted[rows, None] + self._first[columns]).astype(values.dtype),
        )
        self._rows += len(values)
        self.add_labelled(values, labels)

    def add_labelled(self, values: Array, labels: Array | None) -> None:
        """Compare further rows only with their labels; the arguments are as in `add`."""
        if labels is None or not len(values):
            return
        known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
        values, labels = values[known], labels[known]
        self._labelled += len(labels)
        self._like_label = _filter_columns(self._like_label, values, lambda rows, columns: labels[rows, None])
        if len(self._paired):
            self._keep_paired(values, labels)

    def _keep_paired(self, values: Array, labels: Array) -> None:
        """Keep the columns that have a single value for all rows of each label."""
        known, first, places, counts = np.unique(
            labels, return_index=True, return_inverse=True, return_counts=True
        )
        for label, row, count in zip(known.tolist(), first, counts.tolist(), strict=True):
            self._of_label.setdefault(label, values[row].copy())
            self._counts[label] += count
            if len(self._of_label) > _MAX_LABELS:
                self._paired = self._paired[:0]
                return
        expected = np.stack([self._of_label[label] for label in known.tolist()]) if len(known) else values
        self._paired = _filter_columns(
            self._paired, values, lambda rows, columns: expected[places[rows]][:, columns]
        )

    def find_reasons(self) -> dict[int, str]:
        """Return the reason for each suspicious column, by column number."""
        reasons: dict[int, str] = {}
        several = len(self._of_label) > 1
        if self._labelled - len(self._of_label) >= _MIN_PAIRED and several:
            for column in self._paired.tolist():
                confirmed: Counter[float] = Counter()
                for label, row in self._of_label.items():
                    confirmed[float(row[column])] += self._counts[label] - 1
                if len(confirmed) == len(self._of_label):
                    reasons[column] = GIVES_LABEL
                elif confirmed.total() - max(confirmed.values()) >= _MIN_OTHERS:
                    reasons[column] = FOLLOWS_LABEL
        if self._labelled >= MIN_ROWS and several:
            reasons |= dict.fromkeys(self._like_label.tolist(), IS_LABEL)
        if self._rows >= MIN_ROWS:
            starts = self._first[self._counting]
            reasons |= dict.fromkeys(self._counting[(starts == 0) | (starts == 1)].tolist(), COUNTS)
        return reasons


def _filter_columns(
    columns: NDArray[np.int64], values: Array, expected: Callable[[slice, NDArray[np.int64]], Array]
) -> NDArray[np.int64]:
    """Return the columns whose values equal the expected ones in all rows.

    The first rows exclude most columns, so few columns are compared for the other rows.
    """
    for rows in (slice(0, 2), slice(2, 64), slice(64, None)):
        if len(columns) and len(values[rows]):
            columns = columns[(values[rows][:, columns] == expected(rows, columns)).all(axis=0)]
    return columns


def are_row_numbers(values: Array) -> bool:
    """Return whether the values [n], in any order, are 0 to n - 1 or 1 to n."""
    ordered = np.sort(values)
    return len(values) >= MIN_ROWS and any(
        np.array_equal(ordered, np.arange(first, first + len(values))) for first in (0, 1)
    )


def encode_labels(labels: Sequence[Any]) -> Array:
    """Return a class number for each label name, -1 for None."""
    numbers = {
        name: number
        for number, name in enumerate(sorted({str(label) for label in labels if label is not None}))
    }
    return np.array([-1 if label is None else numbers[str(label)] for label in labels], np.int64)


def format_reasons(reasons: Mapping[str, str] | Mapping[int, str]) -> str:
    """Format the first columns, by name or number, with the reasons."""
    shown = ", ".join(f"{name!r} ({reason})" for name, reason in list(reasons.items())[:_SHOWN])
    return shown + (f" and {len(reasons) - _SHOWN:,} more" if len(reasons) > _SHOWN else "")
