"""Matrices as the compiled loops take them: one array of elements, and how far apart its rows lie."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

AHEAD = 64
"""Edges between asking for a row and reading it: with fewer, rows of 16 columns take 1.2 times as long."""

# Columns of one pass over the edges. More would not stay in the registers that a processor with AVX-512 has.
_MOST_LANES = 128
_FEWEST_LANES = 1

_ELEMENTS = (np.float32, np.float64, np.uint16, np.int16)


def flat(what: str, x: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The elements of a matrix from its first to its last, and those from one row to the next.

    Raises
    ------
    ValueError
        If it is no matrix, its columns do not lie side by side, or its dtype is none of float32, float64,
        uint16 (the bits of float16) and int16 (those of bfloat16).
    """
    if x.ndim != 2 or x.dtype not in _ELEMENTS:
        raise ValueError(
            f"{what} has shape {x.shape} and is {x.dtype}: give a matrix of float32, float64, uint16 (the "
            "bits of float16) or int16 (the bits of bfloat16)"
        )
    size = x.dtype.itemsize
    if x.size and (x.strides[1] != size or x.strides[0] % size) and x.shape[1] > 1:
        raise ValueError(f"{what} has strides {x.strides}: its columns must lie side by side")
    if x.flags.c_contiguous:
        return x.reshape(-1), x.shape[1]
    step = x.shape[1] if len(x) == 1 else x.strides[0] // size
    return as_strided(x[0], ((len(x) - 1) * step + x.shape[1],), (size,)), step


def elements(what: str, x: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The elements of a C-contiguous array of one shape, of a dtype that `flat` takes.

    Raises
    ------
    ValueError
        If it is not so.
    """
    if x.shape != shape or x.dtype not in _ELEMENTS or not x.flags.c_contiguous:
        raise ValueError(
            f"{what} has shape {x.shape} and is {x.dtype}: give a C-contiguous array of shape {shape}, of "
            "float32, float64, uint16 (the bits of float16) or int16 (the bits of bfloat16)"
        )
    return x.reshape(-1)


def numbers_of_rows(rows: NDArray[Any] | None, columns: NDArray[Any]) -> NDArray[Any] | None:
    """The rows to compute, in the dtype in which edges name vertices: one loop is compiled for all."""
    return None if rows is None else rows.astype(columns.dtype, copy=False)


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What rows of a dtype are summed in: float32 unless they are float64."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def column_passes(width: int) -> list[tuple[int, int, int | None]]:
    """How a row is cut into passes over the edges.

    Returns
    -------
    For each pass its first column, the lanes of its vector, and how many of them hold columns (None: all).
    """
    passes = []
    for at in range(0, width, _MOST_LANES):
        passes.append((at, *_lanes(min(width - at, _MOST_LANES))))
    return passes


def head_passes(heads: int, width: int) -> list[tuple[int, int, int, int | None]]:
    """How rows of heads are cut into passes over the edges, each of whole heads.

    Returns
    -------
    For each pass its first head, how many heads it has, and its lanes as in `column_passes`.
    """
    together = max(1, min(heads, _MOST_LANES // width))
    passes = []
    for head in range(0, heads, together):
        number = min(together, heads - head)
        passes.append((head, number, *_lanes(number * width)))
    return passes


def _lanes(columns: int) -> tuple[int, int | None]:
    # Other numbers of lanes than powers of two become slow code.
    lanes = max(_FEWEST_LANES, 1 << (columns - 1).bit_length())
    return lanes, None if columns == lanes else columns
