"""Counter-based random number generator for every sampled edge and every dropout mask.

A random number is a pure function of (seed, step, layer, vertex, counter), so it does not depend on the
thread, the device, the order or the mini-batch. The mixing function is the finalizer of SplitMix64 (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014), which needs only 64-bit
multiplications, shifts and exclusive ors, which every device has.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hyrt.runtime.numba_cache import nb

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
_30 = np.uint64(30)
_27 = np.uint64(27)
_31 = np.uint64(31)
_32 = np.uint64(32)
_1 = np.uint64(1)

# Purposes of keys. Random numbers for different purposes never share a stream.
SAMPLE = 1
DROPOUT = 2
WALK = 3
SHUFFLE = 4
PRESAMPLE = 5
ATTENTION = 6
LAYER = 7
ROUNDING = 8
LINKS = 9
SPLIT = 10

_MASK = (1 << 64) - 1


@nb.njit("uint64(uint64)", inline="always", cache=True, nogil=True)
def mix64(z):  # type: ignore[no-untyped-def]
    """Scramble 64 bits so that each input bit flips each output bit with probability one half."""
    z = (z ^ (z >> _30)) * MIX_A
    z = (z ^ (z >> _27)) * MIX_B
    return z ^ (z >> _31)


@nb.njit("uint64(uint64, uint64)", inline="always", cache=True, nogil=True)
def vertex_stream(key, vertex):  # type: ignore[no-untyped-def]
    """Return the random stream of a vertex under a key of `stream_key`."""
    return mix64(key + (vertex + _1) * GOLDEN)


def vertex_streams(key: np.uint64, vertices: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the random streams [n] of vertices [n] under a key of `stream_key`."""
    z = key + (vertices.astype(np.uint64) + _1) * GOLDEN
    z = (z ^ (z >> _30)) * MIX_A
    z = (z ^ (z >> _27)) * MIX_B
    return z ^ (z >> _31)


def random_bits_array(streams: NDArray[np.uint64], counters: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return random numbers equal to those of `random_bits`; the shapes of the arrays are broadcast."""
    z: NDArray[np.uint64] = streams + (counters.astype(np.uint64) + _1) * GOLDEN
    z = (z ^ (z >> _30)) * MIX_A
    z = (z ^ (z >> _27)) * MIX_B
    return z ^ (z >> _31)


def random_ints_below(bits: NDArray[np.uint64], bound: int) -> NDArray[np.int64]:
    """Map 64 uniform bits to 0..bound-1 like `random_below`; 53 bits are used for bounds from 2^32."""
    if bound < 1 << 32:
        return (((bits >> _32) * np.uint64(bound)) >> _32).astype(np.int64)
    return ((bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 * bound).astype(np.int64)


@nb.njit("uint64(uint64, uint64)", inline="always", cache=True, nogil=True)
def random_bits(stream, counter):  # type: ignore[no-untyped-def]
    """Return the random number `counter` of a stream as 64 uniform bits."""
    return mix64(stream + (counter + _1) * GOLDEN)


@nb.njit("uint64(uint64, uint64)", inline="always", cache=True, nogil=True)
def random_below(bits, bound):  # type: ignore[no-untyped-def]
    """Map 64 uniform bits to 0..bound-1 (bound < 2^32); probabilities are exact up to 2^-32."""
    return ((bits >> _32) * bound) >> _32


def _mix64_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * int(MIX_A)) & _MASK
    z = ((z ^ (z >> 27)) * int(MIX_B)) & _MASK
    return z ^ (z >> 31)


def stream_key(seed: int, purpose: int, step: int, layer: int) -> np.uint64:
    """Return the 64-bit key for all random numbers of one purpose in one layer of one step.

    Parameters
    ----------
    seed
        Seed of the run.
    purpose
        `SAMPLE`, `DROPOUT`, `WALK`, `SHUFFLE`, `PRESAMPLE`, `ATTENTION`, `LAYER`, `ROUNDING`, `LINKS` or
        `SPLIT`.
    step
        Step of the run, counted from 0.
    layer
        Layer 1..L of the model.
    """
    key = _mix64_int((seed + int(GOLDEN)) & _MASK)
    for part in (purpose, step, layer):
        key = _mix64_int((key + (part + 1) * int(GOLDEN)) & _MASK)
    return np.uint64(key)


def dropout_threshold(rate: float) -> tuple[np.uint64, float]:
    """Return how many of 65536 draws are dropped, and the scale factor of the remaining values."""
    threshold = min(round(rate * 65536), 65535)
    return np.uint64(threshold), 65536 / (65536 - threshold)
