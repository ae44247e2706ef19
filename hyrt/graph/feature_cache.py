"""Feature cache of a device: the index of cached vertices, and partly cached mini-batch rows."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.runtime.numba_cache import nb

Rows = NDArray[np.float32] | QuantizedRows
"""[n, F] rows in host memory, float32 or quantized."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedRows:
    """Feature rows of a mini-batch: cache slots, and the rows to transfer."""

    slots: NDArray[np.int32]
    """[n] slot of each row in the device's cache, or -1 - k for row k of `missing_rows`."""
    missing_rows: Rows
    """[m, F] rows that are not cached, in the format of the cache."""

    __repr__ = short_repr

    @property
    def nbytes(self) -> int:
        """Bytes to transfer."""
        return self.slots.nbytes + self.missing_rows.nbytes

    def check(self, count: int, num_cached: int, width: int) -> None:
        """Raise ValueError unless there are `count` slots in range, and rows of `width` columns."""
        values = (
            self.missing_rows.codes if isinstance(self.missing_rows, QuantizedRows) else self.missing_rows
        )
        if self.slots.shape != (count,) or self.slots.dtype != np.int32:
            raise ValueError(
                f"slots are {self.slots.dtype} of shape {self.slots.shape}, expected int32 of shape "
                f"{(count,)}"
            )
        if values.ndim != 2 or values.shape[1] != width:
            raise ValueError(f"missing rows have shape {values.shape}, expected {width} columns")
        if count and not (-len(values) <= self.slots.min() and self.slots.max() < num_cached):
            raise ValueError(
                f"slots are from {self.slots.min()} to {self.slots.max()}, but {num_cached} rows are cached "
                f"and {len(values)} are sent"
            )


_NOWHERE = np.iinfo(np.int32).max


def invert_ranking(vertices: NDArray[Any], num_vertices: int) -> NDArray[np.int32]:
    """Return [V] int32 ranks of all vertices from a ranking [n]; unranked vertices get the largest int32."""
    ranks = np.full(num_vertices, _NOWHERE, np.int32)
    ranks[vertices] = np.arange(len(vertices), dtype=np.int32)
    return ranks


class CacheIndex:
    """Index and hit counters of one device's feature cache.

    `ranks` is the result of `invert_ranking` and is shared by all devices. The `count` cached rows are the
    vertices of rank 0 to count - 1, in slots equal to their ranks.
    """

    def __init__(self, ranks: NDArray[np.int32], count: int) -> None:
        self._ranks = ranks
        self.count = count
        self._lock = threading.Lock()
        self._hits = self._lookups = 0

    def find(self, ids: NDArray[Any], slots: NDArray[np.int32], missing: NDArray[Any]) -> int:
        """Look up vertices [n] and return the number of cache misses.

        Overwrites `slots` [n] with the slot of each vertex, or -1 - k for the k-th miss, and the first
        entries of `missing` [n] with the missed vertices in order.
        """
        sent = int(_find(self._ranks, self.count, ids, slots, missing))
        with self._lock:
            self._hits += len(ids) - sent
            self._lookups += len(ids)
        return sent

    @property
    def hits(self) -> int:
        return self._hits

    @property
    def lookups(self) -> int:
        return self._lookups


@nb.njit(nogil=True, cache=True, error_model="numpy")
def _find(ranks, count, ids, places, missing):
    """Look up slots in one thread: a lookup takes nanoseconds, gathering a row takes about 100 ns."""
    sent = 0
    for i in range(len(ids)):
        place = ranks[ids[i]]
        if place >= count:
            missing[sent] = ids[i]
            sent += 1
            place = -sent
        places[i] = place
    return sent
