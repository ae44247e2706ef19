"""Links of a topology, and topologies with links added or removed."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.known_edges import are_edges, edges_joining
from hyrt.graph.topology import Topology

# Number of edges that are processed at once, which bounds the temporary memory.
_EDGES_AT_ONCE = 1 << 24


def links_of(topology: Topology) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """List the links of a topology: its edges without self loops and duplicates.

    In a symmetric topology, an edge and its reverse are one link, whose source is the smaller vertex.

    Returns
    -------
    [M, 2] sources and destinations, int32 where the vertices fit, in the order of the edges; and [M] int64,
    the position of the first edge of each.
    """
    ids = np.int32 if topology.num_vertices < 2**31 else np.int64
    indptr, symmetric = topology.indptr, topology.is_symmetric
    found, places = [], []
    start = 0
    while start < topology.num_vertices:
        end = np.searchsorted(indptr, indptr[start] + _EDGES_AT_ONCE, side="right") - 1
        stop = min(max(start + 1, int(end)), topology.num_vertices)
        sources = topology.indices[indptr[start] : indptr[stop]]
        counts = np.diff(indptr[start : stop + 1])
        ends = np.repeat(np.arange(start, stop, dtype=ids), counts)
        wanted = sources < ends if symmetric else sources != ends
        if len(sources) > 1:
            wanted[1:] &= (sources[1:] != sources[:-1]) | (ends[1:] != ends[:-1])
        at = np.flatnonzero(wanted)
        found.append(np.stack([sources[at].astype(ids), ends[at]], axis=1))
        places.append(at + indptr[start])
        start = stop
    if not found:
        return np.empty((0, 2), ids), np.empty(0, np.int64)
    return np.concatenate(found), np.concatenate(places)


def without_links(topology: Topology, *links: NDArray[Any]) -> Topology:
    """Return the topology without the edges of links and without their reverse edges.

    Parameters
    ----------
    topology
        The edges, sorted within a row.
    links
        [n, 2] sources and destinations; pairs that are not edges change nothing.
    """
    both = [(pairs, None) for each in links for pairs in (each, each[:, ::-1])]
    return with_edges(topology, ~edges_joining(topology, both))


def with_links(topology: Topology, *links: NDArray[Any]) -> Topology:
    """Return the edges of a topology, without types or values, and [n, 2] links that are not among them.

    In a symmetric topology, their reverse edges are added as well, so that it stays symmetric.
    """
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(np.asarray(each, np.int64) for each in links)])
    if topology.is_symmetric:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = pairs[~are_edges(topology, pairs)]
    if not len(pairs):
        return topology
    pairs = np.unique(pairs, axis=0)
    rows = np.repeat(np.arange(topology.num_vertices), np.diff(topology.indptr))
    sources = np.concatenate([topology.indices, pairs[:, 0].astype(topology.indices.dtype)])
    rows = np.concatenate([rows, pairs[:, 1]])
    order = np.lexsort((sources, rows))
    counts = np.bincount(rows, minlength=topology.num_vertices)
    return Topology(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sources[order])


def with_edges(topology: Topology, kept: NDArray[np.bool_]) -> Topology:
    """Return the topology with only the marked edges [E]; the topology itself if all are marked."""
    if kept.all():
        return topology
    removed = np.zeros(topology.num_edges + 1, np.int64)
    np.cumsum(~kept, out=removed[1:])
    of_edges = {
        field.name: value[kept]
        for field in fields(topology)
        if field.name != "indptr" and (value := getattr(topology, field.name)) is not None
    }
    return replace(topology, indptr=topology.indptr - removed[topology.indptr], **of_edges)
