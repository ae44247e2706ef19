from __future__ import annotations

import gc
import threading
from random import Random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.runtime.buffer_pool import BufferPool

sizes = st.one_of(st.integers(0, 300), st.integers(10_000, 400_000))
dtypes = st.sampled_from([np.int32, np.int64, np.float32, np.float64, np.uint16, np.bool_])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, st.integers(1, 3), dtypes, st.booleans()), max_size=30), st.randoms())
def test_live_arrays_never_overlap(actions: list[tuple[int, int, type, bool]], random: Random) -> None:
    pool = BufferPool()
    live: list[tuple[np.ndarray, int]] = []
    for number, (rows, columns, dtype, give) in enumerate(actions):
        array = pool.take((rows, columns), dtype)
        assert array.shape == (rows, columns)
        assert array.dtype == dtype
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert array.ctypes.data % 64 == 0 or not array.size
        mark = number % 2 if dtype is np.bool_ else number
        array[:] = mark
        live.append((array, mark))
        if give:
            pool.release(live.pop(random.randrange(len(live)))[0])
        for other, expected in live:
            assert (other == expected).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes.filter(bool), dtypes), min_size=1, max_size=10), st.randoms())
def test_memory_does_not_grow_over_equal_rounds(shapes: list[tuple[int, type]], random: Random) -> None:
    pool = BufferPool()
    allocated = []
    for _ in range(12):
        arrays = [pool.take(size, dtype) for size, dtype in shapes]
        allocated.append(pool.allocated_bytes)
        random.shuffle(arrays)
        for array in arrays:
            pool.release(array)
    assert allocated[-1] == allocated[-3]
    needed = sum(size * np.dtype(dtype).itemsize for size, dtype in shapes)
    # An eighth more than asked for, and a little for each array's alignment and last page.
    assert allocated[0] <= needed * 9 / 8 + len(shapes) * 2 * 4096
    assert allocated[-1] <= 2 * allocated[0]


def test_memory_that_was_given_back_is_used_again() -> None:
    pool = BufferPool()
    first = pool.take((300, 7), np.float32)
    address = first.ctypes.data
    assert pool.take((300, 7), np.float32).ctypes.data != address
    pool.release(first)
    assert pool.take(2050, np.int32).ctypes.data == address


def test_a_slice_gives_the_whole_array_back() -> None:
    pool = BufferPool()
    array = pool.take((100, 10), np.float32)
    pool.release(array[3:7].view(np.int32))
    assert pool.take(1000, np.int32).ctypes.data == array.ctypes.data


def test_slightly_different_sizes_share_memory() -> None:
    pool = BufferPool()
    for size in (1_000_000, 1_004_000, 998_000, 1_010_000):
        pool.release(pool.take(size, np.float32))
    assert pool.allocated_bytes <= 4_000_000 * 9 / 8 + 2 * 4096


def test_a_small_request_leaves_large_memory_alone() -> None:
    pool = BufferPool()
    large = pool.take(1_000_000, np.float32)
    address = large.ctypes.data
    pool.release(large)
    pool.take(1000, np.float32)
    assert pool.take(1_000_000, np.float32).ctypes.data == address


def test_lent_memory_comes_back_when_the_tensor_goes() -> None:
    pool = BufferPool()
    tensor = torch.from_numpy(pool.lend((64, 1000), np.float32))
    address = tensor.data_ptr()
    other = pool.take((64, 1000), np.float32)
    assert other.ctypes.data != address
    view = tensor[3:5]
    del tensor
    gc.collect()
    assert pool.take((64, 1000), np.float32).ctypes.data != address
    del view
    gc.collect()
    assert pool.take((64, 1000), np.float32).ctypes.data == address


def test_threads_never_get_the_same_memory() -> None:
    pool = BufferPool()
    failures = []

    def work(mark: int) -> None:
        for _ in range(300):
            array = pool.take(2000, np.int64)
            array[:] = mark
            if not (array == mark).all():
                failures.append(mark)
            pool.release(array)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert pool.allocated_bytes <= 4 * (16_000 * 9 / 8 + 2 * 4096)


def test_a_piece_more_than_twice_as_large_is_kept_for_others() -> None:
    pool = BufferPool()
    pool.release(pool.take(1 << 20, np.uint8))
    before = pool.allocated_bytes
    pool.take(1 << 18, np.uint8)
    assert pool.allocated_bytes > before
    now = pool.allocated_bytes
    pool.take(900_000, np.uint8)
    assert pool.allocated_bytes == now
