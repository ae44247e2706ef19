"""Pools of reusable page-aligned host memory, with a device buffer over each piece."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hyrt_devices.opencl_host.memory_pool import DeviceMemoryPool, whole_pages


@dataclass(frozen=True, slots=True)
class BufferPlace:
    """Compute unit and argument of a buffer, which permanently determine its memory bank."""

    unit: int
    argument: int
    """Position of the argument among the kernel's arguments."""
    written: bool = False
    """Whether the device writes the buffer and never reads it."""


@dataclass(slots=True, eq=False)
class Slot:
    """Device buffer and the host memory that it wraps."""

    place: BufferPlace
    memory: NDArray[np.uint8]
    """Host memory of whole pages: [size] uint8."""
    buffer: Any
    """Object of class `pyopencl.Buffer`."""
    fresh: bool = True
    """Whether no command has used the buffer yet."""

    @property
    def size(self) -> int:
        return self.memory.nbytes

    def release(self) -> None:
        self.buffer.release()

    def view(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Return the first bytes of the slot as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        return self.memory[: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def fill(self, array: NDArray[Any]) -> None:
        """Copy an array to the first bytes of the slot."""
        self.view(array.shape, array.dtype)[...] = array


class BufferPools:
    """Thread-safe pools of slots.

    A slot is reused only for its first place, because XRT allocates a buffer in the memory bank of the first
    argument that is set to it. The arguments `of_the_model` contain weights and gradients, so a smaller
    mini-batch does not free their memory.
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
        self._of_the_model = of_the_model
        self.slots: DeviceMemoryPool[Slot] = DeviceMemoryPool(
            name, limit_bytes, largest_bytes, self._slot, self._explain
        )

    def take(self, place: BufferPlace, size_bytes: int) -> Slot:
        """Return an uninitialised slot of at least `size_bytes` bytes.

        Raises DeviceOutOfMemoryError, and allocates nothing, if the slot does not fit.
        """
        return self.slots.take(whole_pages(max(size_bytes, 1)), place)

    def _slot(self, place: Any, size: int) -> Slot:
        import pyopencl as cl

        flags = cl.mem_flags.WRITE_ONLY if place.written else cl.mem_flags.READ_ONLY
        try:
            # Use a private mapping: shared ones are in a separate file system with a separate limit.
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory = np.frombuffer(pages, np.uint8)
            return Slot(
                place, memory, cl.Buffer(self._context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
            )
        except (OSError, cl.MemoryError) as error:
            raise MemoryError(str(error)) from error

    def give(self, slot: Slot) -> None:
        """Put a slot from `take` back into the pool."""
        slot.fresh = False
        self.slots.give(slot, slot.place)

    def _explain(self, place: Any, requested_bytes: int, lent: Sequence[Slot]) -> tuple[str, str]:
        is_model = place.argument in self._of_the_model
        resident_bytes = sum(slot.size for slot in lent if slot.place.argument in self._of_the_model)
        purpose = "weights and gradients" if is_model else ""
        return purpose, remedy(requested_bytes if is_model else 0, resident_bytes, self.slots.limit_bytes)


FEWER_TARGETS = "lower data.batch_size, or assign the device a smaller share"


def remedy(requested_bytes: int, resident_bytes: int, limit_bytes: int) -> str:
    """Return the remedy for a lack of device memory.

    `requested_bytes` is the size requested for the model, or 0 for a mini-batch. `resident_bytes` is the size
    of the model's allocated weights and gradients.
    """
    if requested_bytes:
        return "use fewer or narrower layers, because the model alone is too large"
    if 2 * resident_bytes > limit_bytes:
        return (
            "use fewer or narrower layers (weights and gradients take "
            f"{resident_bytes / limit_bytes:.0%} of the memory), or lower data.batch_size"
        )
    return FEWER_TARGETS
