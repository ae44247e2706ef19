"""Distribution of rows to the parts of their vertices, and the inverse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.csr import ranges

Array = NDArray[Any]

ENTRIES = 1 << 21
"""Entries of CSR rows that are moved at once; a longer row still is one piece."""
ENTRY_BYTES = 48
"""Memory that each of them takes at most."""


def by_home(homes: Array, num_parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Group the vertices by part.

    Parameters
    ----------
    homes
        [V], the part of each vertex.
    num_parts
        The number of parts, P.

    Returns
    -------
    order
        [V], the vertices by part, sorted within each.
    starts
        [P+1], where each part's begin in `order`.
    """
    starts = np.zeros(num_parts + 1, np.int64)
    np.cumsum(np.bincount(homes, minlength=num_parts), out=starts[1:])
    return np.argsort(homes, kind="stable"), starts


def places_of(homes: Array, num_parts: int) -> Array:
    """Return [V] int32 (int64 from 2^31 vertices) the local index of each vertex within its part."""
    order, starts = by_home(homes, num_parts)
    places = np.empty(len(homes), np.int32 if len(homes) < 2**31 else np.int64)
    for first, last in itertools.pairwise(starts):
        places[order[first:last]] = np.arange(last - first)
    return places


def row_pointers(lengths: Array) -> NDArray[np.int64]:
    """Return the row pointers [n+1] of rows of the given lengths."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def taken_entries(indptr: Array, vertices: Array) -> Iterator[tuple[slice, Array]]:
    """Yield the positions of the entries of some rows, piece by piece.

    Parameters
    ----------
    indptr
        [V+1], the row pointers of all rows.
    vertices
        [n], the rows that are wanted.

    Yields
    ------
    Which of the wanted rows' entries these are, and the position of each among all entries.
    """
    lengths = indptr[vertices + 1] - indptr[vertices]
    starts = row_pointers(lengths)
    for low, high in ranges(starts, ENTRIES):
        shift = indptr[vertices[low:high]] - starts[low:high]
        first, last = int(starts[low]), int(starts[high])
        yield slice(first, last), np.repeat(shift, lengths[low:high]) + np.arange(first, last)


def joined_rows(
    pointers: Sequence[Array], entries: Sequence[Sequence[Array]], homes: Array
) -> tuple[NDArray[np.int64], list[Array]]:
    """Merge the CSR rows of all parts in vertex order, in memory.

    Parameters
    ----------
    pointers
        The row pointers of each part.
    entries
        What the rows hold, one sequence a kind (as columns and values) of one array a part.
    homes
        [V], the part of each vertex.

    Returns
    -------
    indptr
        [V+1], the row pointers of all rows.
    joined
        One array a kind.
    """
    order, bounds = by_home(homes, len(pointers))
    lengths = np.empty(len(homes), np.int64)
    lengths[order] = np.concatenate([np.diff(pointer) for pointer in pointers])
    indptr = row_pointers(lengths)
    joined = [np.empty(indptr[-1], kind[0].dtype) for kind in entries]
    for number in range(len(pointers)):
        vertices = order[bounds[number] : bounds[number + 1]]
        for piece, positions in taken_entries(indptr, vertices):
            for out, kind in zip(joined, entries, strict=True):
                out[positions] = kind[number][piece]
    return indptr, joined


def dealt_blocks(
    blocks: Iterator[Array], homes: Array, num_parts: int, served: range
) -> Iterator[tuple[int, Array]]:
    """Distribute consecutive rows of all vertices to parts.

    Parameters
    ----------
    blocks
        Consecutive blocks of rows.
    homes
        [V], the part of each vertex.
    num_parts
        The number of parts.
    served
        The parts that get their rows; those of others are passed over.

    Yields
    ------
    A part, and the next rows of it.
    """
    at = 0
    for block in blocks:
        here = homes[at : at + len(block)]
        at += len(block)
        order, starts = by_home(here, num_parts)
        for part in served:
            if starts[part + 1] > starts[part]:
                yield part, block[order[starts[part] : starts[part + 1]]]


def joined_blocks(parts: Sequence[Array], homes: Array, rows: int) -> Iterator[Array]:
    """Yield blocks of `rows` rows in vertex order, merged from the matrices of the parts."""
    done = np.zeros(len(parts), np.int64)
    for at in range(0, len(homes), rows):
        order, starts = by_home(homes[at : at + rows], len(parts))
        block = np.empty((len(order), *parts[0].shape[1:]), parts[0].dtype)
        for number in np.flatnonzero(np.diff(starts)).tolist():
            count = starts[number + 1] - starts[number]
            block[order[starts[number] : starts[number + 1]]] = parts[number][
                done[number] : done[number] + count
            ]
            done[number] += count
        yield block
