"""Pieces of device memory within a limit, used again and again."""

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
"""What sizes are rounded up to; XRT reads host memory that is aligned to it without a copy of its own."""


class PooledBuffer(Protocol):
    """Memory that is made once and freed once: a `pyopencl.Buffer`, or what holds one."""

    @property
    def size(self) -> int: ...

    def release(self) -> None: ...


P = TypeVar("P", bound=PooledBuffer)


def _size(piece: PooledBuffer) -> int:
    return piece.size


class DeviceMemoryPool(Generic[P]):
    """Hands out pieces of memory; any thread may take and give back.

    The limit is kept before a piece is made: some implementations promise more memory than there is.

    Parameters
    ----------
    name
        The device's name, for messages.
    limit_bytes
        The most that all pieces may take together.
    largest_bytes
        The most that one piece may take.
    make
        Makes a piece for a place with so many bytes; raises MemoryError where the device has no room.
    explain
        What a piece is for and what to do where memory is short, from the place, the bytes asked for and the
        pieces in use.
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
        # By place, the smallest first.
        self._free: dict[Hashable, list[P]] = {}
        self._lent: dict[int, P] = {}
        # Of these, the ones that are freed when they come back.
        self._exact: set[int] = set()
        self.allocated_bytes = 0
        self.peak_bytes = 0
        """The most that all pieces together, in use or free, have ever taken."""

    @property
    def used_bytes(self) -> int:
        """Memory of the pieces in use."""
        with self._lock:
            return sum(map(_size, self._lent.values()))

    def take(self, min_bytes: int, place: Hashable = None, *, exact: bool = False) -> P:
        """A piece of at least `min_intervals` bytes that belongs to a place; what it holds is not defined.

        With `exact` it is a new one of just so many bytes, which is freed when it comes back: what is left of
        the limit can be told beforehand.

        Raises
        ------
        DeviceOutOfMemoryError
            If it does not fit; nothing was taken.
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
        """Take back a piece of `take`."""
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
        """Free every piece, those in use too."""
        with self._lock:
            self._drop_free()
            lent, self._lent = self._lent, {}
            self._exact.clear()
            for piece in lent.values():
                piece.release()
            self.allocated_bytes = 0

    def _new(self, place: Hashable, min_bytes: int, *, exact: bool) -> P:
        # A little larger than asked for: the sizes of successive steps differ.
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
        """A new piece; where the device has less room than the limit, those that wait for use are freed."""
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
            f", {format_bytes(self.largest_bytes)} in one piece" if requested > self.largest_bytes else ""
        )
        purpose, remedy = self._explain(place, requested, lent)
        return DeviceOutOfMemoryError(
            f"{self.name} is out of memory: asked {format_bytes(requested)}{purpose and f' for {purpose}'}, "
            f"{format_bytes(sum(map(_size, lent)))} in use of {format_bytes(self.limit_bytes)}{largest}"
            f"{remedy and f': {remedy}'}"
        )


@contextmanager
def memory_errors(
    pattern: str, memory: DeviceMemoryPool[Any], doing: str, remedy: str = ""
) -> Iterator[None]:
    """Turn an OpenCL error that means a lack of device memory into DeviceOutOfMemoryError.

    Parameters
    ----------
    pattern
        A regular expression that the text of such an error matches.
    memory
        The device's memory, for the message.
    doing
        The operation that the device was asked for.
    remedy
        The remedy to name.
    """
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        if not re.search(pattern, str(error)):
            raise
        raise DeviceOutOfMemoryError(
            f"{memory.name} is out of memory in {doing}, {format_bytes(memory.used_bytes)} in use of "
            f"{format_bytes(memory.limit_bytes)} ({error}){remedy and f': {remedy}'}"
        ) from error


def whole_pages(size_bytes: int) -> int:
    """The bytes of the pages that hold so many."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _pages_within(size_bytes: int) -> int:
    return size_bytes // PAGE_BYTES * PAGE_BYTES
