"""Edge lookup by vertex pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.graph.links.edge_kernels import find_edges, find_typed_edges
from hyrt.graph.topology import Topology

Pairs = NDArray[np.int64]
"""[n, 2] int64, a source and a destination in each row."""


def edges_of_pairs(
    topology: Topology, pairs: NDArray[Any], relation: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Find the edges of vertex pairs.

    Parameters
    ----------
    topology
        The edges, sorted within a row; those of a typed graph by relation first.
    pairs
        [n, 2] integers, sources and destinations.
    relation
        The relation of a typed graph whose edges are meant; None where rows are not sorted by relations.

    Returns
    -------
    [n] int64, the position of the first edge of each pair, and [n] int32, how many edges it has.
    """
    firsts, counts = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int32)
    asked = np.ascontiguousarray(pairs, np.int64)
    if relation is None:
        find_edges(topology.indptr, topology.indices, asked, firsts, counts)
    else:
        edges = (topology.indptr, topology.indices, topology.edge_types)
        find_typed_edges(*edges, asked, relation, firsts, counts)
    return firsts, counts


def are_edges(topology: Topology, pairs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] whether each of [n, 2] pairs is an edge."""
    known: NDArray[np.bool_] = edges_of_pairs(topology, pairs)[1] > 0
    return known


def edges_joining(topology: Topology, joined: Iterable[tuple[NDArray[Any], int | None]]) -> NDArray[np.bool_]:
    """Mark the edges of pairs, [E], equal edges of a pair included.

    Parameters
    ----------
    topology
        The edges, as `edges_of_pairs` takes them.
    joined
        Pairs [n, 2] with a relation each, or None.
    """
    marked = np.zeros(topology.num_edges, np.bool_)
    for pairs, relation in joined:
        firsts, counts = edges_of_pairs(topology, pairs, relation)
        while (counts > 0).any():
            marked[firsts[counts > 0]] = True
            firsts, counts = firsts + 1, counts - 1
    return marked


def pair_codes(topology: Topology, pairs: NDArray[Any], *, undirected: bool = False) -> NDArray[np.int64]:
    """Return one number for each of [n, 2] pairs, the same for a pair and its reverse if `undirected`."""
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    if undirected:
        ends = np.sort(ends, axis=1)
    codes: NDArray[np.int64] = ends[:, 0] * topology.num_vertices + ends[:, 1]
    return codes
