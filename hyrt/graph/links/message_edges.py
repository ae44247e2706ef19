"""The links of a topology, and the topology without some of them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.known_edges import edges_of_pairs
from hyrt.graph.topology import Topology

# Edges whose ends are looked at together: it bounds the memory beside the result.
_EDGES_AT_ONCE = 1 << 24


def links_of(topology: Topology) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The links of a topology: its edges without loops, each pair once.

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
    """The topology without the edges of links; in a symmetric one, without their reverse edges, too.

    Parameters
    ----------
    topology
        The edges, sorted within a row.
    links
        [n, 2] sources and destinations; those that are no edges change nothing.
    """
    kept = np.ones(topology.num_edges, np.bool_)
    for each in links:
        for pairs in (each, each[:, ::-1]) if topology.is_symmetric else (each,):
            firsts, counts = edges_of_pairs(topology, pairs)
            while (counts > 0).any():
                kept[firsts[counts > 0]] = False
                firsts, counts = firsts + 1, counts - 1
    return with_edges(topology, kept)


def with_edges(topology: Topology, kept: NDArray[np.bool_]) -> Topology:
    """The topology with those of its edges that are marked, [E]; itself where all are."""
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
