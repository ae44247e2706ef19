"""Protocols of the halo exchange of rows and of their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


class Arrival(Protocol):
    """Handle of rows being received."""

    @property
    def ended_at(self) -> float | None:
        """Time when all rows had been received (`time.perf_counter`); None before."""
        ...

    def wait(self) -> None:
        """Wait until all rows have been received."""
        ...


class WayBack(Protocol):
    """Handle of partial gradient sums being returned to the owners of the rows."""

    @property
    def ended_at(self) -> float | None:
        """Time when all gradients had been received (`time.perf_counter`); None before."""
        ...

    def send(self, wave: int) -> None:
        """Start to send the complete gradients of one exchange round; rounds must be sent in order."""
        ...

    def add(self, out: Array) -> None:
        """Wait, and add the received gradients of local rows to `out` [n, w], in a fixed order."""
        ...


class Exchange(Protocol):
    """Exchange of halo rows in one or more rounds; all ranks make the same calls in the same order."""

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> Sequence[Arrival]:
        """Start to fill the remote rows of a matrix [n + h, w] from the local rows of all ranks.

        Local rows may be read but not written meanwhile. Returns one handle per exchange round. Matrices that
        are
        exchanged at the same time need different slots.
        """
        ...

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> WayBack:
        """Start to return gradients of the remote rows of a matrix [n + h, w] to their owners."""
        ...


def bytes_of(rows: Array) -> torch.Tensor:
    """View rows [n, w] as bytes, [n, bytes per row] uint8, so that any dtype can be sent unchanged."""
    if not rows.size:
        return torch.empty((len(rows), rows.shape[1] * rows.itemsize), dtype=torch.uint8)
    return torch.from_numpy(rows.view(np.uint8))
