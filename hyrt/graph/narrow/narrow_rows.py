"""Feature rows in a narrow format: codes, and what they are multiplied with."""

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
    """Rows of a matrix of features, all of them or those of a mini-batch."""

    format: RowFormat
    codes: NDArray[Any]
    """[n, F] of the format's dtype, C-contiguous."""
    row_scales: NDArray[np.float32] | None = None
    """[n] what the codes of each row are multiplied with, or None."""
    column_scales: NDArray[np.float32] | None = None
    """[F] what those of each column are multiplied with, or None."""

    __repr__ = one_line

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        scales = (self.row_scales, self.column_scales)
        return self.codes.nbytes + sum(each.nbytes for each in scales if each is not None)

    @property
    def matrix(self) -> NDArray[Any] | None:
        """[n, F] the codes, where they are numbers by themselves."""
        return None if self.format.scales else self.codes

    @classmethod
    def room(
        cls,
        row_format: RowFormat,
        shape: tuple[int, int],
        column_scales: NDArray[np.float32] | None,
        take: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.empty,
    ) -> NarrowRows:
        """Rows to be written, over arrays that `take` gives for a shape and a dtype."""
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
        """Write the rows at `ids` [m] (all of them, for None) to `out` [m, F] as numbers."""
        workers.run_rows(
            lambda start, stop: widen_rows(
                self.codes, self.row_scales, self.column_scales, ids, out, start, stop
            ),
            len(out),
            _GRAIN,
        )

    def numbers(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """[m, F] consecutive rows as float32, copied by the calling thread."""
        codes = self.codes[start:stop]
        scales = None if self.row_scales is None else self.row_scales[start:stop]
        out = np.empty(codes.shape, np.float32)
        widen_rows(codes, scales, self.column_scales, None, out, 0, len(out))
        return out


def as_numbers(matrix: NDArray[Any]) -> NDArray[Any]:
    """The rows of a `RowSource.matrix`, or some of them, in a dtype of numpy: in place where there is one."""
    if matrix.dtype == np.uint16:
        return matrix.view(np.float16)
    if matrix.dtype == np.int16:
        widened: NDArray[Any] = (matrix.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return widened
    return matrix
