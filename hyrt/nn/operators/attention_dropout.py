"""Dropout of attention weights; masks depend on (seed, step, layer, destination, source, head) only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.formatting import short_repr
from hyrt.nn.operators.autograd import empty_array
from hyrt.runtime.numba_cache import nb
from hyrt.runtime.rng import ATTENTION, dropout_threshold, random_bits, stream_key, vertex_stream
from hyrt.runtime.workers import current_workers
from hyrt.sampling.block import Block

_GRAIN = 1024

HEADS_PER_DRAW = 4
"""Number of heads that share one 64-bit random number: 16 bits per head, beginning with the lowest bits."""


@dataclass(frozen=True, slots=True)
class AttentionDropout:
    """Dropout mask for the attention weights of one layer in one step."""

    key: np.uint64
    """Stream key from `hyrt.runtime.rng.stream_key`."""
    threshold: np.uint64
    """Threshold of the 16 random bits of a weight: smaller values drop the weight."""
    scale: float
    """Factor of the remaining weights, which preserves the expected value."""
    vertices: NDArray[Any] | None = None
    """Vertex ids for the random number generator, [V] integers; None uses the indices in the topology."""

    __repr__ = short_repr

    @classmethod
    def from_rate(cls, rate: float, seed: int, step: int, layer: int) -> AttentionDropout:
        """Return the mask of a layer (1..L) in a step. Raises ValueError if the rate is not in [0, 1)."""
        if not 0 <= rate < 1:
            raise ValueError(f"the attention dropout rate of layer {layer} is {rate}, which is not in [0, 1)")
        return cls(stream_key(seed, ATTENTION, step, layer), *dropout_threshold(rate))


@nb.njit(inline="always", nogil=True, cache=True)
def mask_edge(stream, source, first, heads, all_heads, threshold, scale, out):  # type: ignore[no-untyped-def]
    """Write the factor of head first + h of an edge to out[h]. `stream` is that of the destination."""
    groups = (all_heads + HEADS_PER_DRAW - 1) // HEADS_PER_DRAW
    bits = np.uint64(0)
    for h in range(heads):
        head = first + h
        lane = head % HEADS_PER_DRAW
        if h == 0 or lane == 0:
            bits = random_bits(stream, np.uint64(source * groups + head // HEADS_PER_DRAW))
        drawn = (bits >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
        out[h] = scale if drawn >= threshold else 0


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _mask_edges(  # type: ignore[no-untyped-def]
    indptr, columns, sources, destinations, key, threshold, scale, out, self_out, start, stop
):
    heads = out.shape[1]
    for i in range(start, stop):
        vertex = np.int64(destinations[i])
        stream = vertex_stream(key, np.uint64(vertex))
        mask_edge(stream, vertex, 0, heads, heads, threshold, scale, self_out[i])
        for e in range(indptr[i], indptr[i + 1]):
            source = np.int64(columns[e]) if sources is None else np.int64(sources[columns[e]])
            mask_edge(stream, source, 0, heads, heads, threshold, scale, out[e])


def attention_dropout_factors(
    mask: AttentionDropout, block: Block, heads: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the dropout factors of a block's edges [E, heads] and of its self-loops [num_dst, heads]."""
    out, self_out = empty_array((block.num_edges, heads), dtype), empty_array((block.num_dst, heads), dtype)
    edges = (block.indptr, block.columns, block.sources, block.destinations)
    scale = dtype.type(mask.scale)
    current_workers().run(
        lambda start, stop: _mask_edges(*edges, mask.key, mask.threshold, scale, out, self_out, start, stop),
        block.num_dst,
        _GRAIN,
    )
    return out, self_out
