"""Detection of columns that are probably not features: row numbers and copies of the label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_MIN_ROWS = 10
"""With fewer rows, a column may equal row numbers or labels by chance."""
_MIN_PAIRED = 30
"""Minimum number of rows that have the value of an earlier row of their class; fewer may be chance."""
_MIN_OTHERS = 5
"""Minimum number of these rows with a value other than the most frequent one."""
_MAX_LABELS = 256
_SHOWN = 8

COUNTS = "numbers the rows"
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
        if self._labelled >= _MIN_ROWS and several:
            reasons |= dict.fromkeys(self._like_label.tolist(), IS_LABEL)
        if self._rows >= _MIN_ROWS:
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
    return len(values) >= _MIN_ROWS and any(
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
