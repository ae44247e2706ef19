"""Rows on the device, as numbers or as codes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.cached.cached_rows import Rows
from hyrt.graph.narrow.narrow_rows import NarrowRows
from hyrt.graph.narrow.row_format import BFLOAT16, FLOAT16, FLOAT32, RowFormat


@dataclass(frozen=True, slots=True)
class RowArrays:
    """Rows in host memory, as they travel."""

    format: RowFormat
    codes: NDArray[Any]
    """[n, f] float32, int8, or int16 for the bits of float16 and bfloat16."""
    row_scales: NDArray[np.float32] | None = None
    """[n] what the codes of each row are multiplied with, or None."""
    column_scales: NDArray[np.float32] | None = None
    """[f] what those of each column are multiplied with, or None."""

    @classmethod
    def of(cls, rows: Rows) -> RowArrays:
        """The arrays of rows, which are shared."""
        if not isinstance(rows, NarrowRows):
            return cls(FLOAT32, rows)
        codes = rows.codes.view(np.int16) if rows.codes.dtype == np.uint16 else rows.codes
        return cls(rows.format, codes, rows.row_scales, rows.column_scales)

    def moved(self, move: Callable[[NDArray[Any]], torch.Tensor]) -> RowTensors:
        """The same where `move` puts an array."""
        scales = (None if each is None else move(each) for each in (self.row_scales, self.column_scales))
        return RowTensors(self.format, move(self.codes), *scales)


@dataclass(frozen=True, slots=True)
class RowTensors:
    """Rows on the device."""

    format: RowFormat
    codes: torch.Tensor
    row_scales: torch.Tensor | None = None
    column_scales: torch.Tensor | None = None
    """`codes`, `row_scales` and `column_scales`: as in `RowArrays`."""

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales of rows."""
        return self.codes.nbytes + (0 if self.row_scales is None else self.row_scales.nbytes)

    def numbers(self) -> torch.Tensor:
        """[n, f] float32, on the current stream; the rows themselves where they are that."""
        if self.format is FLOAT32:
            return self.codes
        if self.format in (FLOAT16, BFLOAT16):
            return self.codes.view(torch.float16 if self.format is FLOAT16 else torch.bfloat16).float()
        found = self.codes.float()
        if self.row_scales is not None:
            found *= self.row_scales.unsqueeze(1)
        if self.column_scales is not None:
            found *= self.column_scales
        return found

    def joined(self, sent: RowTensors, places: torch.Tensor) -> RowTensors:
        """The rows of a mini-batch, of which some are kept here and the others were sent.

        Parameters
        ----------
        sent
            The others, in the same format.
        places
            [n] int32, as `CachedRows.places`.
        """
        is_here, kept_at = places >= 0, places.clamp(min=0)

        def of_both(kept: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
            here = kept.index_select(0, kept_at)
            if not len(other):
                return here
            # Which they are is not asked of the device: its answer would have to be waited for.
            there = other.index_select(0, (-1 - places).clamp(min=0))
            return torch.where(is_here.unsqueeze(1) if here.dim() == 2 else is_here, here, there)

        scales = None
        if self.row_scales is not None and sent.row_scales is not None:
            scales = of_both(self.row_scales, sent.row_scales)
        return replace(sent, codes=of_both(self.codes, sent.codes), row_scales=scales)


@dataclass(frozen=True, slots=True)
class SentRows:
    """The rows of a mini-batch on the device: all of them sent, or some of them kept there."""

    sent: RowTensors
    """Those that were sent."""
    kept: RowTensors | None = None
    """Those that the device keeps, in the same format; None where `places` is."""
    places: torch.Tensor | None = None
    """[n] int32, where each row is, as `CachedRows.places`; None where all were sent, in order."""

    @property
    def format(self) -> RowFormat:
        """The format of all of them."""
        return self.sent.format

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows there are, and their columns."""
        count = len(self.sent.codes if self.places is None else self.places)
        return count, int(self.sent.codes.shape[1])

    def numbers(self) -> torch.Tensor:
        """[n, f] float32 by torch's operators, on the current stream."""
        rows = self.sent
        if self.kept is not None and self.places is not None:
            rows = self.kept.joined(rows, self.places)
        return rows.numbers()
