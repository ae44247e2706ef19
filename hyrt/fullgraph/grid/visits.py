"""In which order the chunks of edges are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

Order = Literal["column-row", "row-column"]
"""`column-row`: column by column forward, row by row backward, where rows are sources and columns
destinations, so that what is accumulated stays (NeuGraph, section 3.1). `row-column`: the other way
round, so that what is read stays, and what is accumulated comes and goes."""


@dataclass(frozen=True, slots=True)
class ChunkVisit:
    """One chunk of edges: rows of interval `read` are added to those of interval `accumulated`.

    Forward, sources are read and destinations accumulated; backward, the gradients of destinations are read
    and those of sources accumulated.
    """

    accumulated: int
    read: int
    is_first: bool
    """Whether nothing was added to `accumulated` before."""
    is_last: bool
    """Whether nothing will be added to it afterwards."""


def visits(accumulated: Iterable[int], read: Sequence[int], order: Order) -> Iterator[ChunkVisit]:
    """All chunks between some intervals, each once.

    Parameters
    ----------
    accumulated
        The intervals that are added to; for `row-column`, to be gone through again and again.
    read
        The intervals of the other kind.
    order
        Which of them stays.
    """
    if order == "column-row":
        for i in accumulated:
            for j in read:
                yield ChunkVisit(i, j, j == read[0], j == read[-1])
    else:
        for j in read:
            for i in accumulated:
                yield ChunkVisit(i, j, j == read[0], j == read[-1])
