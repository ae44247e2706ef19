"""Where the row of each vertex is: read where it lies, cached, fetched for a step, or nowhere here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.rows import address_kernels as kernels
from hyrt.machine.workers import Workers

_GRAIN = 1 << 14


class RemoteNeeds(NamedTuple):
    """What is needed of other ranks."""

    wanted: NDArray[Any]
    """[m] distinct vertices whose rows are not here, by rank."""
    counts: list[int]
    """[N] how many of them each rank has."""
    num_cached: int
    """How many more are cached."""


class RowMatrices(NamedTuple):
    """Where in memory matrices of rows begin; all are C-contiguous."""

    here: NDArray[np.int64]
    """[M] those that are read where they lie, this rank's own first."""
    fetched: int
    cached: int
    """`fetched` and `cached`: those of rows that travelled; any number where there are none."""
    row_bytes: int
    """Bytes of a row of those that are read where they lie."""
    travelled_bytes: int
    """Bytes of a row of the others."""
    mark: int
    """1 where the two have different dtypes, else 0."""


class RowAddresses:
    """An integer for each vertex that says where its row is (`hyrt.distributed.rows.address_kernels`).

    Parameters
    ----------
    homes
        [V] the rank that has each vertex's rows.
    places
        [V] integers, the row of each vertex among those of its rank.
    rank, size
        The number of this rank, and how many there are.
    beside
        The ranks whose rows are read where they lie, too, in the order of their matrices.
    """

    def __init__(
        self, homes: NDArray[Any], places: NDArray[Any], rank: int, size: int, beside: Sequence[int] = ()
    ) -> None:
        here = [rank, *beside]
        self.bits = (len(here) - 1).bit_length()
        """How many low bits of the address of a row that is read where it lies say in which matrix."""
        # Four addresses for each row that travels, and one in each matrix for the others.
        dtype = np.int32 if len(homes) << max(kernels.BITS, self.bits) < 2**31 else np.int64
        numbers = np.full(size, kernels.NOWHERE, dtype)
        numbers[here] = np.arange(len(here))
        table: NDArray[Any] = numbers[homes]
        found = table >= 0
        table[found] |= np.left_shift(places[found], self.bits, dtype=dtype)
        self.table = table
        """[V] the address of each vertex's row; the matrices that it points to are those of its owner."""
        self._homes = homes
        self._size = size
        self._ids = np.int32 if len(homes) < 2**31 else np.int64
        self._pointed = np.empty(0, self._ids)
        self._room = np.empty((2, 0), self._ids)

    def meet(self, ids: Sequence[NDArray[Any]]) -> RemoteNeeds:
        """What of some vertices is neither of this rank nor cached; from then on, those rows are taken to be
        fetched, in this order.

        Parameters
        ----------
        ids
            Arrays of vertices, in any order; one that is there several times counts once.
        """
        self.point_at(self._pointed[:0])
        most = min(sum(map(len, ids)), len(self._homes))
        if self._room.shape[1] < most:
            self._room = np.empty((2, most + most // 8), self._ids)
        wanted, cached = self._room
        num_wanted = num_cached = 0
        for each in ids:
            num_wanted, num_cached = kernels.meet(each, self.table, wanted, num_wanted, cached, num_cached)
        kernels.forget_counting(cached[:num_cached], self.table)
        grouped, counts = self.by_home(wanted[:num_wanted])
        kernels.point(grouped, self.table, False)
        self._pointed = grouped
        return RemoteNeeds(grouped, counts, num_cached)

    def by_home(self, vertices: NDArray[Any]) -> tuple[NDArray[Any], list[int]]:
        """Vertices by the rank that has their rows, and how many each rank has."""
        grouped, counts = np.empty(len(vertices), self._ids), np.empty(self._size, np.int64)
        kernels.group_by_home(vertices, self._homes, counts, grouped)
        numbers: list[int] = counts.tolist()
        return grouped, numbers

    def point_at(self, fetched: NDArray[Any]) -> None:
        """From now on, the fetched rows are those of these vertices, of which none is cached."""
        if fetched is not self._pointed:
            kernels.forget(self._pointed, self.table)
            kernels.point(fetched, self.table, False)
            self._pointed = fetched

    def keep(self, cached: NDArray[Any]) -> None:
        """From now on, the rows of these vertices are cached, in this order."""
        kernels.point(cached, self.table, True)

    def of(self, ids: NDArray[Any], out: NDArray[Any], workers: Workers) -> None:
        """Write the addresses of some vertices.

        Parameters
        ----------
        ids
            [n] the vertices.
        out
            [n] of the dtype of `table`, overwritten.
        workers
            The threads that share the work.
        """
        workers.run(lambda start, stop: kernels.look_up(ids, self.table, out, start, stop), len(ids), _GRAIN)

    def in_memory(
        self, ids: NDArray[Any], matrices: RowMatrices, out: NDArray[np.int64], workers: Workers
    ) -> None:
        """Write where in memory the rows of some vertices begin.

        Parameters
        ----------
        ids
            [n] the vertices, of which no row is nowhere here.
        matrices
            Where the matrices are to which the addresses point.
        out
            [n] overwritten. Those of rows that travel are one more where these have a dtype of their own.
        workers
            The threads that share the work.
        """
        workers.run(
            lambda start, stop: kernels.locate(ids, self.table, self.bits, *matrices, out, start, stop),
            len(ids),
            _GRAIN,
        )


def sorted_out(addresses: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[np.intp]]]:
    """Addresses by the matrix that they point to, where no rows beside the own ones are read where they lie:
    own rows, fetched ones, cached ones.

    Parameters
    ----------
    addresses
        [n] none of which is nowhere.

    Returns
    -------
    For each matrix the rows in it, and the places [m] of their addresses among those given.
    """
    kinds, slots = np.empty(len(addresses), np.uint8), np.empty_like(addresses)
    kernels.unpack(addresses, kinds, slots)
    found = []
    for kind in range(3):
        places = np.flatnonzero(kinds == kind)
        found.append((slots[places], places))
    return found
