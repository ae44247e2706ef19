"""Pool of reusable device buffers within a memory limit."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes

PAGE_BYTES = 4096
"""Page size: sizes are whole pages, because XRT reads page-aligned memory without an internal copy."""


class PooledBuffer(Protocol):
    """Buffer of the pool: a `pyopencl.Buffer` or a wrapper around one."""

    @property
    def size(self) -> int: ...

    def release(self) -> None: ...


P = TypeVar("P", bound=PooledBuffer)


def _size(piece: PooledBuffer) -> int:
    return piece.size


class DeviceMemoryPool(Generic[P]):
    """Thread-safe pool of buffers, which checks the limit before each allocation.

    Some implementations report more memory than exists. `limit_bytes` is the maximum total size of all
    buffers, and `largest_bytes` that of one buffer. `make(place, bytes)` allocates a buffer, and raises
    MemoryError if the device is full. `explain` returns the purpose of a buffer and a remedy for a lack of
    memory, given the place, the requested bytes and the buffers in use.
    """

    def __init__(
        self,
        name: str,
        limit_bytes: int,
        largest_bytes: int,
        make: Callable[[Hashable, int], P],
        explain: Callable[[Hashable, int, Sequence[P]], tuple[str, str]] = lambda *_: ("", ""),
    ) -> None:
        self.name = name
        self.limit_bytes = limit_bytes
        self.largest_bytes = largest_bytes
        self._make = make
        self._explain = explain
        self._lock = threading.Lock()
        # Free buffers by place, in ascending order of size.
        self._free: dict[Hashable, list[P]] = {}
        self._lent: dict[int, P] = {}
        # Ids of the buffers in use that are freed when they are returned.
        self._exact: set[int] = set()
        self.allocated_bytes = 0
        self.peak_bytes = 0
        """Maximum total size of all buffers, in use or free, so far."""

    @property
    def used_bytes(self) -> int:
        """Total size of the buffers in use in bytes."""
        with self._lock:
            return sum(map(_size, self._lent.values()))

    def take(self, min_bytes: int, place: Hashable = None, *, exact: bool = False) -> P:
        """Return an uninitialised buffer of at least `min_bytes` bytes for a place.

        With `exact`, a buffer of exactly `min_bytes` bytes is allocated, and freed when it is returned, so
        that the remaining memory is known in advance. Raises DeviceOutOfMemoryError, and allocates nothing,
        if the buffer does not fit.
        """
        with self._lock:
            free = [] if exact else self._free.get(place, [])
            at = bisect_left(free, min_bytes, key=_size)
            fits = at < len(free) and free[at].size <= 2 * min_bytes + PAGE_BYTES
            piece = free.pop(at) if fits else self._new(place, min_bytes, exact=exact)
            self._lent[id(piece)] = piece
            if exact:
                self._exact.add(id(piece))
            return piece

    def give(self, piece: P, place: Hashable = None) -> None:
        """Put a buffer from `take` back into the pool."""
        with self._lock:
            if self._lent.pop(id(piece), None) is None:
                return
            if id(piece) not in self._exact:
                insort(self._free.setdefault(place, []), piece, key=_size)
                return
            self._exact.remove(id(piece))
            self.allocated_bytes -= piece.size
            piece.release()

    def close(self) -> None:
        """Free all buffers, including those in use."""
        with self._lock:
            self._drop_free()
            lent, self._lent = self._lent, {}
            self._exact.clear()
            for piece in lent.values():
                piece.release()
            self.allocated_bytes = 0

    def _new(self, place: Hashable, min_bytes: int, *, exact: bool) -> P:
        # Allocate a little more than requested, because the sizes of successive steps differ.
        roomy = min_bytes if exact else whole_pages(min_bytes + min_bytes // 8)
        chosen = max(min_bytes, min(roomy, _pages_within(self.largest_bytes)))
        if self.allocated_bytes + chosen > self.limit_bytes:
            self._drop_free()
            chosen = max(min_bytes, min(chosen, _pages_within(self.limit_bytes - self.allocated_bytes)))
        if min_bytes > self.largest_bytes or self.allocated_bytes + chosen > self.limit_bytes:
            raise self._exhausted(place, min_bytes)
        try:
            piece = self._made(place, chosen)
        except MemoryError as error:
            raise self._exhausted(place, min_bytes) from error
        self.allocated_bytes += chosen
        self.peak_bytes = max(self.peak_bytes, self.allocated_bytes)
        return piece

    def _made(self, place: Hashable, chosen: int) -> P:
        """Allocate a buffer. If the device is full below the limit, free unused buffers and retry."""
        try:
            return self._make(place, chosen)
        except MemoryError:
            if not any(self._free.values()):
                raise
            self._drop_free()
            return self._make(place, chosen)

    def _drop_free(self) -> None:
        for pieces in self._free.values():
            for piece in pieces:
                self.allocated_bytes -= piece.size
                piece.release()
        self._free = {}

    def _exhausted(self, place: Hashable, requested: int) -> DeviceOutOfMemoryError:
        lent = list(self._lent.values())
        largest = (
            f", at most {format_bytes(self.largest_bytes)} per buffer"
            if requested > self.largest_bytes
            else ""
        )
        purpose, remedy = self._explain(place, requested, lent)
        used_bytes = sum(map(_size, lent))
        return DeviceOutOfMemoryError(
            f"{self.name} is out of memory ({format_bytes(requested)} requested"
            f"{purpose and f' for {purpose}'}, {format_bytes(used_bytes)} of {format_bytes(self.limit_bytes)}"
            f" in use{largest})"
            f"{remedy and f': {remedy}'}"
        )


@contextmanager
def memory_errors(
    pattern: str, memory: DeviceMemoryPool[Any], doing: str, remedy: str = ""
) -> Iterator[None]:
    """Convert OpenCL errors in the block that mean a lack of device memory to DeviceOutOfMemoryError.

    `pattern` is a regular expression that matches the text of such an error. The message contains the
    operation `doing` and `remedy`.
    """
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        if not re.search(pattern, str(error)):
            raise
        raise DeviceOutOfMemoryError(
            f"{memory.name} is out of memory in {doing} ({format_bytes(memory.used_bytes)} of "
            f"{format_bytes(memory.limit_bytes)} in use, {error}){remedy and f': {remedy}'}"
        ) from error


def whole_pages(size_bytes: int) -> int:
    """Round a size up to whole pages."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _pages_within(size_bytes: int) -> int:
    return size_bytes // PAGE_BYTES * PAGE_BYTES
