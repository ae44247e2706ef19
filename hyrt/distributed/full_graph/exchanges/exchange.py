"""How rows of other ranks come for a product over a graph, and how their gradients go back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]


class Arrival(Protocol):
    """Rows on their way."""

    @property
    def ended_at(self) -> float | None:
        """When they had arrived, by `time.perf_counter`; None while they have not."""
        ...

    def wait(self) -> None:
        """Until they are there."""
        ...


class WayBack(Protocol):
    """Partial sums of gradients on their way to the ranks that have the rows."""

    @property
    def ended_at(self) -> float | None:
        """When all had arrived, by `time.perf_counter`; None while they have not."""
        ...

    def send(self, wave: int) -> None:
        """Begin to send those of one exchange's rows, which are complete; in the order of the exchanges."""
        ...

    def add(self, out: Array) -> None:
        """Wait, and add to `out` [n, w] what other ranks have sent for own rows, in a fixed order."""
        ...


class Exchange(Protocol):
    """Brings remote rows in one or more exchanges; all ranks do the same in the same order."""

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> Sequence[Arrival]:
        """Begin to fill the remote rows of a matrix [n + h, w] from the own rows of all ranks.

        Own rows may be read meanwhile, but not written. There is one arrival for each exchange. Matrices that
        travel at the same time have different slots.
        """
        ...

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> WayBack:
        """The way of the remote rows of a matrix [n + h, w] to the ranks that have them."""
        ...


def bytes_of(rows: Array) -> torch.Tensor:
    """[n, bytes of a row] uint8 of [n, w], over the same memory: numbers of any dtype travel as they are."""
    if not rows.size:
        return torch.empty((len(rows), rows.shape[1] * rows.itemsize), dtype=torch.uint8)
    return torch.from_numpy(rows.view(np.uint8))
