"""Reading and writing of quantized feature rows in a dataset, as codes and scales by schema key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph import check
from hyrt.graph.formats.schema import SCALE_KEYS, FeatureRows
from hyrt.graph.quantized.features import QuantizedFeatures
from hyrt.graph.quantized.row_format import BFLOAT16, INT8, INT8_COLUMNS
from hyrt.graph.quantized.rows import QuantizedRows, Quantizer, to_numpy_dtype
from hyrt.runtime.workers import current_workers

Array = NDArray[Any]


_CHECKED_ROWS = 1024
_TINY = 1e-30


def is_quantized_dtype(dtype: np.dtype[Any]) -> bool:
    """Return whether a feature dtype is that of codes: int8, or uint16 for bfloat16 bits."""
    return dtype in (np.int8, np.uint16)


def _check_bfloat16(source: str, codes: Array) -> None:
    """Raise DataError if most of the first non-zero values are below 1e-30, like counts that are misread as
    bfloat16 bits.
    """
    first = codes[:_CHECKED_ROWS].view(np.int16)
    values = np.abs(to_numpy_dtype(first)[first & 0x7FFF != 0])
    tiny = int((values < _TINY).sum())
    if 2 * tiny > len(values):
        raise check.reject(
            source,
            "features",
            f"uint16 values are read as bfloat16 bits, but {tiny:,} of the first {len(values):,} values "
            f"would be below {_TINY:g}: if these are counts, convert them with array.astype('float32')",
        )


def read_quantized_rows(source: str, codes: Array, arrays: dict[str, Array]) -> FeatureRows:
    """Read the feature codes [V, F] of a dataset: int8 with scales, or uint16 with bfloat16 bits.

    The scales are removed from `arrays`. Raises DataError unless there is one positive scale per row or per
    column.
    """
    by_row, by_column = (arrays.pop(key, None) for key in SCALE_KEYS)
    if codes.dtype != np.int8:
        check_no_scales(source, codes.dtype, {"row_scales": by_row, "column_scales": by_column})
        _check_bfloat16(source, codes)
        rows = QuantizedRows(BFLOAT16, codes.view(np.int16))
        return FeatureRows.from_source(QuantizedFeatures(rows), codes.shape[0])
    if (by_row is None) == (by_column is None):
        raise check.reject(
            source,
            "features",
            f"has int8 values, which need row_scales [{codes.shape[0]}] or column_scales "
            f"[{codes.shape[1]}]: set one of them",
        )
    for key, values, count, unit in zip(
        SCALE_KEYS, (by_row, by_column), codes.shape, ("row", "column"), strict=True
    ):
        if values is None:
            continue
        if len(values) != count:
            raise check.reject(
                source,
                key,
                f"has {len(values):,} entries, but 'features' needs {count:,}: use one scale per {unit}",
            )
        bad = ~(np.isfinite(values) & (values > 0))
        if bad.any():
            at = int(bad.argmax())
            raise check.reject(
                source, key, f"value {values[at]} at position {at} is not a finite number above 0: replace it"
            )
    quantized = QuantizedRows(INT8 if by_column is None else INT8_COLUMNS, codes, by_row, by_column)
    return FeatureRows.from_source(QuantizedFeatures(quantized), codes.shape[0])


def check_no_scales(source: str, dtype: np.dtype[Any], arrays: dict[str, Any]) -> None:
    """Raise DataError if there are scales for features that do not need any."""
    for key in SCALE_KEYS:
        if arrays.get(key) is not None:
            raise check.reject(
                source, key, f"is only used for int8 features, but these are {dtype.name}: remove it"
            )


@dataclass(slots=True)
class QuantizedRowWriter:
    """Blocks of feature rows as dataset arrays. The scales are complete after the last block."""

    dtype: np.dtype[Any]
    """Dtype of the array `features`."""
    blocks: Iterator[Array]
    """Blocks of rows, which can be iterated once."""
    scales: dict[str, Array]

    __repr__ = short_repr

    @classmethod
    def from_rows(cls, rows: FeatureRows, name: str) -> QuantizedRowWriter:
        """Create a writer of feature rows; `name` is for messages."""
        quantized, rounding = rows.quantized, rows.rounding
        if quantized is not None:
            codes = quantized.codes.view(np.uint16) if quantized.format == BFLOAT16 else quantized.codes
            scales = zip(SCALE_KEYS, (quantized.row_scales, quantized.column_scales), strict=True)
            named = {key: values for key, values in scales if values is not None}
            return cls(codes.dtype, check.iter_row_blocks(codes), named)
        if rounding is None:
            return cls(np.dtype(rows.dtype), rows.blocks(), {})
        found: dict[str, Array] = {}
        if rounding.format.scales == "row":
            found["row_scales"] = np.empty(rows.shape[0], np.float32)
        elif rounding.column_scales is not None:
            found["column_scales"] = rounding.column_scales
        dtype = np.dtype(np.int8 if rounding.format.scales else np.uint16)
        return cls(dtype, _codes(rows, rounding, found.get("row_scales"), name), found)


def _codes(
    rows: FeatureRows, rounding: Quantizer, row_scales: NDArray[np.float32] | None, name: str
) -> Iterator[Array]:
    at = 0
    for block in rows.blocks():
        out = QuantizedRows.allocate(rounding.format, block.shape, rounding.column_scales)
        rounding.quantize_into(block, np.arange(at, at + len(block)), out, name, current_workers())
        if row_scales is not None:
            assert out.row_scales is not None
            row_scales[at : at + len(block)] = out.row_scales
        at += len(block)
        yield out.codes if rounding.format.scales else out.codes.view(np.uint16)
