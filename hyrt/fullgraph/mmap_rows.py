"""Rows of a memory-mapped matrix, whose pages can be dropped from memory after use."""

from __future__ import annotations

import mmap
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MAPS = Path("/proc/self/smaps")
_RANGE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ")


class MmapRows:
    """Consecutive rows of a memory-mapped matrix; dropped pages are read again on the next access.

    `values` [V, f] is a matrix for which `find_mmap` returns a map.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        mapped = find_mmap(values)
        assert mapped is not None
        self._map = mapped
        self._row_bytes = values.strides[0]
        self._at = values.ctypes.data - np.frombuffer(mapped, np.uint8).ctypes.data

    def drop_pages(self, start: int, stop: int) -> None:
        """Drop the whole pages of a range of rows from memory."""
        first = -(-(self._at + start * self._row_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (self._at + stop * self._row_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if last > first:
            self._map.madvise(mmap.MADV_DONTNEED, first, last - first)


def find_mmap(values: NDArray[Any]) -> mmap.mmap | None:
    """Return the memory map behind an array, if the map has no modified pages.

    Modified pages of a private map exist only in memory and would be lost. None if there is no map, if it has
    modified pages, or if the system does not report modified pages.
    """
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(base, "madvise") or not values.size:
        return None
    start = values.ctypes.data
    return base if _written_bytes(start, start + values.nbytes) == 0 else None


def _written_bytes(start: int, stop: int) -> int | None:
    """Return the modified bytes of the pages in an address range; None if the system cannot report it."""
    try:
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    total, overlaps, is_listed = 0, False, False
    for line in lines:
        if limits := _RANGE.match(line):
            overlaps = int(limits[1], 16) < stop and int(limits[2], 16) > start
            is_listed = is_listed or overlaps
        elif overlaps and line.startswith("Anonymous:"):
            total += int(line.split()[1]) * 1024
    return total if is_listed else None
