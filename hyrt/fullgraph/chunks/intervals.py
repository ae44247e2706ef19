"""Intervals of vertices, the order in which the chunks between intervals are processed, and the chunk
options.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

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
class GroupedIntervals:
    """Intervals of consecutive groups of rows; no interval spans two groups."""

    groups: tuple[Intervals, ...]
    """At least one group; groups after the first may be empty."""

    @classmethod
    def build(cls, first: Intervals, counts: Sequence[int]) -> GroupedIntervals:
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

    def group_intervals(self, number: int) -> Sequence[int]:
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


RowIntervals = Intervals | GroupedIntervals
"""A division of rows into intervals."""


ChunkOrder = Literal["column-row", "row-column"]
"""`column-row`: column by column in the forward pass and row by row in the backward pass (rows are
sources, columns destinations), so that accumulated rows stay on the device (NeuGraph, section 3.1).
`row-column`: the reverse, so that rows that are read stay, and accumulated rows are swapped.
"""


@dataclass(frozen=True, slots=True)
class ChunkStep:
    """Step over one chunk of edges: rows of interval `read` are added to interval `accumulated`.

    In the forward pass, sources are read and destinations accumulated; in the backward pass, gradients of
    destinations are read and gradients of sources accumulated.
    """

    accumulated: int
    read: int
    is_first: bool
    """Whether nothing was added to `accumulated` before."""
    is_last: bool
    """Whether nothing will be added to it afterwards."""


def iterate_chunks(accumulated: Iterable[int], read: Sequence[int], order: ChunkOrder) -> Iterator[ChunkStep]:
    """Iterate over all chunks between some intervals, each once.

    Parameters
    ----------
    accumulated
        The intervals that are accumulated; iterated repeatedly for `row-column`.
    read
        The intervals that are read.
    order
        Determines which intervals stay on the device.
    """
    if order == "column-row":
        for i in accumulated:
            for j in read:
                yield ChunkStep(i, j, j == read[0], j == read[-1])
    else:
        for j in read:
            for i in accumulated:
                yield ChunkStep(i, j, j == read[0], j == read[-1])


@dataclass(frozen=True, slots=True)
class ChunkOptions:
    """Settings of chunked full-graph training."""

    num: int = 0
    """Number of vertex intervals; 0 is the smallest number that fits the device's memory. At most one
    interval per vertex.
    """
    order: ChunkOrder = "column-row"
    """Order in which chunks are processed."""
    in_flight: int = 0
    """Number of chunks on the device at once: one is computed while the others are copied. 1 alternates
    copies and computation; 0 is 1 if the device reads host memory in place, otherwise 2.
    """
    filter_below: float | None = None
    """Copy only the useful rows of an interval for a chunk if their fraction is below this; 0 is never. None
    chooses by measured rates, and 0 if the device reads host memory in place.
    """
