"""Feature rows of a mini-batch that are partly cached on the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.quantities import one_line

Rows = NDArray[np.float32] | NarrowRows
"""[n, F] rows in host memory, float32 or quantized."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedRows:
    """Feature rows of a mini-batch: cache slots, and the rows that must be transferred."""

    places: NDArray[np.int32]
    """[n] location of each row: its slot in the device's cache, or -1 - k for row k of `sent`."""
    sent: Rows
    """[m, F] rows that are not cached, in the format of the cache."""

    __repr__ = one_line

    @property
    def nbytes(self) -> int:
        """Bytes to transfer."""
        return self.places.nbytes + self.sent.nbytes

    def check(self, count: int, kept: int, width: int) -> None:
        """Check slots and shapes.

        Parameters
        ----------
        count
            Expected number of rows.
        kept
            Number of cached rows.
        width
            Number of columns.

        Raises
        ------
        ValueError
            If a slot is out of range, or the number of columns differs.
        """
        values = self.sent.codes if isinstance(self.sent, NarrowRows) else self.sent
        if self.places.shape != (count,) or self.places.dtype != np.int32:
            raise ValueError(
                f"places are {self.places.dtype} of {self.places.shape}, not int32 of {(count,)}"
            )
        if values.ndim != 2 or values.shape[1] != width:
            raise ValueError(f"the rows that are sent have shape {values.shape}: give {width} columns")
        if count and not (-len(values) <= self.places.min() and self.places.max() < kept):
            raise ValueError(
                f"places are from {self.places.min()} to {self.places.max()}, where {kept} rows are kept and "
                f"{len(values)} are sent"
            )
