"""Compiled loops of the graph generator.

They use only operations whose rounding IEEE 754 defines, so the result is the same on every machine.
"""

from __future__ import annotations

import numpy as np

from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import random_bits

_compile = nb.njit(nogil=True, cache=True, error_model="numpy", boundscheck=False)

UNIT = 2.0**-53
_11 = np.uint64(11)
_8 = np.uint64(8)
_48 = np.uint64(48)
_LOW_BYTES = np.uint64(0x00FF00FF00FF00FF)
_SUM = np.uint64(0x0001000100010001)
# Mean and inverse standard deviation of the sum of eight uniform bytes.
_NOISE_MEAN = np.int64(1020)
_NOISE_SCALE = np.float32(1.0 / 209.0199671)


@_compile
def draw_vertices(label_key, weight_key, shares, cap, scale, first, labels, weights):  # type: ignore[no-untyped-def]
    """Sample class and weight of the vertices first, first+1, ...; shares [C] float64 are cumulative.

    The weight is x^(-3/4) for uniform x. This gives P(weight > t) = t^(-4/3) and the degree exponent 7/3, and
    needs only square roots.
    """
    for i in range(len(labels)):
        vertex = np.uint64(first + i)
        labels[i] = np.searchsorted(
            shares, np.float64(random_bits(label_key, vertex) >> _11) * UNIT, side="right"
        )
        x = (np.float64(random_bits(weight_key, vertex) >> _11) + 1.0) * UNIT
        weights[i] = np.int64(min(1.0 / (np.sqrt(x) * np.sqrt(np.sqrt(x))), cap) * scale)


@_compile
def fill_guide(cumulative, shift, guide):  # type: ignore[no-untyped-def]
    """Set guide[b] to the first position whose weight interval reaches bucket b, which has all values with
    high bits b.
    """
    position = 0
    for b in range(len(guide)):
        while (cumulative[position + 1] - 1) >> shift < b:
            position += 1
        guide[b] = position


@_compile
def draw_pairs(  # type: ignore[no-untyped-def]
    first, last, ratio, cumulative, order, class_at, cumulative_b, shift, guide, order_b, class_start, inside,
    loopless, edge_key, place_key, sources, targets,
):  # fmt: skip
    """Sample edges between the vertices of two populations; return their number.

    Positions number vertices sorted by class. First endpoints are at the positions first..last-1. A position
    of weight w is the first endpoint of ratio * w edges. The second endpoint is sampled by weight from the
    second population: from class `class_at` if the 53 random bits of `place_key` are below `inside`,
    otherwise from all vertices. For `cumulative_b` and the other arrays of the second population, see
    `Population`. If `loopless`, self-loops are skipped.
    """
    num_edges = 0
    total = np.float64(cumulative_b[len(cumulative_b) - 1])
    for p in range(first, last):
        c = class_at[p]
        low = cumulative_b[class_start[c]]
        width = np.float64(cumulative_b[class_start[c + 1]] - low)
        for e in range(np.int64(cumulative[p] * ratio), np.int64(cumulative[p + 1] * ratio)):
            r = np.float64(random_bits(edge_key, np.uint64(e)) >> _11) * UNIT
            if np.float64(random_bits(place_key, np.uint64(e)) >> _11) * UNIT < inside:
                value = low + np.int64(r * width)
            else:
                value = np.int64(r * total)
            q = np.int64(guide[value >> shift])
            while cumulative_b[q + 1] <= value:
                q += 1
            if not loopless or order[p] != order_b[q]:
                sources[num_edges] = order[p]
                targets[num_edges] = order_b[q]
                num_edges += 1
    return num_edges


@_compile
def draw_features(key, labels, means, first, rows):  # type: ignore[no-untyped-def]
    """Compute the rows of vertices first, first+1, ...: class mean plus noise (eight uniform bytes, deviation
    1).
    """
    width = rows.shape[1]
    for i in range(len(rows)):
        c = labels[i]
        base = np.uint64(first + i) * np.uint64(width)
        for j in range(width):
            bits = random_bits(key, base + np.uint64(j))
            total = (((bits & _LOW_BYTES) + ((bits >> _8) & _LOW_BYTES)) * _SUM) >> _48
            rows[i, j] = means[c, j] + np.float32(np.int64(total) - _NOISE_MEAN) * _NOISE_SCALE


@_compile
def draw_ranks(key, ranks):  # type: ignore[no-untyped-def]
    """Sample a random rank for each vertex."""
    for v in range(len(ranks)):
        ranks[v] = random_bits(key, np.uint64(v))
