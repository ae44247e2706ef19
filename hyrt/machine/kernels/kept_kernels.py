"""numba, which keeps every kernel in a file that no other process writes."""

from __future__ import annotations

import secrets
from typing import Any

import numba as nb
from numba.core.caching import IndexDataCacheFile

__all__ = ["nb"]


def _data_name(self: Any, number: int) -> str:
    """The name of a new file for one kernel of a function, whatever number numba has counted to.

    numba counts up from 1 and locks nothing. Two processes that keep kernels of one function at the same time
    may both take the same number, and later runs would be given the one for the other: a loop for other
    widths of rows, say. And a process that reads the new index of a changed source, before the kernel is
    written, would be given the kernel of the old source.
    """
    name: str = self._data_name_pattern.format(number=secrets.randbits(63))
    return name


IndexDataCacheFile._data_name = _data_name  # type: ignore[method-assign]
