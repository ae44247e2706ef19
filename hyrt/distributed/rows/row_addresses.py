"""Locations of all vertices' rows: in local memory, cached, fetched for a step, or missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rows import address_kernels as kernels
from hyrt.machine.workers import Workers

_GRAIN = 1 << 14


class RemoteNeeds(NamedTuple):
    """Request of a rank for remote rows."""

    wanted: NDArray[Any]
    """[m] distinct vertices whose rows are missing, grouped by owner rank."""
    counts: list[int]
    """[N] number of missing rows per owner rank."""
    num_cached: int
    """Number of further remote rows that are cached."""


class RowMatrices(NamedTuple):
    """Memory addresses of row matrices; all are C-contiguous."""

    here: NDArray[np.int64]
    """[M] matrices in local or shared memory, this rank's matrix first."""
    fetched: int
    cached: int
    """`fetched` and `cached`: matrices of transferred rows; any number if there are none."""
    row_bytes: int
    """Bytes per row of the matrices in local or shared memory."""
    travelled_bytes: int
    """Bytes per row of the transferred rows."""
    mark: int
    """1 if the two kinds of rows have different dtypes, otherwise 0."""


class RowAddresses:
    """Table with one integer per vertex that encodes where its row is stored.

    See `hyrt.distributed.rows.address_kernels` for the encoding.

    Parameters
    ----------
    homes
        [V] owner rank of each vertex.
    places
        [V] integers, row index of each vertex at its owner rank.
    rank, size
        Number of this rank, and number of ranks.
    beside
        Other ranks on the same host, in the order of their matrices; their rows are read through shared
        memory.
    """

    def __init__(
        self, homes: NDArray[Any], places: NDArray[Any], rank: int, size: int, beside: Sequence[int] = ()
    ) -> None:
        same_host = [rank, *beside]
        self.bits = (len(same_host) - 1).bit_length()
        """Number of low bits of a location that select the matrix in local or shared memory."""
        # Per row index: four locations for transferred rows, and one per matrix for other rows.
        dtype = np.int32 if len(homes) << max(kernels.BITS, self.bits) < 2**31 else np.int64
        numbers = np.full(size, kernels.NOWHERE, dtype)
        numbers[same_host] = np.arange(len(same_host))
        table: NDArray[Any] = numbers[homes]
        is_local = table >= 0
        table[is_local] |= np.left_shift(places[is_local], self.bits, dtype=dtype)
        self.table = table
        """[V] location of each vertex's row; the matrices belong to the owner of this object."""
        self._owners = homes
        self._size = size
        self._id_dtype = np.int32 if len(homes) < 2**31 else np.int64
        self._fetched = np.empty(0, self._id_dtype)
        self._buffers = np.empty((2, 0), self._id_dtype)

    def meet(self, ids: Sequence[NDArray[Any]]) -> RemoteNeeds:
        """Return the vertices that are neither local nor cached; their rows count as fetched from now on.

        The fetched rows are in the order of the returned vertices.

        Parameters
        ----------
        ids
            Arrays of vertices, in any order; duplicates count once.
        """
        self.point_at(self._fetched[:0])
        capacity = min(sum(map(len, ids)), len(self._owners))
        if self._buffers.shape[1] < capacity:
            self._buffers = np.empty((2, capacity + capacity // 8), self._id_dtype)
        missing, cached = self._buffers
        num_missing = num_cached = 0
        for vertices in ids:
            num_missing, num_cached = kernels.meet(
                vertices, self.table, missing, num_missing, cached, num_cached
            )
        kernels.forget_counting(cached[:num_cached], self.table)
        grouped, counts = self.by_home(missing[:num_missing])
        kernels.point(grouped, self.table, False)
        self._fetched = grouped
        return RemoteNeeds(grouped, counts, num_cached)

    def by_home(self, vertices: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
        """Group vertices by owner rank; return them and the number per rank."""
        grouped, counts = np.empty(len(vertices), self._id_dtype), np.empty(self._size, np.int64)
        kernels.group_by_home(vertices, self._owners, counts, grouped)
        numbers: list[int] = counts.tolist()
        return grouped, numbers

    def point_at(self, fetched: NDArray[Any]) -> None:
        """Set the vertices of the fetched rows, in row order; none of them may be cached."""
        if fetched is not self._fetched:
            kernels.forget(self._fetched, self.table)
            kernels.point(fetched, self.table, False)
            self._fetched = fetched

    def keep(self, cached: NDArray[Any]) -> None:
        """Set the vertices of the cached rows, in row order."""
        kernels.point(cached, self.table, True)

    def of(self, ids: NDArray[Any], out: NDArray[Any], workers: Workers) -> None:
        """Write the locations of some vertices.

        Parameters
        ----------
        ids
            [n] vertices.
        out
            [n] of the dtype of `table`, overwritten.
        workers
            Threads that share the work.
        """
        workers.run(lambda start, stop: kernels.look_up(ids, self.table, out, start, stop), len(ids), _GRAIN)

    def in_memory(
        self, ids: NDArray[Any], matrices: RowMatrices, out: NDArray[np.int64], workers: Workers
    ) -> None:
        """Write the memory addresses of the rows of some vertices.

        Parameters
        ----------
        ids
            [n] vertices; none of their rows may be missing.
        matrices
            Memory addresses of the matrices.
        out
            [n] overwritten. Addresses of transferred rows are increased by one if these have a different
            dtype.
        workers
            Threads that share the work.
        """
        workers.run(
            lambda start, stop: kernels.locate(ids, self.table, self.bits, *matrices, out, start, stop),
            len(ids),
            _GRAIN,
        )


def sorted_out(addresses: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.intp]]]:
    """Group locations by matrix: local rows, fetched rows, cached rows.

    Only for tables without other ranks on the same host.

    Parameters
    ----------
    addresses
        [n] locations; no row may be missing.

    Returns
    -------
    For each matrix the row indices in it, and the positions [m] of their locations in `addresses`.
    """
    kinds, slots = np.empty(len(addresses), np.uint8), np.empty_like(addresses)
    kernels.unpack(addresses, kinds, slots)
    groups = []
    for kind in range(3):
        positions = np.flatnonzero(kinds == kind)
        groups.append((slots[positions], positions))
    return groups
