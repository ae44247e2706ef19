"""Page-aligned memory under device buffers, on PoCL."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_devices.fpga.pools import BufferPlace, BufferPools, Slot
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl_host.memory_pool import PAGE_BYTES

from hyrt.errors import DeviceOutOfMemoryError

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")

LIMIT = 1 << 20
HERE, THERE = BufferPlace(0, 0), BufferPlace(1, 0)


@pytest.fixture(scope="module", name="context")
def _context() -> Any:
    import pyopencl as cl

    return cl.Context([survey().found[0].device])


def test_slots_are_whole_pages_that_a_device_reads_in_place(context: Any) -> None:
    import pyopencl as cl

    pools = BufferPools(context, "fpga:0", LIMIT, LIMIT)
    slot = pools.take(HERE, 5000)
    assert slot.memory.ctypes.data % PAGE_BYTES == 0
    assert slot.memory.nbytes % PAGE_BYTES == 0
    assert slot.memory.nbytes >= 5000
    rows = np.arange(1200, dtype=np.float32).reshape(300, 4)
    slot.fill(rows)
    queue, read = cl.CommandQueue(context), np.empty((300, 4), np.float32)
    cl.enqueue_migrate_mem_objects(queue, [slot.buffer], 0)
    cl.enqueue_copy(queue, read, slot.buffer)
    np.testing.assert_array_equal(read, rows)
    np.testing.assert_array_equal(slot.view((300, 4), np.float32), rows)
    pools.slots.close()


def test_a_slot_goes_back_to_its_own_place(context: Any) -> None:
    pools = BufferPools(context, "fpga:0", LIMIT, LIMIT)
    first = pools.take(HERE, 1000)
    assert first.fresh
    pools.give(first)
    assert pools.take(THERE, 1000) is not first
    assert pools.take(BufferPlace(0, 0, written=True), 1000) is not first
    again = pools.take(HERE, 1100)
    assert again is first
    assert not again.fresh
    assert pools.take(HERE, 1000) is not first
    pools.slots.close()


def test_a_request_over_the_limit_says_what_is_in_use(context: Any) -> None:
    pools = BufferPools(context, "fpga:7", LIMIT, LIMIT)
    kept = pools.take(HERE, 600_000)
    with pytest.raises(
        DeviceOutOfMemoryError,
        match=r"fpga:7 is out of memory \([\d.]+ KiB requested, [\d.]+ KiB of 1 MiB in use",
    ):
        pools.take(THERE, 500_000)
    pools.give(kept)
    # Free slots of another place make room.
    assert pools.take(THERE, 900_000).memory.nbytes >= 900_000
    pools.slots.close()


def test_one_piece_is_bounded_too(context: Any) -> None:
    pools = BufferPools(context, "fpga:0", LIMIT, 100_000)
    with pytest.raises(DeviceOutOfMemoryError, match="per buffer"):
        pools.take(HERE, 100_001)
    assert pools.take(HERE, 98_000).memory.nbytes <= 100_000
    pools.slots.close()


def test_closing_frees_what_is_lent_as_well(context: Any) -> None:
    pools = BufferPools(context, "fpga:0", LIMIT, LIMIT)
    lent, given_back = pools.take(HERE, 100), pools.take(HERE, 9000)
    pools.give(given_back)
    pools.slots.close()
    assert pools.slots.allocated_bytes == pools.slots.used_bytes == 0
    pools.give(lent)
    pools.slots.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400_000), st.integers(0, 2)), max_size=30))
def test_the_limit_holds_whatever_is_taken_and_given(
    context: Any, requests: list[tuple[bool, int, int]]
) -> None:
    pools = BufferPools(context, "fpga:0", LIMIT, LIMIT)
    lent: list[Slot] = []
    for giving, size, unit in requests:
        if giving and lent:
            pools.give(lent.pop(size % len(lent)))
        else:
            place = BufferPlace(unit, 3)
            try:
                lent.append(pools.take(place, size))
                assert lent[-1].memory.nbytes >= size
                assert lent[-1].place == place
            except DeviceOutOfMemoryError:
                assert sum(slot.memory.nbytes for slot in lent) + size + PAGE_BYTES > LIMIT
        assert pools.slots.used_bytes == sum(slot.memory.nbytes for slot in lent)
        assert pools.slots.used_bytes <= pools.slots.allocated_bytes <= LIMIT
    starts = sorted((slot.memory.ctypes.data, slot.memory.nbytes) for slot in lent)
    assert all(at + size <= after for (at, size), (after, _) in pairwise(starts))
    pools.slots.close()
