"""hls::vector computes what NumPy computes in the same precision, and lies in memory as Vitis HLS's does."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hyrt_hls.simulator import compile_library
from numpy.typing import NDArray
from unit.hls.simulated_streams import FOLDER, MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

Floats = NDArray[np.float32]
VALUES = st.floats(np.float32(-1e15), np.float32(1e15), width=32)
WORDS = hnp.arrays(np.float32, 16, elements=VALUES)


@functools.cache
def library() -> ctypes.CDLL:
    # Also where sizes and alignments are asserted.
    return ctypes.CDLL(str(compile_library([FOLDER / "vectors.cpp"])))


def words(*rows: Floats) -> tuple[ctypes.c_void_p, list[ctypes.c_void_p], Floats]:
    """Rows at addresses that 64 divides: of the first, of each, and the memory itself."""
    memory = np.zeros(16 * len(rows) + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4
    aligned = memory[first : first + 16 * len(rows)].reshape(len(rows), 16)
    aligned[:] = rows
    addresses = [ctypes.c_void_p(aligned.ctypes.data + 64 * i) for i in range(len(rows))]
    return addresses[0], addresses, aligned


@settings(max_examples=100)
@given(WORDS, WORDS, VALUES)
def test_operations(a: Floats, b: Floats, value: float) -> None:
    b = np.where(b == 0, np.float32(3), b)
    scalar = np.float32(value)
    zeros = np.zeros(16, np.float32)
    _, (left, right, *_), memory = words(a, b, *[zeros] * 14)
    library().operate(left, right, ctypes.c_float(scalar), ctypes.c_void_p(memory.ctypes.data + 128))
    with np.errstate(over="ignore", under="ignore"):
        expected = [a + b, a - b, a * b, a / b, -a, a * scalar, scalar - a, np.full(16, scalar)]
        expected += [a + b, a - scalar, a * b + a, a / b, np.arange(16, dtype=np.float32), a[::-1]]
    np.testing.assert_array_equal(memory[2:], np.stack(expected))


@settings(max_examples=50)
@given(WORDS, WORDS, WORDS)
def test_a_product_is_rounded_before_it_is_added(a: Floats, b: Floats, c: Floats) -> None:
    first, (_, right, third, out), memory = words(a, b, c, np.zeros(16, np.float32))
    library().multiply_add(first, right, third, out)
    with np.errstate(under="ignore"):
        np.testing.assert_array_equal(memory[3], a * b + c)


@given(
    st.lists(st.integers(-40000, 40000), min_size=5, max_size=5),
    st.lists(st.integers(-40000, 40000), min_size=5, max_size=5),
)
def test_integers(a: list[int], b: list[int]) -> None:
    out = (ctypes.c_int32 * 5)()
    library().integers((ctypes.c_int32 * 5)(*a), (ctypes.c_int32 * 5)(*b), out)
    assert list(out) == [x * y - 1 for x, y in zip(a, b, strict=True)]
