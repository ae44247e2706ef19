"""Neighbour sampling of one layer on the host."""

from __future__ import annotations

import numpy as np

from hyrt.graph.topology import Topology
from hyrt.machine.buffer_pool import BufferPool, TakenArrays
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.kernels import count_neighbors, draw_neighbors, prefix_sum
from hyrt.sampling.sampler import Hop

_GRAIN = 1024


def draw_hop(
    topology: Topology,
    vertices: Ids,
    fanout: int,
    key: np.uint64,
    workers: Workers,
    pool: BufferPool,
    arrays: TakenArrays,
) -> Hop:
    """Sample neighbours without replacement, as a function of the key and the vertex id only.

    Parameters
    ----------
    topology
        The edges; it must have all edges into the given vertices.
    vertices
        [n] distinct vertices.
    fanout
        Neighbours per vertex; -1 takes all.
    key
        The key from `hyrt.machine.generator.stream_key`.
    workers
        The team of threads that runs the chunks.
    pool
        The pool of temporary arrays.
    arrays
        Allocates the result.

    Raises
    ------
    OverflowError
        If there are too many edges for int32.
    """
    indptr, indices = topology.indptr, topology.indices
    num = len(vertices)
    degrees = arrays.take(num, np.int32)
    counts = np.empty(num, np.int32)

    def count(start: int, stop: int) -> None:
        count_neighbors(indptr, vertices, fanout, start, stop, degrees, counts)

    workers.run_rows(count, num, 4 * _GRAIN)
    offsets = arrays.take(num + 1, np.int32)
    edges = int(counts.sum(dtype=np.int64))
    if edges >= 2**31:
        raise OverflowError(
            f"{num:,} vertices with fan-out {fanout} have {edges:,} sampled edges: lower the fan-out"
        )
    prefix_sum(counts, offsets)
    neighbors = arrays.take(edges, vertices.dtype)
    source = arrays if topology.has_edge_values else pool
    positions = source.take(edges, np.int64)
    types = topology.edge_types
    drawn = None if types is None else arrays.take(edges, types.dtype)

    def draw(start: int, stop: int) -> None:
        draw_neighbors(indptr, indices, vertices, offsets, key, start, stop, positions, neighbors)
        if types is not None and drawn is not None:
            of_rows = slice(offsets[start], offsets[stop])
            np.take(types, positions[of_rows], out=drawn[of_rows], mode="clip")

    workers.run_rows(draw, num, _GRAIN)
    if topology.has_edge_values:
        return Hop(degrees, offsets, neighbors, edge_types=drawn, edges=positions)
    pool.give(positions)
    return Hop(degrees, offsets, neighbors, edge_types=drawn)
