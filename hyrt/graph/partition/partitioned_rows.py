"""Distribution of rows to parts, and row sources over several parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.formatting import short_repr
from hyrt.graph.csr import iter_ranges
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.runtime.workers import Workers

Array = NDArray[Any]

ENTRIES = 1 << 21
"""Number of CSR entries to copy at once, unless a single row is longer."""
ENTRY_BYTES = 48
"""Maximum memory per copied entry in bytes."""


def group_by_part(part_ids: Array, num_parts: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the vertices [V] sorted by part, then by id, and the offset of each part among them [P+1]."""
    starts = np.zeros(num_parts + 1, np.int64)
    np.cumsum(np.bincount(part_ids, minlength=num_parts), out=starts[1:])
    return np.argsort(part_ids, kind="stable"), starts


def compute_local_ids(part_ids: Array, num_parts: int) -> Array:
    """Return the index of each vertex within its part, [V] int32 (int64 from 2^31 vertices)."""
    order, starts = group_by_part(part_ids, num_parts)
    places = np.empty(len(part_ids), np.int32 if len(part_ids) < 2**31 else np.int64)
    for first, last in itertools.pairwise(starts):
        places[order[first:last]] = np.arange(last - first)
    return places


def build_indptr(lengths: Array) -> NDArray[np.int64]:
    """Return the row pointers [n+1] for rows of the given lengths [n]."""
    starts = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


def iter_row_entries(indptr: Array, vertices: Array) -> Iterator[tuple[slice, Array]]:
    """Yield the positions of the entries of rows `vertices` [n] in pieces; `indptr` [V+1] has all rows.

    A piece is a slice of the entries of the requested rows, and the position of each entry among all entries.
    """
    lengths = indptr[vertices + 1] - indptr[vertices]
    starts = build_indptr(lengths)
    for low, high in iter_ranges(starts, ENTRIES):
        shift = indptr[vertices[low:high]] - starts[low:high]
        first, last = int(starts[low]), int(starts[high])
        yield slice(first, last), np.repeat(shift, lengths[low:high]) + np.arange(first, last)


def merge_csr_rows(
    pointers: Sequence[Array], entries: Sequence[Sequence[Array]], part_ids: Array
) -> tuple[NDArray[np.int64], list[Array]]:
    """Merge the CSR rows of all parts in memory, in the order of vertices.

    `pointers` has the row pointers of each part. `entries` has a sequence per kind of entry (such as columns
    and values), with one array per part. Returns the row pointers [V+1] of all rows, and the merged array of
    each kind.
    """
    order, bounds = group_by_part(part_ids, len(pointers))
    lengths = np.empty(len(part_ids), np.int64)
    lengths[order] = np.concatenate([np.diff(pointer) for pointer in pointers])
    indptr = build_indptr(lengths)
    joined = [np.empty(indptr[-1], kind[0].dtype) for kind in entries]
    for number in range(len(pointers)):
        vertices = order[bounds[number] : bounds[number + 1]]
        for piece, positions in iter_row_entries(indptr, vertices):
            for out, kind in zip(joined, entries, strict=True):
                out[positions] = kind[number][piece]
    return indptr, joined


def iter_part_rows(
    blocks: Iterator[Array], part_ids: Array, num_parts: int, selected_parts: range
) -> Iterator[tuple[int, Array]]:
    """Yield pairs of a part and its next rows, from consecutive blocks of the rows of all vertices.

    Rows of parts that are not in `selected_parts` are skipped.
    """
    at = 0
    for block in blocks:
        here = part_ids[at : at + len(block)]
        at += len(block)
        order, starts = group_by_part(here, num_parts)
        for part in selected_parts:
            if starts[part + 1] > starts[part]:
                yield part, block[order[starts[part] : starts[part + 1]]]


def merge_blocks(parts: Sequence[Array], part_ids: Array, rows: int) -> Iterator[Array]:
    """Yield blocks of `rows` rows in the order of vertices, merged from the matrices of the parts."""
    done = np.zeros(len(parts), np.int64)
    for at in range(0, len(part_ids), rows):
        order, starts = group_by_part(part_ids[at : at + rows], len(parts))
        block = np.empty((len(order), *parts[0].shape[1:]), parts[0].dtype)
        for number in np.flatnonzero(np.diff(starts)).tolist():
            count = starts[number + 1] - starts[number]
            block[order[starts[number] : starts[number + 1]]] = parts[number][
                done[number] : done[number] + count
            ]
            done[number] += count
        yield block


@dataclass(frozen=True, slots=True, eq=False)
class PartitionedFeatures:
    """Row source over some or all parts. A row is found by the part and the local index of its vertex."""

    parts: Mapping[int, DenseFeatures | SparseFeatures]
    """Rows of each open part by part index; there is at least one part."""
    part_ids: NDArray[Any]
    """Part of each vertex, [V] unsigned."""
    local_ids: NDArray[Any]
    """Row of each vertex within its part, [V] integers."""

    __repr__ = short_repr

    @property
    def width(self) -> int:
        return self._one.width

    @property
    def value_bytes(self) -> int:
        return self._one.value_bytes

    @property
    def nbytes(self) -> int:
        return sum(rows.nbytes for rows in self.parts.values())

    @property
    def matrix(self) -> None:
        return None

    @property
    def _one(self) -> DenseFeatures | SparseFeatures:
        return next(iter(self.parts.values()))

    def rows(self, ids: NDArray[Any], out: NDArray[np.float32], workers: Workers) -> None:
        """Write the rows of vertices; see `RowSource.rows`.

        Raises DataError if this process has not opened the part of a requested vertex.
        """
        homes = self.part_ids[ids]
        counts = np.bincount(homes)
        needed = np.flatnonzero(counts)
        for number in needed:
            if int(number) not in self.parts:
                vertex = ids[int(np.argmax(homes == number))]
                raise DataError(
                    f"the row of vertex {vertex} is in part {number}, which is not open here: read only rows "
                    "of open parts"
                )
        if len(needed) == 1:
            self.parts[int(needed[0])].rows(self.local_ids[ids], out, workers)
            return
        order = np.argsort(homes, kind="stable")
        ends = np.cumsum(counts)
        for number in needed:
            where = order[ends[number] - counts[number] : ends[number]]
            found = np.empty((len(where), self.width), np.float32)
            self.parts[int(number)].rows(self.local_ids[ids[where]], found, workers)
            out[where] = found
