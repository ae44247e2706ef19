"""Storage and transfer formats of feature rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MAX_CODE = 127
"""Largest int8 code. The smallest one is -127, so that codes are symmetric and zero is exact."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Storage format of feature values: floats, or int8 codes with scales."""

    name: str
    dtype: np.dtype[Any]
    """Dtype of the codes: uint16 for float16 bits, int16 for bfloat16 bits."""
    scales: Literal["", "row", "column"] = ""
    """Granularity of the float32 scales that multiply the codes; empty without scales."""

    @property
    def is_quantized(self) -> bool:
        """Return whether a value takes fewer bytes than float32."""
        return self.dtype.itemsize < 4

    def row_bytes(self, width: int) -> int:
        """Return the size in bytes of a row of `width` values, including its scale."""
        return width * self.dtype.itemsize + (4 if self.scales == "row" else 0)


FLOAT32 = RowFormat("float32", np.dtype(np.float32))
FLOAT16 = RowFormat("float16", np.dtype(np.uint16))
BFLOAT16 = RowFormat("bfloat16", np.dtype(np.int16))
INT8 = RowFormat("int8", np.dtype(np.int8), "row")
INT8_COLUMNS = RowFormat("int8-columns", np.dtype(np.int8), "column")
ROW_FORMATS = {each.name: each for each in (FLOAT32, FLOAT16, BFLOAT16, INT8, INT8_COLUMNS)}
