"""The formats that feature rows are kept and moved in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

MOST_CODE = 127
"""The largest code of int8. The smallest is its negative, so that zero stays zero and codes are symmetric."""


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How the values of a feature row are written: as numbers, or as codes with a scale."""

    name: str
    dtype: np.dtype[Any]
    """The dtype of the codes: uint16 for the bits of halves, int16 for those of bfloat16."""
    scales: Literal["", "row", "column"] = ""
    """What has a float32 scale of its own, with which its codes are multiplied; empty where nothing has."""

    @property
    def is_narrow(self) -> bool:
        """Whether a value takes fewer bytes than float32."""
        return self.dtype.itemsize < 4

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of so many values, with its scale."""
        return width * self.dtype.itemsize + (4 if self.scales == "row" else 0)


FLOAT32 = RowFormat("float32", np.dtype(np.float32))
FLOAT16 = RowFormat("float16", np.dtype(np.uint16))
BFLOAT16 = RowFormat("bfloat16", np.dtype(np.int16))
INT8 = RowFormat("int8", np.dtype(np.int8), "row")
INT8_COLUMNS = RowFormat("int8-columns", np.dtype(np.int8), "column")
ROW_FORMATS = {each.name: each for each in (FLOAT32, FLOAT16, BFLOAT16, INT8, INT8_COLUMNS)}
