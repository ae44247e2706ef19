"""Rows that lie in a file mapped to memory, and how their memory is given back."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAPS = Path("/proc/self/smaps")
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class MappedRows:
    """Consecutive rows of a matrix in a map, whose pages the system may forget: they are read again.

    Parameters
    ----------
    values
        [V, f] a matrix for which `memory_map` gives a map.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        found = memory_map(values)
        assert found is not None
        self._map = found
        self._row_bytes = values.strides[0]
        self._at = values.ctypes.data - np.frombuffer(found, np.uint8).ctypes.data

    def forget(self, start: int, stop: int) -> None:
        """Let the memory of whole pages of rows go."""
        first = -(-(self._at + start * self._row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (self._at + stop * self._row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def memory_map(values: NDArray[Any]) -> mmap.mmap | None:
    """The map that an array looks into, as long as memory holds nothing of it that its file does not.

    What is written over a private map is in memory alone, and would be lost. None where there is no map,
    something was written over it, or the system does not tell.
    """
    found: Any = values
    while isinstance(found, np.ndarray | memoryview):
        found = found.base if isinstance(found, np.ndarray) else found.obj
    if not isinstance(found, mmap.mmap) or not hasattr(found, "madvise") or not values.size:
        return None
    start = values.ctypes.data
    return found if _written_bytes(start, start + values.nbytes) == 0 else None


def _written_bytes(start: int, stop: int) -> int | None:
    """Bytes in memory, of pages that overlap a range of addresses, that are in no file; None if not told."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    total, overlaps, found = 0, False, False
    for line in lines:
        if limits := _RANGE.match(line):
            overlaps = int(limits[1], 16) < stop and int(limits[2], 16) > start
            found = found or overlaps
        elif overlaps and line.startswith("Anonymous:"):
            total += int(line.split()[1]) * 1024
    return total if found else None
