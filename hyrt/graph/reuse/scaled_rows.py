"""Feature rows of a large source that are put in order and scaled whenever they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.reuse.scaling import Scaling
from hyrt.graph.row_source import RowSource
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True, eq=False)
class ScaledRows:
    """Rows that stay where they are, of which a reader gets some columns, scaled."""

    source: RowSource
    """The rows as they are stored."""
    columns: NDArray[np.int64] | None
    """[F] the columns to give, in order; None for all as they are."""
    steps: Sequence[Scaling]
    """The scalings, first to last."""
    dtype: np.dtype[Any]
    """The dtype that the rows have in memory, to which each scaling rounds."""

    __repr__ = one_line

    @property
    def width(self) -> int:
        return self.source.width if self.columns is None else len(self.columns)

    @property
    def value_bytes(self) -> int:
        return self.source.value_bytes

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    @property
    def matrix(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        stored = np.empty((len(ids), self.source.width), np.float32)
        self.source.rows(ids, stored, workers)
        block = (stored if self.columns is None else stored[:, self.columns]).astype(self.dtype, copy=False)
        for step in self.steps:
            block = step.apply(block)
        out[:] = block
