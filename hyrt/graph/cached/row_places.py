"""Index of a device's feature cache."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
from __future__ import annotations

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.kernels.kept_kernels import nb

_NOWHERE = np.iinfo(np.int32).max


def ranks_of(vertices: NDArray[Any], num_vertices: int) -> NDArray[np.int32]:
    """Return [V] int32 ranks of all vertices from a ranking [n]; missing vertices get the largest int32."""
    ranks = np.full(num_vertices, _NOWHERE, np.int32)
    ranks[vertices] = np.arange(len(vertices), dtype=np.int32)
    return ranks


class RowPlaces:
    """Index and hit counters of one device's feature cache.

    Parameters
    ----------
    ranks
        Result of `ranks_of`, shared by all devices.
    count
        Number of cached rows: vertices of rank 0 to count - 1, in slots equal to their ranks.
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
            [n] of the dtype of ids; the first entries are overwritten with the vertices that are not cached,
            in order.

        Returns
        -------
        The number of vertices that are not cached.
        """
        sent = int(_find(self._ranks, self.count, ids, places, missing))
        with self._lock:
            self._hits += len(ids) - sent
            self._lookups += len(ids)
        return sent

    @property
    def hits(self) -> int:
        """Number of cache hits so far."""
        return self._hits

    @property
    def lookups(self) -> int:
        """Number of lookups so far."""
        return self._lookups


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _find(ranks, count, ids, places, missing):
    """Look up slots in one thread: a lookup takes nanoseconds, gathering a row about 100 ns."""
    sent = 0
    for i in range(len(ids)):
        place = ranks[ids[i]]
        if place >= count:
            missing[sent] = ids[i]
            sent += 1
            place = -sent
        places[i] = place
    return sent
