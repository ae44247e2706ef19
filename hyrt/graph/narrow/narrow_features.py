"""Row sources of quantized features: stored, or quantized when they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.narrow.rounding import Rounding
from hyrt.graph.narrow.row_format import RowFormat
from hyrt.graph.row_source import RowSource
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class NarrowFeatures:
    """Quantized feature rows, in memory or memory-mapped."""

    kept: NarrowRows
    """Rows of all vertices."""

    __repr__ = one_line

    @property
    def width(self) -> int:
        return int(self.kept.codes.shape[1])

    @property
    def value_bytes(self) -> int:
        return self.kept.codes.itemsize

    @property
    def nbytes(self) -> int:
        return self.kept.nbytes

    @property
    def matrix(self) -> NDArray[Any] | None:
        return self.kept.matrix

    @property
    def row_format(self) -> RowFormat:
        return self.kept.format

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        return self.kept.column_scales

    @property
    def all_rows(self) -> NarrowRows:
        return self.kept

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        self.kept.widen(ids, out, workers)

    def narrow_rows(self, ids: NDArray[Any], out: NarrowRows, workers: Workers) -> None:
        self.kept.gather(ids, out, workers)


@dataclass(frozen=True, slots=True)
class RoundedOnTheWay:
    """Feature rows of another source that are quantized whenever they are read.

    `rows` returns the dequantized values, so that results do not depend on which form a reader requests.
    """

    source: RowSource
    rounding: Rounding
    name: str
    """Name of the dataset, for messages."""

    __repr__ = one_line

    @property
    def width(self) -> int:
        return self.source.width

    @property
    def value_bytes(self) -> int:
        return self.source.value_bytes

    @property
    def nbytes(self) -> int:
        return self.source.nbytes

    @property
    def matrix(self) -> None:
        return None

    @property
    def row_format(self) -> RowFormat:
        return self.rounding.format

    @property
    def column_scales(self) -> NDArray[np.float32] | None:
        return self.rounding.column_scales

    @property
    def all_rows(self) -> None:
        return None

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        self.source.rows(ids, out, workers)
        rounded = NarrowRows.room(self.row_format, (len(ids), self.width), self.column_scales)
        self.rounding.write(out, ids, rounded, self.name, workers)
        rounded.widen(None, out, workers)

    def narrow_rows(self, ids: NDArray[Any], out: NarrowRows, workers: Workers) -> None:
        whole = np.empty((len(ids), self.width), np.float32)
        self.source.rows(ids, whole, workers)
        self.rounding.write(whole, ids, out, self.name, workers)
