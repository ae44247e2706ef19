"""Where the rows of vertices are: in a device's cache, or still in host memory."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb

_NOWHERE = np.iinfo(np.int32).max


def ranks_of(vertices: NDArray[Any], num_vertices: int) -> NDArray[np.int32]:
    """[V] int32 the position of each vertex in a ranking [n]; those that are not in it are behind all."""
    ranks = np.full(num_vertices, _NOWHERE, np.int32)
    ranks[vertices] = np.arange(len(vertices), dtype=np.int32)
    return ranks


class RowPlaces:
    """The rows that one device keeps, and how often they were wanted.

    Parameters
    ----------
    ranks
        `ranks_of` all vertices; several devices share them.
    count
        How many rows the device keeps: those of the first ranks, at places equal to these.
    """

    def __init__(self, ranks: NDArray[np.int32], count: int) -> None:
        self._ranks = ranks
        self.count = count
        self._lock = threading.Lock()
        self._hits = self._lookups = 0

    def find(self, ids: NDArray[Any], places: NDArray[np.int32], missing: NDArray[Any]) -> int:
        """Look up the rows of vertices.

        Parameters
        ----------
        ids
            [n] the vertices.
        places
            [n] int32, overwritten as `CachedRows.places`.
        missing
            [n] of the dtype of ids; its first entries are overwritten with the vertices whose rows are not
            kept, in their order.

        Returns
        -------
        How many those are.
        """
        sent = int(_find(self._ranks, self.count, ids, places, missing))
        with self._lock:
            self._hits += len(ids) - sent
            self._lookups += len(ids)
        return sent

    @property
    def hits(self) -> int:
        """How many of the rows that were wanted so far the device had."""
        return self._hits

    @property
    def lookups(self) -> int:
        """How many rows were wanted so far."""
        return self._lookups


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _find(ranks, count, ids, places, missing):
    """One thread does it: a look-up takes nanoseconds where gathering a row takes a hundred."""
    sent = 0
    for i in range(len(ids)):
        place = ranks[ids[i]]
        if place >= count:
            missing[sent] = ids[i]
            sent += 1
            place = -sent
        places[i] = place
    return sent
