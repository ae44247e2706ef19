"""Rows of a matrix in consecutive intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Intervals:
    """Consecutive intervals of rows, whose lengths differ by one at most."""

    num_rows: int
    """How many rows there are, at least 1."""
    num: int
    """How many intervals, from 1 to `num_rows`: none is empty."""

    def __post_init__(self) -> None:
        if not 1 <= self.num <= self.num_rows:
            raise ValueError(f"{self.num} intervals of {self.num_rows} rows: give from 1 to as many as rows")

    def range(self, i: int) -> tuple[int, int]:
        """The first row of interval i, and the one after its last."""
        return i * self.num_rows // self.num, (i + 1) * self.num_rows // self.num

    def length(self, i: int) -> int:
        """Rows of interval i."""
        start, stop = self.range(i)
        return stop - start

    @property
    def longest(self) -> int:
        """Rows of the longest interval."""
        return -(-self.num_rows // self.num)

    @property
    def starts(self) -> NDArray[np.int64]:
        """[num + 1] int64, where each interval starts, and the number of rows."""
        return np.arange(self.num + 1, dtype=np.int64) * self.num_rows // self.num
