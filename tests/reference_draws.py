"""The counter-based generator once more, in plain Python integers."""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def stream_key(*parts: int) -> int:
    """Key of (seed, purpose, step, layer)."""
    seed, *rest = parts
    key = mix64((seed + GOLDEN) & MASK)
    for part in rest:
        key = mix64((key + (part + 1) * GOLDEN) & MASK)
    return key


def draw(key: int, vertex: int, counter: int) -> int:
    stream = mix64((key + (vertex + 1) * GOLDEN) & MASK)
    return mix64((stream + (counter + 1) * GOLDEN) & MASK)


def below(bits: int, bound: int) -> int:
    return ((bits >> 32) * bound) >> 32
