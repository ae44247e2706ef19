"""Order in which the chunks of edges are processed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Order = Literal["column-row", "row-column"]
"""`column-row`: column by column in the forward pass and row by row in the backward pass (rows are
sources, columns destinations), so that accumulated rows stay on the device (NeuGraph, section 3.1).
`row-column`: the reverse, so that rows that are read stay, and accumulated rows are swapped.
"""


@dataclass(frozen=True, slots=True)
class ChunkVisit:
    """Step over one chunk of edges: rows of interval `read` are added to interval `accumulated`.

    In the forward pass, sources are read and destinations accumulated; in the backward pass, gradients of
    destinations are read and gradients of sources accumulated.
    """

    accumulated: int
    read: int
    is_first: bool
    """Whether nothing was added to `accumulated` before."""
    is_last: bool
    """Whether nothing will be added to it afterwards."""


def visits(accumulated: Iterable[int], read: Sequence[int], order: Order) -> Iterator[ChunkVisit]:
    """Iterate over all chunks between some intervals, each once.

    Parameters
    ----------
    accumulated
        The intervals that are accumulated; iterated repeatedly for `row-column`.
    read
        The intervals that are read.
    order
        Determines which intervals stay on the device.
    """
    if order == "column-row":
        for i in accumulated:
            for j in read:
                yield ChunkVisit(i, j, j == read[0], j == read[-1])
    else:
        for j in read:
            for i in accumulated:
                yield ChunkVisit(i, j, j == read[0], j == read[-1])
