"""Quantized feature rows: codes and scales."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.narrow.loops import gather_codes, widen_rows
from hyrt.graph.narrow.row_format import RowFormat
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line

_GRAIN = 512


@dataclass(frozen=True, slots=True, eq=False)
class NarrowRows:
    """Quantized feature rows, of all vertices or of a mini-batch."""

    format: RowFormat
    codes: NDArray[Any]
    """[n, F] of the format's dtype, C-contiguous."""
    row_scales: NDArray[np.float32] | None = None
    """[n] scale of each row, or None."""
    column_scales: NDArray[np.float32] | None = None
    """[F] scale of each column, or None."""

    __repr__ = one_line

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        scales = (self.row_scales, self.column_scales)
        return self.codes.nbytes + sum(each.nbytes for each in scales if each is not None)

    @property
    def matrix(self) -> NDArray[Any] | None:
        """[n, F] the codes, if the format has no scales; otherwise None."""
        return None if self.format.scales else self.codes

    @classmethod
    def room(
        cls,
        row_format: RowFormat,
        shape: tuple[int, int],
        column_scales: NDArray[np.float32] | None,
        take: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.empty,
    ) -> NarrowRows:
        """Allocate rows; `take` returns an array for a shape and a dtype."""
        codes = take(shape, row_format.dtype)
        scales = take(shape[:1], np.dtype(np.float32)) if row_format.scales == "row" else None
        return cls(row_format, codes, scales, column_scales)

    def gather(self, ids: NDArray[Any], out: NarrowRows, workers: Workers) -> None:
        """Copy the rows at `ids` [m] to `out`, which has m rows of the same format."""
        workers.run_rows(
            lambda start, stop: gather_codes(
                self.codes, self.row_scales, ids, out.codes, out.row_scales, start, stop
            ),
            len(ids),
            _GRAIN,
        )

    def widen(self, ids: NDArray[Any] | None, out: NDArray[np.float32], workers: Workers) -> None:
        """Write the dequantized rows at `ids` [m] (None: all rows) to `out` [m, F]."""
        workers.run_rows(
            lambda start, stop: widen_rows(
                self.codes, self.row_scales, self.column_scales, ids, out, start, stop
            ),
            len(out),
            _GRAIN,
        )

    def numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return consecutive rows [m, F] as float32, dequantized by the calling thread."""
        codes = self.codes[start:stop]
        scales = None if self.row_scales is None else self.row_scales[start:stop]
        out = np.empty(codes.shape, np.float32)
        widen_rows(codes, scales, self.column_scales, None, out, 0, len(out))
        return out


def as_numbers(matrix: NDArray[Any]) -> NDArray[Any]:
    """View rows of `RowSource.matrix` in a numpy float dtype; copy only if numpy has no such dtype
    (bfloat16).
    """
    if matrix.dtype == np.uint16:
        return matrix.view(np.float16)
    if matrix.dtype == np.int16:
        widened: NDArray[Any] = (matrix.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return widened
    return matrix
