"""Matrices as arguments of compiled loops: a flat array of elements, and the distance between rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

AHEAD = 64
"""Prefetch distance in edges: with fewer, rows of 16 columns take 1.2 times as long."""

# Columns per pass over the edges. More would not fit the registers of a processor with AVX-512.
_MAX_LANES = 128
_MIN_LANES = 1

_ELEMENTS = (np.float32, np.float64, np.uint16, np.int16)


def flat(name: str, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return the elements of a matrix as a flat array, and the number of elements between row starts.

    Raises
    ------
    ValueError
        If x is not a matrix, its columns are not adjacent, or its dtype is not one of float32, float64,
        uint16 (float16 bits) and int16 (bfloat16 bits).
    """
    if x.ndim != 2 or x.dtype not in _ELEMENTS:
        raise ValueError(
            f"{name} has shape {x.shape} and is {x.dtype}: give a matrix of float32, float64, uint16 (the "
            "bits of float16) or int16 (the bits of bfloat16)"
        )
    size = x.dtype.itemsize
    if x.size and (x.strides[1] != size or x.strides[0] % size) and x.shape[1] > 1:
        raise ValueError(f"{name} has strides {x.strides}: its columns must be adjacent in memory")
    if x.flags.c_contiguous:
        return x.reshape(-1), x.shape[1]
    step = x.shape[1] if len(x) == 1 else x.strides[0] // size
    return as_strided(x[0], ((len(x) - 1) * step + x.shape[1],), (size,)), step


def elements(name: str, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the elements of a C-contiguous array as a flat array, after checks of its shape and dtype.

    Raises
    ------
    ValueError
        If the array does not have this shape, a dtype that `flat` accepts, or is not C-contiguous.
    """
    if x.shape != shape or x.dtype not in _ELEMENTS or not x.flags.c_contiguous:
        raise ValueError(
            f"{name} has shape {x.shape} and is {x.dtype}: give a C-contiguous array of shape {shape}, of "
            "float32, float64, uint16 (the bits of float16) or int16 (the bits of bfloat16)"
        )
    return x.reshape(-1)


def numbers_of_rows(rows: NDArray[Any] | None, columns: NDArray[Any]) -> NDArray[Any] | None:
    """Convert the row ids to the dtype of the columns, so that one compiled loop serves all integer types."""
    return None if rows is None else rows.astype(columns.dtype, copy=False)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in which rows of a dtype are summed: float32, or float64 for float64 rows."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def column_passes(width: int) -> list[tuple[int, int, int | None]]:
    """Divide a row into passes over the edges.

    Returns
    -------
    Per pass: the first column, the number of vector lanes, and the number of lanes in use (None: all).
    """
    passes = []
    for column in range(0, width, _MAX_LANES):
        passes.append((column, *_lanes(min(width - column, _MAX_LANES))))
    return passes


def head_passes(heads: int, width: int) -> list[tuple[int, int, int, int | None]]:
    """Divide rows of heads into passes over the edges, each with complete heads.

    Returns
    -------
    Per pass: the first head, the number of heads, and the lanes as in `column_passes`.
    """
    pass_heads = max(1, min(heads, _MAX_LANES // width))
    passes = []
    for head in range(0, heads, pass_heads):
        number = min(pass_heads, heads - head)
        passes.append((head, number, *_lanes(number * width)))
    return passes


def _lanes(columns: int) -> tuple[int, int | None]:
    # Lane counts other than powers of two compile to slow code.
    lanes = max(_MIN_LANES, 1 << (columns - 1).bit_length())
    return lanes, None if columns == lanes else columns
