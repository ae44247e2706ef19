"""float16 in compiled loops, by instructions and by integer operations: all halves, and numpy's rounding."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numba.core import types
from numba.extending import intrinsic

from hyrt.runtime import intrinsics

pytestmark = pytest.mark.bits


@pytest.fixture(params=["the processor's instructions", "integer operations"])
def conversions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two compiled loops: from halves to float32, and back."""
    if request.param == "integer operations":
        monkeypatch.setattr(intrinsics, "_has_conversions", lambda context: False)

    @intrinsic
    def widen(typingctx: Any, bits: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return intrinsics.half_to_float(context, builder, args[0])

        return types.float32(types.uint16), generate

    @intrinsic
    def narrow(typingctx: Any, number: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return intrinsics.float_to_half(context, builder, args[0])

        return types.uint16(types.float32), generate

    @numba.njit
    def widen_all(bits: Any, out: Any) -> None:
        for k in range(len(bits)):
            out[k] = widen(bits[k])

    @numba.njit
    def narrow_all(numbers: Any, out: Any) -> None:
        for k in range(len(numbers)):
            out[k] = narrow(numbers[k])

    return widen_all, narrow_all


def test_halves_are_converted_as_numpy_does(conversions: Any) -> None:
    widen_all, narrow_all = conversions
    halves = np.arange(1 << 16, dtype=np.uint16)
    wide, narrowed = np.empty(len(halves), np.float32), np.empty(len(halves), np.uint16)
    widen_all(halves, wide)
    np.testing.assert_array_equal(wide, halves.view(np.float16).astype(np.float32))
    numbers = wide[~np.isnan(wide)]
    # Halfway between two halves, and next to that; numbers beyond the halves; subnormal float32.
    middles = (numbers[:-1] + numbers[1:]) / 2
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    special = np.float32([0, -0.0, 1e-45, -1e-40, 65504, 65519.99, 65520, 1e6, -np.inf, np.nan])
    numbers = np.concatenate(
        [
            numbers,
            middles,
            *(np.nextafter(middles, np.float32(end)) for end in (-np.inf, np.inf)),
            random,
            special,
        ]
    )
    narrowed = np.empty(len(numbers), np.uint16)
    narrow_all(numbers, narrowed)
    with np.errstate(over="ignore", under="ignore"):
        expected = numbers.astype(np.float16)
    np.testing.assert_array_equal(narrowed.view(np.float16), expected)
    np.testing.assert_array_equal(np.signbit(narrowed.view(np.float16)), np.signbit(expected))
