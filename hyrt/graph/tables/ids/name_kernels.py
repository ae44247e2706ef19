"""Compiled loops of a hash table that maps names, by their bytes, to numbers."""

from __future__ import annotations

import numpy as np

from hyrt.machine.generator import GOLDEN, mix64
from hyrt.machine.kernels.kept_kernels import nb

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def hash_of(data, first, last):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of the bytes first..last-1."""
    hashed = np.uint64(last - first) * GOLDEN
    for i in range(first, last):
        hashed = (hashed ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return mix64(hashed)


@_compile
def slot_of(data, first, last, slots, kept, ends):  # type: ignore[no-untyped-def]
    """Return the slot with the number of a name, or the empty slot for it; the number of slots is a power of
    two.
    """
    mask = len(slots) - 1
    slot = np.int64(hash_of(data, first, last) & np.uint64(mask))
    while slots[slot] >= 0:
        begin = ends[slots[slot]]
        if ends[slots[slot] + 1] - begin == last - first:
            same = True
            for i in range(last - first):
                if kept[begin + i] != data[first + i]:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@_compile
def find_names(data, offsets, missing, slots, kept, ends, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name; -1 for unknown and missing names."""
    for i in range(len(out)):
        out[i] = -1
        if not missing[i]:
            out[i] = slots[slot_of(data, offsets[i], offsets[i + 1], slots, kept, ends)]


@_compile
def add_names(data, offsets, missing, slots, kept, ends, num, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name and number new names from `num` on; return the new total number."""
    for i in range(len(out)):
        out[i] = -1
        if missing[i]:
            continue
        first, last = offsets[i], offsets[i + 1]
        slot = slot_of(data, first, last, slots, kept, ends)
        if slots[slot] < 0:
            slots[slot] = num
            begin = ends[num]
            for j in range(last - first):
                kept[begin + j] = data[first + j]
            ends[num + 1] = begin + last - first
            num += 1
        out[i] = slots[slot]
    return num


@_compile
def fill_slots(kept, ends, num, slots):  # type: ignore[no-untyped-def]
    """Insert the numbers of all names into empty slots."""
    mask = len(slots) - 1
    for number in range(num):
        slot = np.int64(hash_of(kept, ends[number], ends[number + 1]) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number
