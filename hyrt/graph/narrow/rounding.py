"""Quantization of feature rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.narrow.loops import largest_of_rows, round_rows, scales_of
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.narrow.row_format import BFLOAT16, FLOAT16, RowFormat
from hyrt.machine.generator import ROUNDING, stream_key
from hyrt.machine.workers import Workers
from hyrt.quantities import one_line

Array = NDArray[Any]
_GRAIN = 512


@dataclass(frozen=True, slots=True)
class Rounding:
    """Quantizer of float32 or float16 rows.

    The error of a value is at most half a scale step with rounding to nearest, and less than one step with
    stochastic rounding, which is unbiased over seeds.
    """

    format: RowFormat
    seed: int | None = None
    """The seed of stochastic rounding, which is for int8; None rounds to the nearest."""
    column_scales: NDArray[np.float32] | None = None
    """[F] the scales of columns, for a format that has them: see `column_scales`."""

    __repr__ = one_line

    def write(self, rows: Array, vertices: Array, out: NarrowRows, name: str, workers: Workers) -> None:
        """Quantize rows.

        Parameters
        ----------
        rows
            [n, F] float32 or float16.
        vertices
            [n] integers, the vertex of each row: a row is rounded alike wherever it is rounded.
        out
            Receives the n rows, with the column scales of this rounding.
        name
            The source of the rows, for messages.
        workers
            The threads that share the work.

        Raises
        ------
        DataError
            If a value cannot be written so: names vertex and column.
        """
        if not self.format.scales:
            out.codes[:] = _bits(rows, self.format)
            self._check(rows, ~_are_finite(out.codes, self.format), vertices, name)
            return
        matrix = rows.view(np.uint16) if rows.dtype == np.float16 else rows
        largest = np.empty(len(rows), np.float32)
        workers.run(lambda start, stop: largest_of_rows(matrix, largest, start, stop), len(rows), _GRAIN)
        if not np.isfinite(largest).all():
            self._check(rows, ~np.isfinite(rows), vertices, name)
        scales = out.row_scales
        if scales is not None:
            workers.run(lambda start, stop: scales_of(largest, scales, start, stop), len(rows), _GRAIN)
        key = None if self.seed is None else stream_key(self.seed, ROUNDING, 0, 0)
        workers.run(
            lambda start, stop: round_rows(
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
        why = f"which {self.format.name} cannot hold: keep float32, or scale the features"
        if not np.isfinite(number):
            why = "and features must be finite numbers: correct the data"
        raise DataError(f"{name}: the feature in column {k} of vertex {vertices[i]} is {number:g}, {why}")


def column_scales(
    blocks: Iterable[Array], width: int, name: str, seen: Callable[[int], None] = lambda rows: None
) -> NDArray[np.float32]:
    """Compute the column scales that map the largest value of each column to the largest code.

    Parameters
    ----------
    blocks
        All rows, [n, F] at a time.
    width
        The number of columns.
    name
        The source of the rows, for messages.
    seen
        Called with the number of rows of each block, after it was read.

    Returns
    -------
    [F] float32.

    Raises
    ------
    DataError
        If a value is not finite: names vertex and column.
    """
    largest = np.zeros(width, np.float32)
    at = 0
    for block in blocks:
        if len(block):
            most = np.abs(block).max(0)
            if not np.isfinite(most).all():
                bad = ~np.isfinite(block)
                i, k = np.unravel_index(int(bad.argmax()), bad.shape)
                raise DataError(
                    f"{name}: the feature in column {k} of vertex {at + i} is {block[i, k]:g}, and features "
                    "must be finite numbers: correct the data"
                )
            np.maximum(largest, most, out=largest)
        at += len(block)
        seen(len(block))
    scales = np.empty(width, np.float32)
    scales_of(largest, scales, 0, width)
    return scales


def _bits(rows: Array, row_format: RowFormat) -> Array:
    """Return the codes of a format without scales, rounded to nearest, ties to even."""
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
