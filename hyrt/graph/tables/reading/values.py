"""Values of columns as numpy has them, with which of them are missing and which are no such values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Flags = NDArray[np.bool_]

_EXACT = 2.0**53
"""From here on floating-point numbers leave whole numbers out."""


def whole_numbers(column: Any, decimal: str = ".") -> tuple[NDArray[np.int64], Flags, Flags]:
    """Whole numbers, also where they are written as 3.0.

    Parameters
    ----------
    column
        An Arrow array [n] of numbers, of true and false, or of texts.
    decimal
        The decimal point of texts.

    Returns
    -------
    int64 [n], 0 where there is none; which values are missing; which are something else.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    missing = _missing(column)
    bad = np.zeros(len(column), np.bool_)
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        if column.type == pa.uint64():
            beyond = pc.greater(column, pa.scalar(2**63 - 1, pa.uint64())).fill_null(False)
            bad = beyond.to_numpy(zero_copy_only=False)
            column = pc.if_else(beyond, pa.scalar(None, pa.uint64()), column)
        return pc.cast(column, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), missing, bad
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            numbers = pc.cast(pc.utf8_trim_whitespace(column), pa.int64())
            return numbers.fill_null(0).to_numpy(zero_copy_only=False), missing, bad
        except pa.ArrowInvalid:
            pass
    real, _, bad = real_numbers(column, decimal)
    with np.errstate(invalid="ignore"):
        whole = (real == np.floor(real)) & (np.abs(real) < _EXACT)
    bad |= ~missing & ~whole
    return np.where(whole, real, 0).astype(np.int64), missing, bad


def real_numbers(column: Any, decimal: str = ".") -> tuple[NDArray[np.float64], Flags, Flags]:
    """Numbers; nan where there is none; see `whole_numbers`. What is infinite is wrong, nan is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    missing = _missing(column)
    bad = np.zeros(len(column), np.bool_)
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        trimmed = pc.utf8_trim_whitespace(column)
        if decimal != ".":
            trimmed = pc.replace_substring(trimmed, decimal, ".")
        try:
            numbers = pc.cast(trimmed, pa.float64())
        except pa.ArrowInvalid:
            values = np.full(len(column), np.nan)
            for at, text in enumerate(trimmed.to_pylist()):
                if text is not None:
                    values[at] = _number(text)
                    bad[at] = math.isnan(values[at])
            bad |= np.isinf(values)
            return values, missing, bad
    elif pa.types.is_boolean(kind):
        numbers = pc.cast(column, pa.int8()).cast(pa.float64())
    elif pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        numbers = pc.cast(column, pa.float64(), safe=False)
    elif pa.types.is_null(kind):
        return np.full(len(column), np.nan), missing, bad
    else:
        return np.full(len(column), np.nan), missing, ~missing
    values = numbers.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    missing = missing | np.isnan(values)
    return values, missing, np.isinf(values)


def texts(column: Any) -> tuple[Any, Flags]:
    """Values as texts: an Arrow array of strings, and which are missing. Whole numbers have no point."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _plain(column)
    missing = _missing(column)
    if pa.types.is_string(column.type):
        return column, missing
    if pa.types.is_binary(column.type) or pa.types.is_large_string(column.type):
        return pc.cast(column, pa.string()), missing
    if pa.types.is_floating(column.type):
        numbers, missing, bad = whole_numbers(column)
        if not bad.any():
            return pc.cast(pa.array(numbers, mask=missing), pa.string()), missing
    return pc.cast(column, pa.string()), missing


def matrix(column: Any) -> tuple[Array, Flags, Flags] | None:
    """A column of lists of one length, as float64 [n, width], with what is missing and what is wrong by row.

    None where it is no column of lists.
    """
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        return None
    num = len(column)
    missing = _missing(column)
    lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    width = int(lengths.max(initial=0))
    values = np.full((num, width), np.nan)
    bad = ~missing & (lengths != width)
    good = ~missing & ~bad
    inner, _, wrong = real_numbers(column.filter(pa.array(good)).flatten())
    values[good] = inner.reshape(-1, width) if width else 0
    if wrong.any():
        bad[np.flatnonzero(good)[wrong.reshape(-1, width).any(axis=1)]] = True
    return values, missing | (good & np.isnan(values).any(axis=1)), bad


def _plain(column: Any) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _missing(column: Any) -> Flags:
    if not column.null_count:
        return np.zeros(len(column), np.bool_)
    flags: Flags = column.is_null().to_numpy(zero_copy_only=False)
    return flags


def _number(text: str) -> float:
    try:
        return float(text) if "_" not in text else math.nan
    except ValueError:
        return math.nan
