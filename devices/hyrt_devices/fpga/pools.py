"""Page-aligned host memory with a device buffer over each piece, used again and again."""

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
    """Where a buffer belongs: its memory bank follows from it, and stays."""

    unit: int
    """Number of the compute unit."""
    argument: int
    """Position of the kernel's argument."""
    written: bool = False
    """Whether the device writes it, and only writes it."""


@dataclass(slots=True, eq=False)
class Slot:
    """One buffer with the host memory that it is over."""

    place: BufferPlace
    """The place that it belongs to."""
    memory: NDArray[np.uint8]
    """[size] uint8, from a page's start to a page's end."""
    buffer: Any
    """`pyopencl.Buffer`."""
    fresh: bool = True
    """Whether no command has used it yet."""

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return self.memory.nbytes

    def release(self) -> None:
        """Free the buffer."""
        self.buffer.release()

    def view(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """The first bytes as an array."""
        count = int(np.prod(shape, dtype=np.int64))
        return self.memory[: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)

    def fill(self, array: NDArray[Any]) -> None:
        """Copy an array to the first bytes."""
        self.view(array.shape, array.dtype)[...] = array


class BufferPools:
    """Hands out slots; any thread may take and give back.

    A slot is used again only where it was first: XRT puts a buffer in the memory bank of the first argument
    that it is set as.

    Parameters
    ----------
    context
        The OpenCL context.
    name, limit_bytes, largest_bytes
        The parameters of `DeviceMemoryPool`.
    of_the_model
        Arguments whose slots hold the model's weights and gradients: they are what no smaller mini-batch
        makes room for.
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
        """A slot of at least `size_bytes`; what it holds is not defined.

        Raises
        ------
        DeviceOutOfMemoryError
            If it does not fit; nothing was taken.
        """
        return self.slots.take(whole_pages(max(size_bytes, 1)), place)

    def _slot(self, place: Any, size: int) -> Slot:
        import pyopencl as cl

        flags = cl.mem_flags.WRITE_ONLY if place.written else cl.mem_flags.READ_ONLY
        try:
            # Private: what is shared lies in a file system of its own, with a limit of its own.
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory = np.frombuffer(pages, np.uint8)
            return Slot(
                place, memory, cl.Buffer(self._context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=memory)
            )
        except (OSError, cl.MemoryError) as error:
            raise MemoryError(str(error)) from error

    def give(self, slot: Slot) -> None:
        """Take back a slot of `take`."""
        slot.fresh = False
        self.slots.give(slot, slot.place)

    def _explain(self, place: Any, asked: int, lent: Sequence[Slot]) -> tuple[str, str]:
        is_kept = place.argument in self._of_the_model
        kept = sum(slot.size for slot in lent if slot.place.argument in self._of_the_model)
        purpose = "weights and gradients" if is_kept else ""
        return purpose, remedy(asked if is_kept else 0, kept, self.slots.limit_bytes)


def remedy(requested_bytes: int, resident_bytes: int, limit_bytes: int) -> str:
    """What to do where memory is short.

    Parameters
    ----------
    requested_bytes
        Bytes asked for the model; 0 for a mini-batch.
    resident_bytes
        Bytes of the model's weights and gradients that are there.
    limit_bytes
        Bytes that there are in all.
    """
    if requested_bytes:
        return "the model itself is too large, whatever the mini-batch: use fewer or narrower layers"
    if 2 * resident_bytes > limit_bytes:
        return (
            f"{resident_bytes / limit_bytes:.0%} of it are weights and gradients: use fewer or narrower "
            "layers, or give it fewer targets"
        )
    return "give it fewer targets"
