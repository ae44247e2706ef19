"""The rows of a mini-batch, of which the device has some already."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.quantities import one_line

Rows = NDArray[np.float32] | NarrowRows
"""[n, F] rows in host memory, as numbers or in a narrow format."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedRows:
    """Rows of which a device keeps some: what it is sent."""

    places: NDArray[np.int32]
    """[n] where each row is: its place in the device's cache, or -1 - k for the one at k of `sent`."""
    sent: Rows
    """[m, F] the rows that the device does not have, in the format of those that it keeps."""

    __repr__ = one_line

    @property
    def nbytes(self) -> int:
        """Bytes of what is sent."""
        return self.places.nbytes + self.sent.nbytes

    def check(self, count: int, kept: int, width: int) -> None:
        """Check that all rows are there.

        Parameters
        ----------
        count
            How many rows there are to be.
        kept
            How many the device keeps.
        width
            Their columns.

        Raises
        ------
        ValueError
            If a place is of no row, or the rows have other columns.
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
