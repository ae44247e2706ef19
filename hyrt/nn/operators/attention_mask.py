"""Dropout of attention weights, whose masks are a function of (seed, step, layer, destination, source, head).

The weights are dropped after their softmax (Velickovic et al., ICLR 2018, section 3.3): in every step each
vertex sums over a random part of its neighbours. A mask depends on neither the mini-batch nor the device, the
thread or the chunk that an edge is in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.generator import ATTENTION, dropout_threshold, random_bits, stream_key, vertex_stream
from hyrt.machine.kernels.kept_kernels import nb
from hyrt.machine.workers import current_workers
from hyrt.nn.operators.result_memory import empty_array
from hyrt.quantities import one_line
from hyrt.sampling.block import Block

_GRAIN = 1024

HEADS_OF_DRAW = 4
"""Heads that share one draw of 64 bits, 16 each, the lowest first."""


@dataclass(frozen=True, slots=True)
class AttentionMask:
    """Which weights of a layer a step drops."""

    key: np.uint64
    """From `hyrt.machine.generator.stream_key`."""
    threshold: np.uint64
    """How many of 65536 draws are dropped."""
    scale: float
    """The factor of the others, which keeps the expectation."""
    vertices: NDArray[Any] | None = None
    """[V] integers, the numbers by which masks know the vertices of the topology; their own by default."""

    __repr__ = one_line

    @classmethod
    def of(cls, rate: float, seed: int, step: int, layer: int) -> AttentionMask:
        """The mask of a layer (1..L) in a step.

        Raises
        ------
        ValueError
            If the rate is not in [0, 1).
        """
        if not 0 <= rate < 1:
            raise ValueError(f"attention dropout of layer {layer}: rate {rate} is not in [0, 1)")
        return cls(stream_key(seed, ATTENTION, step, layer), *dropout_threshold(rate))


@nb.njit(inline="always", nogil=True, cache=True)
def mask_edge(stream, source, first, heads, all_heads, threshold, scale, out):  # type: ignore[no-untyped-def]
    """out[h] = the factor of head first + h on an edge from `source`, by the stream of its destination."""
    groups = (all_heads + HEADS_OF_DRAW - 1) // HEADS_OF_DRAW
    bits = np.uint64(0)
    for h in range(heads):
        head = first + h
        lane = head % HEADS_OF_DRAW
        if h == 0 or lane == 0:
            bits = random_bits(stream, np.uint64(source * groups + head // HEADS_OF_DRAW))
        drawn = (bits >> np.uint64(16 * lane)) & np.uint64(0xFFFF)
        out[h] = scale if drawn >= threshold else 0


@nb.njit(nogil=True, cache=True, boundscheck=False)
def _mask_edges(  # type: ignore[no-untyped-def]
    indptr, columns, sources, destinations, key, threshold, scale, out, own, start, stop
):
    heads = out.shape[1]
    for i in range(start, stop):
        vertex = np.int64(destinations[i])
        stream = vertex_stream(key, np.uint64(vertex))
        mask_edge(stream, vertex, 0, heads, heads, threshold, scale, own[i])
        for e in range(indptr[i], indptr[i + 1]):
            source = np.int64(columns[e]) if sources is None else np.int64(sources[columns[e]])
            mask_edge(stream, source, 0, heads, heads, threshold, scale, out[e])


def edge_factors(
    mask: AttentionMask, block: Block, heads: int, dtype: np.dtype[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """The factors on the weights of a block's edges [E, heads] and of its self loops [num_dst, heads]."""
    out, own = empty_array((block.num_edges, heads), dtype), empty_array((block.num_dst, heads), dtype)
    edges = (block.indptr, block.columns, block.sources, block.destinations)
    scale = dtype.type(mask.scale)
    current_workers().run(
        lambda start, stop: _mask_edges(*edges, mask.key, mask.threshold, scale, out, own, start, stop),
        block.num_dst,
        _GRAIN,
    )
    return out, own
