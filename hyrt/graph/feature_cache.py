"""Feature cache of a device: index of the cached vertices, and mini-batch rows that are partly cached."""

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
"""Rows [n, F] in host memory, float32 or quantized."""


@dataclass(frozen=True, slots=True, eq=False)
class CachedRows:
    """Feature rows of a mini-batch, as cache slots and rows to transfer."""

    slots: NDArray[np.int32]
    """Slot of each row in the device's cache, [n], or -1 - k for row k of `missing_rows`."""
    missing_rows: Rows
    """Rows that are not cached, [m, F], in the format of the cache."""

    __repr__ = short_repr

    @property
    def nbytes(self) -> int:
        """Number of bytes to transfer."""
        return self.slots.nbytes + self.missing_rows.nbytes

    def check(self, count: int, num_cached: int, width: int) -> None:
        """Raise ValueError unless there are `count` slots within range, and rows with `width` columns."""
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
    """Return ranks [V] int32 from a ranking [n] of vertices; unranked vertices get the largest int32."""
    ranks = np.full(num_vertices, _NOWHERE, np.int32)
    ranks[vertices] = np.arange(len(vertices), dtype=np.int32)
    return ranks


class CacheIndex:
    """Index of a device's feature cache, with hit counters.

    `ranks` is the result of `invert_ranking`, which all devices share. The cached rows are those of the
    vertices with ranks 0 to count - 1, and the slot of a vertex is its rank.
    """

    def __init__(self, ranks: NDArray[np.int32], count: int) -> None:
        self._ranks = ranks
        self.count = count
        self._lock = threading.Lock()
        self._hits = self._lookups = 0

    def find(self, ids: NDArray[Any], slots: NDArray[np.int32], missing: NDArray[Any]) -> int:
        """Look up vertices [n]; return the number of cache misses.

        `slots` [n] is overwritten with the slot of each vertex, or -1 - k for the k-th miss. The first
        entries of `missing` [n] are overwritten with the missed vertices in order.
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
    """Look up slots in one thread, since a lookup takes nanoseconds, and gathering a row about 100 ns."""
    sent = 0
    for i in range(len(ids)):
        place = ranks[ids[i]]
        if place >= count:
            missing[sent] = ids[i]
            sent += 1
            place = -sent
        places[i] = place
    return sent
