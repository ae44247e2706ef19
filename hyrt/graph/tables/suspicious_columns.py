"""Columns that are most likely no features: numbers of rows, and copies of the label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LEAST_ROWS = 10
"""Fewer rows may count up, or equal the label, by chance."""
_LEAST_PAIRED = 30
"""At least so many rows have the value that an earlier row of their class has, not by chance."""
_LEAST_OTHERS = 5
"""And at least so many of these have another value than most rows."""
_MAX_LABELS = 256
_SHOWN = 8

COUNTS = "numbers the rows"
IS_LABEL = "equals the label"
GIVES_LABEL = "has one value for each class"
FOLLOWS_LABEL = "is the same for all vertices of a class"


class SuspiciousColumns:
    """Looks for suspicious columns in the rows of a matrix, some rows at a time.

    Parameters
    ----------
    width
        The number of columns.
    """

    def __init__(self, width: int) -> None:
        self._rows = 0
        self._labelled = 0
        self._first = np.zeros(width)
        self._of_label: dict[float, Array] = {}
        self._counts: Counter[float] = Counter()
        # The columns that are still suspected.
        self._counting = self._like_label = self._paired = np.arange(width)

    def add(self, values: Array, labels: Array | None, numbers: Array | None = None) -> None:
        """Look at further rows.

        Parameters
        ----------
        values
            [n, width]; those that are missing are not numbers.
        labels
            [n] numbers, not a number for none, or whole numbers of classes, below 0 for none; None if there
            are no labels of one number.
        numbers
            [n] numbers of the rows; by default they follow those of the rows before.
        """
        if not len(values):
            return
        if numbers is None:
            numbers = np.arange(self._rows, self._rows + len(values))
        counted = numbers.astype(np.float64)
        if not self._rows:
            self._first = values[0].astype(np.float64) - counted[0]
        # Numbers of rows are compared as the values hold them: float32 has no odd numbers beyond 2^24.
        self._counting = _kept(
            self._counting,
            values,
            lambda rows, columns: (counted[rows, None] + self._first[columns]).astype(values.dtype),
        )
        self._rows += len(values)
        self.add_labelled(values, labels)

    def add_labelled(self, values: Array, labels: Array | None) -> None:
        """Compare further rows with their labels only; the arguments are those of `add`."""
        if labels is None or not len(values):
            return
        known = ~np.isnan(labels) if labels.dtype.kind == "f" else labels >= 0
        values, labels = values[known], labels[known]
        self._labelled += len(labels)
        self._like_label = _kept(self._like_label, values, lambda rows, columns: labels[rows, None])
        if len(self._paired):
            self._keep_paired(values, labels)

    def _keep_paired(self, values: Array, labels: Array) -> None:
        """Keep the columns that have one value for all rows of a label."""
        known, first, places, counts = np.unique(
            labels, return_index=True, return_inverse=True, return_counts=True
        )
        for label, row, count in zip(known.tolist(), first, counts.tolist(), strict=True):
            self._of_label.setdefault(label, values[row].copy())
            self._counts[label] += count
            if len(self._of_label) > _MAX_LABELS:
                self._paired = self._paired[:0]
                return
        wanted = np.stack([self._of_label[label] for label in known.tolist()]) if len(known) else values
        self._paired = _kept(self._paired, values, lambda rows, columns: wanted[places[rows]][:, columns])

    def found(self) -> dict[int, str]:
        """Return what is suspicious about columns, by their numbers."""
        reasons: dict[int, str] = {}
        several = len(self._of_label) > 1
        if self._labelled - len(self._of_label) >= _LEAST_PAIRED and several:
            for column in self._paired.tolist():
                confirmed: Counter[float] = Counter()
                for label, row in self._of_label.items():
                    confirmed[float(row[column])] += self._counts[label] - 1
                if len(confirmed) == len(self._of_label):
                    reasons[column] = GIVES_LABEL
                elif confirmed.total() - max(confirmed.values()) >= _LEAST_OTHERS:
                    reasons[column] = FOLLOWS_LABEL
        if self._labelled >= _LEAST_ROWS and several:
            reasons |= dict.fromkeys(self._like_label.tolist(), IS_LABEL)
        if self._rows >= _LEAST_ROWS:
            starts = self._first[self._counting]
            reasons |= dict.fromkeys(self._counting[(starts == 0) | (starts == 1)].tolist(), COUNTS)
        return reasons


def _kept(
    columns: NDArray[np.int64], values: Array, wanted: Callable[[slice, NDArray[np.int64]], Array]
) -> NDArray[np.int64]:
    """Return the columns whose values are the wanted ones in all rows.

    Most columns are dropped after a few rows, so that the rest is compared for hardly any.
    """
    for rows in (slice(0, 2), slice(2, 64), slice(64, None)):
        if len(columns) and len(values[rows]):
            columns = columns[(values[rows][:, columns] == wanted(rows, columns)).all(axis=0)]
    return columns


def number_rows(values: Array) -> bool:
    """Return whether values [n], in any order, are 0 to n - 1 or 1 to n."""
    ordered = np.sort(values)
    return len(values) >= _LEAST_ROWS and any(
        np.array_equal(ordered, np.arange(first, first + len(values))) for first in (0, 1)
    )


def label_numbers(labels: Sequence[Any]) -> Array:
    """Return a number for each of the classes that labels name, -1 for None."""
    numbers = {
        name: number for number, name in enumerate(sorted({str(each) for each in labels if each is not None}))
    }
    return np.array([-1 if each is None else numbers[str(each)] for each in labels], np.int64)


def named_reasons(reasons: Mapping[str, str] | Mapping[int, str]) -> str:
    """Return the names or numbers of the first columns, with what is suspicious about them in words."""
    shown = ", ".join(f"{name!r} ({reason})" for name, reason in list(reasons.items())[:_SHOWN])
    return shown + (f" and {len(reasons) - _SHOWN:,} more" if len(reasons) > _SHOWN else "")
