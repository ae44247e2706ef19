"""Normalization of features: of rows by sum or length, of columns by mean and standard deviation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.formats.schema import Dataset, FeatureRows
from hyrt.graph.metadata import Scaling, ScalingKind, divisors

Array = NDArray[Any]
Normalize = Literal["auto", "none", "row", "length", "standard"]
NORMALIZERS = get_args(Normalize)
_ROWS = 1 << 14


def normalize_features(data: Dataset, normalize: str) -> Dataset:
    """Return a dataset with scaled features. Dense features are scaled block by block when they are read.

    `row` divides each row by its sum, and `length` by its Euclidean length, unless it is 0. `standard` (for
    dense features only) subtracts the mean of each column and divides by the standard deviation; a constant
    column becomes 0. `auto` is `length` for bags of words, otherwise `none`. If a normalization was the last
    one to be applied, it is not applied again.

    Raises DataError for an unknown name, or for `standard` with sparse features.
    """
    if normalize not in NORMALIZERS:
        raise DataError(f"normalize={normalize!r} is unknown: use one of {', '.join(NORMALIZERS)}")
    if data.tables is not None:
        return data.with_features(lambda table: normalize_features(table, normalize))
    if normalize == "auto":
        bags = data.rows is None and are_bags_of_words(data.arrays["feat_values"])
        normalize = "length" if bags else "none"
    if normalize == "none" or normalize == data.normalization:
        return data
    return apply_scaling(data, (_fitted(data, normalize),))


def apply_scaling(data: Dataset, steps: Sequence[Scaling]) -> Dataset:
    """Apply fitted scalings to the features of one table, in order."""
    for step in steps:
        done = (*data.scaling, step)
        if data.rows is None:
            values = _sparse_rows(data.arrays, squared=step.squared)
            data = replace(data, arrays=data.arrays | {"feat_values": values}, scaling=done)
        else:
            data = replace(data, rows=_mapped(data.rows, step.apply), scaling=done)
    return data


def _fitted(data: Dataset, kind: str) -> Scaling:
    """Fit a scaling to the features of one table."""
    if kind != "standard":
        return Scaling(cast(ScalingKind, kind))
    if data.rows is None:
        raise DataError(
            f"{data.name}: normalize 'standard' would make its sparse features dense: use 'length', "
            "'row' or 'none'"
        )
    return _standard(data.rows)


def _mapped(rows: FeatureRows, change: Callable[[Array], Array]) -> FeatureRows:
    return FeatureRows.from_blocks(rows.shape, rows.dtype, lambda: (change(block) for block in rows.blocks()))


def are_bags_of_words(values: Array) -> bool:
    """Return whether sparse features are binary bags of words: all values [nnz] are 1, neither counted nor
    scaled.
    """
    return bool(np.all(values == 1))


def largest_column_rms(rows: FeatureRows) -> float:
    """Return the largest root mean square of a column in the first block of rows; 0 without rows.

    A column with large values dominates all others in a matrix product.
    """
    for block in rows.blocks():
        squares = np.square(block, dtype=np.float64).mean(axis=0)
        return float(np.sqrt(squares.max(initial=0.0)))
    return 0.0


def _sparse_rows(arrays: dict[str, Array], *, squared: bool) -> Array:
    indptr, values = arrays["feat_indptr"], arrays["feat_values"]
    result = np.empty_like(values)
    for low in range(0, len(indptr) - 1, _ROWS):
        starts = indptr[low : low + _ROWS + 1]
        part = slice(int(starts[0]), int(starts[-1]))
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        weights = values[part].astype(np.float64)
        sums = np.bincount(rows, weights=weights**2 if squared else weights, minlength=len(starts) - 1)
        result[part] = values[part] / divisors(sums, squared=squared)[rows]
    return result


def _standard(rows: FeatureRows) -> Scaling:
    total = np.zeros(rows.shape[1])
    for block in rows.blocks():
        total += block.sum(axis=0, dtype=np.float64)
    mean = total / rows.shape[0]
    squares = np.zeros(rows.shape[1])
    for block in rows.blocks():
        squares += np.square(block - mean).sum(axis=0)
    deviation = np.sqrt(squares / rows.shape[0])
    # Due to rounding, a constant column may have a deviation of a few ulps of its mean.
    deviation[deviation <= 1e-7 * np.abs(mean)] = np.inf
    return Scaling("standard", mean, deviation)
