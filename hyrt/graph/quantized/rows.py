"""Quantized feature rows (codes and scales), and their quantizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.quantized.row_format import BFLOAT16, FLOAT16, RowFormat
from hyrt.graph.row_kernels import compute_scales, dequantize_rows, gather_codes, max_abs_rows, quantize_rows
from hyrt.runtime.rng import ROUNDING, stream_key
from hyrt.runtime.workers import Workers

_GRAIN = 512


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Quantized feature rows of all vertices or of a mini-batch."""

    format: RowFormat
    codes: NDArray[Any]
    """Codes [n, F] with the dtype of the format, C-contiguous."""
    row_scales: NDArray[np.float32] | None = None
    """Scale of each row, [n]; None without row scales."""
    column_scales: NDArray[np.float32] | None = None
    """Scale of each column, [F]; None without column scales."""

    __repr__ = short_repr

    @property
    def nbytes(self) -> int:
        """Return the number of bytes of codes and scales."""
        scales = (self.row_scales, self.column_scales)
        return self.codes.nbytes + sum(each.nbytes for each in scales if each is not None)

    @property
    def matrix(self) -> NDArray[Any] | None:
        """Return the codes [n, F]; None if the format has scales."""
        return None if self.format.scales else self.codes

    @classmethod
    def allocate(
        cls,
        row_format: RowFormat,
        shape: tuple[int, int],
        column_scales: NDArray[np.float32] | None,
        allocate: Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]] = np.empty,
    ) -> QuantizedRows:
        """Allocate rows. `allocate` is called with a shape and a dtype and returns an array."""
        codes = allocate(shape, row_format.dtype)
        scales = allocate(shape[:1], np.dtype(np.float32)) if row_format.scales == "row" else None
        return cls(row_format, codes, scales, column_scales)

    def gather(self, ids: NDArray[Any], out: QuantizedRows, workers: Workers) -> None:
        """Copy the rows at `ids` [m] to `out`, which has m rows of the same format."""
        workers.run_rows(
            lambda start, stop: gather_codes(
                self.codes, self.row_scales, ids, out.codes, out.row_scales, start, stop
            ),
            len(ids),
            _GRAIN,
        )

    def dequantize(self, ids: NDArray[Any] | None, out: NDArray[np.float32], workers: Workers) -> None:
        """Write the dequantized rows at `ids` [m] (None: all rows) to `out` [m, F]."""
        workers.run_rows(
            lambda start, stop: dequantize_rows(
                self.codes, self.row_scales, self.column_scales, ids, out, start, stop
            ),
            len(out),
            _GRAIN,
        )

    def to_float32(self, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Return consecutive rows [m, F] as float32, which the calling thread dequantizes."""
        codes = self.codes[start:stop]
        scales = None if self.row_scales is None else self.row_scales[start:stop]
        out = np.empty(codes.shape, np.float32)
        dequantize_rows(codes, scales, self.column_scales, None, out, 0, len(out))
        return out


def to_numpy_dtype(matrix: NDArray[Any]) -> NDArray[Any]:
    """View rows of `RowSource.matrix` with a float dtype of numpy. Only bfloat16 is copied, to float32."""
    if matrix.dtype == np.uint16:
        return matrix.view(np.float16)
    if matrix.dtype == np.int16:
        widened: NDArray[Any] = (matrix.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return widened
    return matrix


Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Quantizer of float32 or float16 rows.

    With rounding to nearest, the error of a value is at most half a scale step. With stochastic rounding,
    which is unbiased over seeds, it is less than one step.
    """

    format: RowFormat
    seed: int | None = None
    """Seed of stochastic rounding to int8; None to round to nearest."""
    column_scales: NDArray[np.float32] | None = None
    """Column scales [F] from `compute_column_scales`, if the format has column scales."""

    __repr__ = short_repr

    def quantize_into(
        self, rows: Array, vertices: Array, out: QuantizedRows, name: str, workers: Workers
    ) -> None:
        """Quantize rows [n, F] float32 or float16 into `out`, which has n rows and the same column scales.

        `vertices` [n] are the ids of the rows. Stochastic rounding depends on the ids, so a row is always
        rounded in the same way. Raises DataError with the vertex and column of a value that cannot be
        represented.
        """
        if not self.format.scales:
            out.codes[:] = _bits(rows, self.format)
            self._check(rows, ~_are_finite(out.codes, self.format), vertices, name)
            return
        matrix = rows.view(np.uint16) if rows.dtype == np.float16 else rows
        largest = np.empty(len(rows), np.float32)
        workers.run(lambda start, stop: max_abs_rows(matrix, largest, start, stop), len(rows), _GRAIN)
        if not np.isfinite(largest).all():
            self._check(rows, ~np.isfinite(rows), vertices, name)
        scales = out.row_scales
        if scales is not None:
            workers.run(lambda start, stop: compute_scales(largest, scales, start, stop), len(rows), _GRAIN)
        key = None if self.seed is None else stream_key(self.seed, ROUNDING, 0, 0)
        workers.run(
            lambda start, stop: quantize_rows(
                matrix, scales, self.column_scales, key, vertices, out.codes, start, stop
            ),
            len(rows),
            _GRAIN,
        )

    def _check(self, rows: Array, bad: NDArray[np.bool_], vertices: Array, name: str) -> None:
        if not bad.any():
            return
        i, k = np.unravel_index(int(bad.argmax()), bad.shape)
        number = rows[i, k]
        reason = f"which {self.format.name} cannot represent: keep float32, or scale the features"
        if not np.isfinite(number):
            reason = "but features must be finite numbers: replace it"
        raise DataError(f"{name}: the feature in column {k} of vertex {vertices[i]} is {number:g}, {reason}")


def compute_column_scales(
    blocks: Iterable[Array], width: int, name: str, on_block: Callable[[int], None] = lambda rows: None
) -> NDArray[np.float32]:
    """Compute scales [F] float32 that map the largest absolute value of each column to the largest code.

    `blocks` yields all rows in blocks [n, F]. `on_block` is called with the number of rows of each block.
    Raises DataError with the vertex and column of a value that is not finite.
    """
    largest = np.zeros(width, np.float32)
    at = 0
    for block in blocks:
        if len(block):
            magnitudes = np.abs(block).max(0)
            if not np.isfinite(magnitudes).all():
                bad = ~np.isfinite(block)
                i, k = np.unravel_index(int(bad.argmax()), bad.shape)
                raise DataError(
                    f"{name}: the feature in column {k} of vertex {at + i} is {block[i, k]:g}, but features "
                    "must be finite numbers: replace it"
                )
            np.maximum(largest, magnitudes, out=largest)
        at += len(block)
        on_block(len(block))
    scales = np.empty(width, np.float32)
    compute_scales(largest, scales, 0, width)
    return scales


def _bits(rows: Array, row_format: RowFormat) -> Array:
    """Return the codes of a format without scales, rounded to nearest with ties to even."""
    if row_format == FLOAT16:
        with np.errstate(over="ignore"):
            halves: Array = rows.astype(np.float16).view(np.uint16)
        return halves
    assert row_format == BFLOAT16
    bits = np.ascontiguousarray(rows, np.float32).view(np.uint32)
    bits = bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))
    codes: Array = (bits >> 16).astype(np.uint16).view(np.int16)
    return codes


def _are_finite(codes: Array, row_format: RowFormat) -> NDArray[np.bool_]:
    exponent = 0x7C00 if row_format == FLOAT16 else 0x7F80
    finite: NDArray[np.bool_] = (codes.view(np.uint16) & exponent) != exponent
    return finite
