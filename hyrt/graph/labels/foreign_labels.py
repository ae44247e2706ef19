"""Conversion of labels from other libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.check import reject

Array = NDArray[Any]


def as_targets(values: Array, source: str, key: str) -> Array:
    """Convert labels of another library, of any dtype, to the dtype that hyrt uses for their kind.

    [V] integers are classes; [V, K] of 0, 1 and nan (or -1) are labels of 0 and 1; other floats are numbers,
    even if they are whole, as in files.

    Raises
    ------
    DataError
        If there are integers [V, K] other than these.
    """
    is_float = values.dtype.kind == "f"
    known = values[~np.isnan(values)] if is_float else values
    if values.ndim == 2:
        if ((known == 0) | (known == 1) | (known == -1)).all():
            return (
                np.where(np.isnan(values), -1, values).astype(np.int8) if is_float else values.astype(np.int8)
            )
        if not is_float:
            raise reject(source, key, "integers [V, K] that are not 0 or 1: make numbers floats")
        return values.astype(np.float32)
    if is_float:
        return values.astype(np.float32)
    return as_labels(values, source, key)


def as_labels(values: Array, source: str, key: str) -> Array:
    """Convert classes to the smallest sufficient dtype of int16, int32 and int64; NaN becomes -1.

    Raises
    ------
    DataError
        If a value is not a whole number.
    """
    if values.dtype.kind == "f":
        missing = np.isnan(values)
        whole = np.where(missing, -1, values)
        odd = (whole != np.floor(whole)) | np.isinf(whole)
        if odd.any():
            at = int(odd.argmax())
            raise reject(
                source,
                key,
                f"value {values[at]} at position {at} is not a class: give whole numbers from 0 on",
            )
    else:
        whole = values
    highest = int(whole.max()) if len(whole) else 0
    lowest = int(whole.min()) if len(whole) else 0
    for dtype in (np.int16, np.int32):
        if np.iinfo(dtype).min <= lowest and highest <= np.iinfo(dtype).max:
            return whole.astype(dtype)
    return whole.astype(np.int64)
