"""Compiled hash table that maps names, by their bytes, to numbers."""

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import GOLDEN, mix64

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)


@_compile
def hash_bytes(data, first, last):  # type: ignore[no-untyped-def]
    """Return a 64-bit hash of the bytes first..last-1."""
    hashed = np.uint64(last - first) * GOLDEN
    for i in range(first, last):
        hashed = (hashed ^ np.uint64(data[i])) * np.uint64(0x100000001B3)
    return mix64(hashed)


@_compile
def find_slot(data, first, last, slots, name_bytes, ends):  # type: ignore[no-untyped-def]
    """Return the slot of a name, or the empty slot for it; the number of slots is a power of two."""
    mask = len(slots) - 1
    slot = np.int64(hash_bytes(data, first, last) & np.uint64(mask))
    while slots[slot] >= 0:
        begin = ends[slots[slot]]
        if ends[slots[slot] + 1] - begin == last - first:
            same = True
            for i in range(last - first):
                if name_bytes[begin + i] != data[first + i]:
                    same = False
                    break
            if same:
                return slot
        slot = (slot + 1) & mask
    return slot


@_compile
def find_names(data, offsets, missing, slots, name_bytes, ends, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name; -1 for unknown and missing names."""
    for i in range(len(out)):
        out[i] = -1
        if not missing[i]:
            out[i] = slots[find_slot(data, offsets[i], offsets[i + 1], slots, name_bytes, ends)]


@_compile
def add_names(data, offsets, missing, slots, name_bytes, ends, num, out):  # type: ignore[no-untyped-def]
    """Look up the number of each name, number new names from `num` on, and return the new number of names."""
    for i in range(len(out)):
        out[i] = -1
        if missing[i]:
            continue
        first, last = offsets[i], offsets[i + 1]
        slot = find_slot(data, first, last, slots, name_bytes, ends)
        if slots[slot] < 0:
            slots[slot] = num
            begin = ends[num]
            for j in range(last - first):
                name_bytes[begin + j] = data[first + j]
            ends[num + 1] = begin + last - first
            num += 1
        out[i] = slots[slot]
    return num


@_compile
def fill_slots(name_bytes, ends, num, slots):  # type: ignore[no-untyped-def]
    """Insert the numbers of all names into empty slots."""
    mask = len(slots) - 1
    for number in range(num):
        slot = np.int64(hash_bytes(name_bytes, ends[number], ends[number + 1]) & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = number
