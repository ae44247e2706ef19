"""Pooled device memory within a limit."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from opencl_doubles import module

from hyrt.errors import DeviceOutOfMemoryError

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def _doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", module([]))


def memory(limit: int = LIMIT, largest: int = LIMIT, room: int = 1 << 40) -> DeviceMemory:
    return DeviceMemory(SimpleNamespace(room=room), "opencl:7", limit, largest)


def test_buffers_are_used_again() -> None:
    pool = memory()
    first = pool.take(1000)
    pool.give(first)
    assert pool.take(1100) is first
    assert pool.take(1000) is not first


def test_buffers_of_exact_sizes_are_freed_when_they_come_back() -> None:
    """Nothing takes them again: those of each loop would stay beside new ones, up to the limit."""
    pool = memory()
    first, other = pool.take(1000, exact=True), pool.take(1000)
    assert first.size == 1000 + 256
    pool.give(first)
    assert first.released
    assert pool.buffers.allocated_bytes == pool.buffers.used_bytes == other.size
    pool.give(first)
    pool.give(other)
    assert pool.take(1000, exact=True) is not other
    assert not other.released


def test_a_request_over_the_limit_says_what_is_in_use() -> None:
    pool = memory()
    kept = pool.take(600_000)
    with pytest.raises(
        DeviceOutOfMemoryError, match=r"opencl:7 is out of memory \(489 KiB requested, .* KiB of 1 MiB in use"
    ):
        pool.take(500_000)
    pool.give(kept)
    pool.take(500_000)


def test_free_buffers_make_room_before_memory_is_said_to_be_out() -> None:
    pool = memory()
    first = pool.take(700_000)
    pool.give(first)
    pool.take(200_000)
    pool.take(800_000)
    assert first.released
    assert pool.buffers.allocated_bytes <= LIMIT


def test_one_piece_is_bounded_too() -> None:
    pool = memory(largest=100_000)
    with pytest.raises(DeviceOutOfMemoryError, match="per buffer"):
        pool.take(100_001)
    assert pool.take(99_000).size <= 100_000


def test_what_the_driver_refuses_is_out_of_memory() -> None:
    pool = memory(room=5000)
    with pytest.raises(DeviceOutOfMemoryError) as caught:
        pool.take(6000)
    assert caught.value.__cause__ is not None
    assert pool.buffers.used_bytes == pool.buffers.allocated_bytes == 0


def test_a_lease_gives_all_back_once() -> None:
    pool = memory()
    with Lease(pool) as lease:
        lease.floats(10, 10)
        lease.take(0)
        assert pool.buffers.used_bytes > 400
    assert pool.buffers.used_bytes == 0
    lease.release()


def test_closing_frees_what_is_lent_as_well() -> None:
    pool = memory()
    buffers = [pool.take(100), pool.take(5000)]
    pool.give(buffers[0])
    pool.buffers.close()
    assert all(buffer.released for buffer in buffers)
    assert pool.buffers.allocated_bytes == 0
    pool.give(buffers[1])
    pool.buffers.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400_000), st.booleans()), max_size=40))
def test_the_limit_holds_whatever_is_taken_and_given(requests: list[tuple[bool, int, bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyopencl", module([]))
        pool = memory()
        lent: list[Any] = []
        for giving, size, exact in requests:
            if giving and lent:
                pool.give(lent.pop(size % len(lent)))
            else:
                try:
                    lent.append(pool.take(size, exact=exact))
                    assert lent[-1].size >= size
                    assert not exact or lent[-1].size == size + 256
                except DeviceOutOfMemoryError:
                    assert sum(buffer.size for buffer in lent) + size + 256 > LIMIT
            assert pool.buffers.used_bytes == sum(buffer.size for buffer in lent)
            assert pool.buffers.used_bytes <= pool.buffers.allocated_bytes <= LIMIT
            assert len({id(buffer) for buffer in lent}) == len(lent)
