"""Page-aligned host memory with a device buffer over each piece, used again and again."""

from __future__ import annotations

import bisect
import mmap
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import DeviceOutOfMemory

PAGE_BYTES = 4096
"""What XRT wants host memory aligned to, to read it without a copy of its own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer belongs: its memory bank follows from it, and stays.

    Parameters
    ----------
    unit
        Number of the compute unit.
    argument
        Of the kernel.
    written
        Whether the device writes it, and only writes it.
    """

    unit: int
    argument: int
    written: bool = False


@dataclass(slots=True, eq=False)
class Slot:
    """One buffer with the host memory that it is over.

    Parameters
    ----------
    place
        Where it belongs.
    memory
        [size] uint8, from a page's start to a page's end.
    buffer
        `pyopencl.Buffer`.
    fresh
        Whether no command has used it yet.
    """

    place: Place
    memory: NDArray[np.uint8]
    buffer: Any
    fresh: bool = True

    def view(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The first bytes as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        return self.memory[: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def fill(self, array: NDArray[Any]) -> None:
        """Copy an array to the first bytes."""
        self.view(array.shape, array.dtype)[...] = array


@dataclass(slots=True)
class _Free:
    """Slots of one place that nobody has, smallest first."""

    sizes: list[int] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)


class Pools:
    """Hands out slots; any thread may take and give back.

    A slot is used again only where it was first: XRT puts a buffer in the memory bank of the first argument that it
    is set as.

    Parameters
    ----------
    context
        The OpenCL context.
    name
        Of the device, for messages.
    limit_bytes
        Of all slots together.
    largest_bytes
        Of one slot.
    of_the_model
        Arguments whose slots hold the model's weights and gradients: they are what no smaller mini-batch makes room for.
    """

    def __init__(
        self,
        context: Any,
        name: str,
        limit_bytes: int,
        largest_bytes: int,
        of_the_model: frozenset[int] = frozenset(),
    ) -> None:
        self._context = context
        self._name = name
        self._limit_bytes = limit_bytes
        self._largest_bytes = largest_bytes
        self._of_the_model = of_the_model
        self._lock = threading.Lock()
        self._free: dict[Place, _Free] = {}
        self._lent: set[Slot] = set()
        self.allocated_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Memory of the slots in use."""
        with self._lock:
            return sum(slot.memory.nbytes for slot in self._lent)

    def take(self, place: Place, size_bytes: int) -> Slot:
        """A slot of at least `size_bytes`; what it holds is not defined.

        Raises
        ------
        DeviceOutOfMemory
            If it does not fit; nothing was taken.
        """
        least = _pages(max(size_bytes, 1))
        with self._lock:
            free = self._free.setdefault(place, _Free())
            at = bisect.bisect_left(free.sizes, least)
            if at < len(free.sizes) and free.sizes[at] <= 2 * least + PAGE_BYTES:
                del free.sizes[at]
                slot = free.slots.pop(at)
            else:
                slot = self._new(place, least)
            self._lent.add(slot)
            return slot

    def _new(self, place: Place, least: int) -> Slot:
        # A little larger than asked for: the sizes of successive steps differ.
        size = max(least, min(_pages(least + least // 8), self._largest_bytes // PAGE_BYTES * PAGE_BYTES))
        if self.allocated_bytes + size > self._limit_bytes:
            self._drop_free()
            size = max(
                least, min(size, (self._limit_bytes - self.allocated_bytes) // PAGE_BYTES * PAGE_BYTES)
            )
        if least > self._largest_bytes or self.allocated_bytes + size > self._limit_bytes:
            raise self._exhausted(place, least)
        import pyopencl as cl

        flags = cl.mem_flags.WRITE_ONLY if place.written else cl.mem_flags.READ_ONLY
        try:
            # Private: what is shared lies in a file system of its own, with a limit of its own.
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory = np.frombuffer(pages, np.uint8)
            buffer = cl.Buffer(self._context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
        except (OSError, cl.MemoryError) as error:
            raise self._exhausted(place, least) from error
        self.allocated_bytes += size
        return Slot(place, memory, buffer)

    def give(self, slot: Slot) -> None:
        """Take back a slot of `take`."""
        with self._lock:
            if slot in self._lent:
                self._lent.remove(slot)
                slot.fresh = False
                free = self._free.setdefault(slot.place, _Free())
                at = bisect.bisect_left(free.sizes, slot.memory.nbytes)
                free.sizes.insert(at, slot.memory.nbytes)
                free.slots.insert(at, slot)

    def close(self) -> None:
        """Free every slot, those in use too."""
        with self._lock:
            self._drop_free()
            lent, self._lent = self._lent, set()
            for slot in lent:
                slot.buffer.release()
            self.allocated_bytes = 0

    def _drop_free(self) -> None:
        for free in self._free.values():
            for slot in free.slots:
                slot.buffer.release()
                self.allocated_bytes -= slot.memory.nbytes
        self._free = {}

    def _exhausted(self, place: Place, asked: int) -> DeviceOutOfMemory:
        used = sum(slot.memory.nbytes for slot in self._lent)
        kept = sum(slot.memory.nbytes for slot in self._lent if slot.place.argument in self._of_the_model)
        piece = f", {_mib(self._largest_bytes)} in one piece" if asked > self._largest_bytes else ""
        is_kept = place.argument in self._of_the_model
        what = " for weights and gradients" if is_kept else ""
        return DeviceOutOfMemory(
            f"{self._name} is out of memory: asked {_mib(asked)}{what}, {_mib(used)} in use of "
            f"{_mib(self._limit_bytes)}{piece}: {remedy(asked if is_kept else 0, kept, self._limit_bytes)}"
        )


def remedy(asked_bytes: int, kept_bytes: int, limit_bytes: int) -> str:
    """What to do where memory is short.

    Parameters
    ----------
    asked_bytes
        For the model; 0 for a mini-batch.
    kept_bytes
        Of the model's weights and gradients that are there.
    limit_bytes
        All there is.
    """
    if asked_bytes:
        return "the model itself is too large, whatever the mini-batch: take fewer or narrower layers"
    if 2 * kept_bytes > limit_bytes:
        return f"{kept_bytes / limit_bytes:.0%} of it are weights and gradients: take fewer or narrower layers, or give it fewer targets"
    return "give it fewer targets"


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.4g} MiB"
