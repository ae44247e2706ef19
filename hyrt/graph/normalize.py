"""Scaling of features: by row sum, or by column mean and deviation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.schema import Dataset, FeatureRows

Array = NDArray[Any]
Normalize = Literal["none", "row", "standard"]
NORMALIZERS = ("none", "row", "standard")
_ROWS = 1 << 14


def scaled(data: Dataset, normalize: str) -> Dataset:
    """A dataset whose features are scaled; dense ones block by block as they are read.

    Parameters
    ----------
    data
        A checked dataset.
    normalize
        `none`; `row` divides each row by its sum (a row with sum 0 stays as it is); `standard` subtracts the
        column's mean and divides by its deviation (a constant column becomes 0; dense features only).

    Raises
    ------
    DataError
        For an unknown name, or `standard` with sparse features.
    """
    if normalize not in NORMALIZERS:
        raise DataError(f"unknown normalize {normalize!r}: give one of {', '.join(NORMALIZERS)}")
    if normalize == "none":
        return data
    if data.rows is None:
        if normalize == "standard":
            raise DataError(
                f"{data.name}: normalize 'standard' would make its sparse features dense: use 'row' or 'none'"
            )
        return replace(data, arrays=data.arrays | {"feat_values": _sparse_rows(data.arrays)})
    rows = data.rows
    return replace(data, rows=_dense_rows(rows) if normalize == "row" else _standard(rows))


def _sparse_rows(arrays: dict[str, Array]) -> Array:
    indptr, values = arrays["feat_indptr"], arrays["feat_values"]
    result = np.empty_like(values)
    for low in range(0, len(indptr) - 1, _ROWS):
        starts = indptr[low : low + _ROWS + 1]
        part = slice(int(starts[0]), int(starts[-1]))
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        sums = np.bincount(rows, weights=values[part], minlength=len(starts) - 1)
        sums[sums == 0] = 1.0
        result[part] = values[part] / sums[rows]
    return result


def _dense_rows(rows: FeatureRows) -> FeatureRows:
    def scale(block: Array) -> Array:
        sums = block.sum(axis=1, dtype=np.float64, keepdims=True)
        sums[sums == 0] = 1.0
        scaled_rows: Array = (block / sums).astype(rows.dtype)
        return scaled_rows

    return FeatureRows.streamed(rows.shape, rows.dtype, lambda: (scale(block) for block in rows.blocks()))


def _standard(rows: FeatureRows) -> FeatureRows:
    total = np.zeros(rows.shape[1])
    for block in rows.blocks():
        total += block.sum(axis=0, dtype=np.float64)
    mean = total / rows.shape[0]
    squares = np.zeros(rows.shape[1])
    for block in rows.blocks():
        squares += np.square(block - mean).sum(axis=0)
    deviation = np.sqrt(squares / rows.shape[0])
    # Rounding leaves a constant column with a deviation of some ulps of its mean.
    deviation[deviation <= 1e-7 * np.abs(mean)] = np.inf
    return FeatureRows.streamed(
        rows.shape,
        rows.dtype,
        lambda: (((block - mean) / deviation).astype(rows.dtype) for block in rows.blocks()),
    )
