"""Intervals of vertices, processing orders of the chunks between intervals, and chunk options."""

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
    num: int
    """Number of intervals, from 1 to `num_rows` so that none is empty; 0 if there are no rows."""

    def __post_init__(self) -> None:
        if not min(1, self.num_rows) <= self.num <= self.num_rows:
            raise ValueError(
                f"{self.num_rows} rows cannot be divided into {self.num} intervals: "
                "use at least one, and at most one per row"
            )

    def range(self, i: int) -> tuple[int, int]:
        """Return the first row of interval i, and the first row after it."""
        return i * self.num_rows // self.num, (i + 1) * self.num_rows // self.num

    def length(self, i: int) -> int:
        """Return the number of rows of interval i."""
        start, stop = self.range(i)
        return stop - start

    @property
    def longest(self) -> int:
        """Number of rows of the longest interval; 0 if there are no intervals."""
        return -(-self.num_rows // max(self.num, 1))

    @property
    def starts(self) -> NDArray[np.int64]:
        """First row of each interval, and the total number of rows at the end, [num + 1] int64."""
        return np.arange(self.num + 1, dtype=np.int64) * self.num_rows // max(self.num, 1)


@dataclass(frozen=True, slots=True)
class GroupedIntervals:
    """Intervals of consecutive groups of rows, none of which spans two groups."""

    groups: tuple[Intervals, ...]
    """Intervals of each group. There is at least one group; groups after the first may be empty."""

    @classmethod
    def build(cls, first: Intervals, counts: Sequence[int]) -> GroupedIntervals:
        """Append groups of `counts` rows to `first`, in the fewest intervals that are not longer."""
        longest = max(first.longest, 1)
        return cls((first, *(Intervals(count, -(-count // longest)) for count in counts)))

    @property
    def num_rows(self) -> int:
        return sum(group.num_rows for group in self.groups)

    @property
    def num(self) -> int:
        return sum(group.num for group in self.groups)

    def group_intervals(self, number: int) -> Sequence[int]:
        """Return the intervals of a group."""
        first = sum(group.num for group in self.groups[:number])
        return range(first, first + self.groups[number].num)

    def range(self, i: int) -> tuple[int, int]:
        """Return the first row of interval i, and the first row after it."""
        rows = 0
        for group in self.groups:
            if i < group.num:
                start, stop = group.range(i)
                return rows + start, rows + stop
            i -= group.num
            rows += group.num_rows
        raise IndexError(f"the interval index is out of range: there are {self.num} intervals")

    def length(self, i: int) -> int:
        """Return the number of rows of interval i."""
        start, stop = self.range(i)
        return stop - start

    @property
    def longest(self) -> int:
        """Number of rows of the longest interval."""
        return max(group.longest for group in self.groups)

    @property
    def starts(self) -> NDArray[np.int64]:
        """First row of each interval, and the total number of rows at the end, [num + 1] int64."""
        rows = np.cumsum([0, *(group.num_rows for group in self.groups)])
        starts = [group.starts[:-1] + first for group, first in zip(self.groups, rows, strict=False)]
        return np.concatenate([*starts, rows[-1:]])


RowIntervals = Intervals | GroupedIntervals
"""Division of rows into intervals."""


ChunkOrder = Literal["column-row", "row-column"]
"""Processing order of chunks (NeuGraph, section 3.1; rows are sources, columns destinations).

`column-row`: by column in the forward pass and by row in the backward pass, so that accumulated rows stay on
the device. `row-column`: the reverse, so that rows that are read stay, and accumulated rows are swapped.
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
    """Whether nothing has been added to `accumulated` before this chunk."""
    is_last: bool
    """Whether nothing will be added to `accumulated` after this chunk."""


def iterate_chunks(accumulated: Iterable[int], read: Sequence[int], order: ChunkOrder) -> Iterator[ChunkStep]:
    """Iterate once over all chunks between the intervals `accumulated` and `read`.

    `order` determines which intervals stay on the device; `row-column` iterates over `accumulated`
    repeatedly.
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
    """Number of vertex intervals, at most one per vertex; 0 selects the smallest number that fits."""
    order: ChunkOrder = "column-row"
    """Order in which the chunks are processed."""
    in_flight: int = 0
    """Maximum number of chunks on the device; 0 selects 1 (no overlap) if rows are read in place, otherwise
    2.
    """
    filter_below: float | None = None
    """Needed fraction of rows below which only these rows are copied; 0: never; None: measure copy rates."""
