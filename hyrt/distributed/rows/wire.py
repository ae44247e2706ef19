"""How the values of dense rows travel: as they are, or rounded to half of their bytes."""

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

_MOST_FLOAT16 = 65_504


@dataclass(frozen=True, slots=True)
class Wire:
    """The type of the values that ranks send each other, to the nearest of which float32 ones are rounded."""

    values: torch.dtype
    """torch.float32, torch.float16 or torch.bfloat16."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of arrays of them: numpy takes the bits of bfloat16 for float16."""
        return np.dtype(np.float32 if self.values == torch.float32 else np.float16)

    def packed(self, rows: NDArray[np.float32]) -> NDArray[Any]:
        """[n, F] of `dtype`: rows of float32 as they travel.

        Raises
        ------
        DataError
            If a value is beyond those of float16.
        """
        if self.values == torch.float32:
            return rows
        rounded = torch.from_numpy(rows).to(self.values)
        if self.values == torch.float16 and bool(rounded.isinf().any()):
            raise DataError(
                f"a feature is {rows[np.isinf(rounded.numpy())][0]:g}, and distributed.wire=float16 holds at "
                f"most {_MOST_FLOAT16:,}: give distributed.wire=bfloat16 or float32, or scale the features "
                "with data.normalize"
            )
        packed: NDArray[Any] = rounded.view(torch.float16).numpy()
        return packed

    def bits(self, packed: NDArray[Any]) -> NDArray[Any]:
        """Rows of `dtype` as compiled loops read them (`hyrt.machine.intrinsics.value`)."""
        if self.values == torch.bfloat16:
            return packed.view(np.int16)
        return packed.view(np.uint16) if packed.dtype == np.float16 else packed


class RoundedRows(Hook):
    """Says at the start of a run that rows which ranks send are rounded.

    Parameters
    ----------
    name
        The type to which they are.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def begin(self, devices: Sequence[Device], steps: range) -> Notice:
        """What the run says."""
        text = f"feature rows that ranks send are rounded to {self._name}, which changes training a bit"
        return Notice(kind="info", text=text)


def wire_of(name: str, value_bytes: int) -> Wire:
    """The wire that a setting names; halves travel as such, for nothing is gained by rounding them.

    Parameters
    ----------
    name
        `float32`, `float16` or `bfloat16`.
    value_bytes
        The size of a value of the rows as they are stored.
    """
    if value_bytes == 2:
        return Wire(torch.float16)
    wires = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    return Wire(wires[name])
