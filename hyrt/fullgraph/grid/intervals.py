"""Consecutive intervals of the rows of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Intervals:
    """Consecutive intervals of rows whose lengths differ by at most one."""

    num_rows: int
    """Number of rows."""
    num: int
    """Number of intervals, from 1 to `num_rows`, so that none is empty; 0 if there are no rows."""

    def __post_init__(self) -> None:
        if not min(1, self.num_rows) <= self.num <= self.num_rows:
            raise ValueError(f"{self.num} intervals of {self.num_rows} rows: give from 1 to as many as rows")

    def range(self, i: int) -> tuple[int, int]:
        """Return the first row of interval i, and the one after its last."""
        return i * self.num_rows // self.num, (i + 1) * self.num_rows // self.num

    def length(self, i: int) -> int:
        """Return the number of rows of interval i."""
        start, stop = self.range(i)
        return stop - start

    @property
    def longest(self) -> int:
        """Return the number of rows of the longest interval; 0 if there is none."""
        return -(-self.num_rows // max(self.num, 1))

    @property
    def starts(self) -> NDArray[np.int64]:
        """Return [num + 1] int64, the first row of each interval and the number of rows."""
        return np.arange(self.num + 1, dtype=np.int64) * self.num_rows // max(self.num, 1)


@dataclass(frozen=True, slots=True)
class JoinedIntervals:
    """Intervals of consecutive groups of rows; no interval spans two groups."""

    groups: tuple[Intervals, ...]
    """At least one group; groups after the first may be empty."""

    @classmethod
    def of(cls, first: Intervals, counts: Sequence[int]) -> JoinedIntervals:
        """Append groups with `counts` rows to `first`, in as few intervals as possible that are not
        longer.
        """
        longest = max(first.longest, 1)
        return cls((first, *(Intervals(count, -(-count // longest)) for count in counts)))

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all groups."""
        return sum(group.num_rows for group in self.groups)

    @property
    def num(self) -> int:
        """Return the number of intervals of all groups."""
        return sum(group.num for group in self.groups)

    def of_group(self, number: int) -> Sequence[int]:
        """Return the intervals of a group."""
        first = sum(group.num for group in self.groups[:number])
        return range(first, first + self.groups[number].num)

    def range(self, i: int) -> tuple[int, int]:
        """Return the first row of interval i, and the one after its last."""
        rows = 0
        for group in self.groups:
            if i < group.num:
                start, stop = group.range(i)
                return rows + start, rows + stop
            i -= group.num
            rows += group.num_rows
        raise IndexError(f"there are {self.num} intervals")

    def length(self, i: int) -> int:
        """Return the number of rows of interval i."""
        start, stop = self.range(i)
        return stop - start

    @property
    def longest(self) -> int:
        """Return the number of rows of the longest interval."""
        return max(group.longest for group in self.groups)

    @property
    def starts(self) -> NDArray[np.int64]:
        """Return [num + 1] int64, the first row of each interval and the number of rows."""
        rows = np.cumsum([0, *(group.num_rows for group in self.groups)])
        starts = [group.starts[:-1] + first for group, first in zip(self.groups, rows, strict=False)]
        return np.concatenate([*starts, rows[-1:]])


Cut = Intervals | JoinedIntervals
"""A division of rows into intervals."""
