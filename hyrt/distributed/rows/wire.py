"""Wire format of dense rows: unchanged, or rounded to 16-bit values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import Device
from hyrt.errors import DataError
from hyrt.observe.events import Notice
from hyrt.observe.hook import Hook

_MAX_FLOAT16 = 65_504


@dataclass(frozen=True, slots=True)
class Wire:
    """Data type of transferred values; float32 values are rounded to the nearest value of this type."""

    values: torch.dtype
    """torch.float32, torch.float16 or torch.bfloat16."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of numpy arrays of such values; bfloat16 bits are stored as float16."""
        return np.dtype(np.float32 if self.values == torch.float32 else np.float16)

    def packed(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        """Convert float32 rows to the wire format, [n, F] of `dtype`.

        Raises
        ------
        DataError
            If a value exceeds the range of float16.
        """
        if self.values == torch.float32:
            return rows
        rounded = torch.from_numpy(rows).to(self.values)
        if self.values == torch.float16 and bool(rounded.isinf().any()):
            raise DataError(
                f"a feature is {rows[np.isinf(rounded.numpy())][0]:g}, and distributed.wire=float16 holds at "
                f"most {_MAX_FLOAT16:,}: give distributed.wire=bfloat16 or float32, or scale the features "
                "with data.normalize"
            )
        packed: NDArray[Any] = rounded.view(torch.float16).numpy()
        return packed

    def bits(self, packed: NDArray[Any]) -> NDArray[Any]:
        """View rows of `dtype` as bits for compiled loops (`hyrt.machine.intrinsics.value`)."""
        if self.values == torch.bfloat16:
            return packed.view(np.int16)
        return packed.view(np.uint16) if packed.dtype == np.float16 else packed


class RoundedRows(Hook):
    """Reports at the start of a run that transferred rows are rounded.

    Parameters
    ----------
    name
        Data type of the transferred rows.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, devices: Sequence[Device], steps: range) -> Notice:
        """Return the notice."""
        text = f"feature rows that ranks send are rounded to {self._name}, which changes training slightly"
        return Notice(kind="info", text=text)


def wire_of(name: str, value_bytes: int) -> Wire:
    """Return the wire format for a setting; 16-bit features are sent as float16, without rounding.

    Parameters
    ----------
    name
        `float32`, `float16` or `bfloat16`.
    value_bytes
        Size of a stored feature value in bytes.
    """
    if value_bytes == 2:
        return Wire(torch.float16)
    wires = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return Wire(wires[name])
