"""Chunk counts of an open graph, with the intervals of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from hyrt_perfmodel.chunks.chunk_grid import GridSizes
from numpy.typing import NDArray

from hyrt.fullgraph.grid.edge_chunks import count_chunks
from hyrt.fullgraph.grid.intervals import Intervals
from hyrt.graph.topology import Topology

Array = NDArray[Any]


def counted_chunks(topology: Topology, targets: Array, parts: int) -> tuple[GridSizes, GridSizes]:
    """Count the chunks of all edges, and of the edges into the targets.

    Parameters
    ----------
    topology
        All edges.
    targets
        [n] the targets.
    parts
        P, number of intervals; capped at the number of vertices.

    Returns
    -------
    Both sizes, with the intervals of `hyrt.fullgraph.grid.least_grid.ChunkGrid`.
    """
    vertices = Intervals(topology.num_vertices, min(parts, topology.num_vertices))
    target_intervals = Intervals(len(targets), -(-len(targets) // max(1, vertices.longest)))
    sorted_targets = np.sort(targets)
    return _sizes(topology, vertices, vertices, None), _sizes(
        topology, target_intervals, vertices, sorted_targets
    )


def _sizes(topology: Topology, into: Intervals, sources: Intervals, chosen: Array | None) -> GridSizes:
    counts = count_chunks(topology.indptr, topology.indices, into, sources, chosen)
    starts, rows = sources.starts, np.diff(sources.starts).astype(np.float64)
    if chosen is None and topology.is_symmetric:
        # In a symmetric graph, vertices with edges into an interval also have edges from it.
        return GridSizes(
            rows=rows,
            edges=counts.edges.T.astype(np.float64),
            sources=counts.rows.astype(np.float64),
            destinations=counts.rows.T.astype(np.float64),
        )
    touched = np.zeros((sources.num, into.num))
    for column in range(into.num):
        read = np.zeros(topology.num_vertices, np.bool_)
        read[_sources(topology, chosen, *into.range(column))] = True
        touched[:, column] = np.add.reduceat(read, starts[:-1], dtype=np.int64)
    in_both = None
    if chosen is not None:
        inside = [np.diff(np.searchsorted(chosen[slice(*into.range(q))], starts)) for q in range(into.num)]
        in_both = np.array(inside, np.float64).reshape(into.num, sources.num).T
    return GridSizes(
        rows=rows,
        edges=counts.edges.T.astype(np.float64),
        sources=touched,
        destinations=counts.rows.T.astype(np.float64),
        into=None if chosen is None else np.diff(into.starts).astype(np.float64),
        own=in_both,
    )


def _sources(topology: Topology, chosen: Array | None, first: int, last: int) -> Array:
    """Return the sources of all edges into some destinations."""
    if chosen is None:
        edges: Array = topology.indices[topology.indptr[first] : topology.indptr[last]]
        return edges
    vertices = chosen[first:last]
    begins, counts = topology.indptr[vertices], topology.indptr[vertices + 1] - topology.indptr[vertices]
    ends = np.cumsum(counts)
    indices = np.repeat(begins - (ends - counts), counts) + np.arange(int(ends[-1]) if len(ends) else 0)
    sources: Array = topology.indices[indices]
    return sources
