"""Edge lookup, link removal and edge times of a topology."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DataError
from hyrt.graph.kernels import find_edges, find_relation_edges
from hyrt.graph.topology import Topology

Pairs = NDArray[np.int64]
"""[n, 2] int64, sources and destinations."""


def find_edges_of_pairs(
    topology: Topology, pairs: NDArray[Any], relation: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the first edge position [n] int64 and the number of edges [n] int32 of pairs [n, 2].

    Rows must be sorted, in a heterogeneous graph by relation first; `relation` is then the relation to
    search.
    """
    firsts, counts = np.empty(len(pairs), np.int64), np.empty(len(pairs), np.int32)
    queries = np.ascontiguousarray(pairs, np.int64)
    if relation is None:
        find_edges(topology.indptr, topology.indices, queries, firsts, counts)
    else:
        edges = (topology.indptr, topology.indices, topology.edge_types)
        find_relation_edges(*edges, queries, relation, firsts, counts)
    return firsts, counts


def mark_edge_pairs(topology: Topology, pairs: NDArray[Any]) -> NDArray[np.bool_]:
    """Return [n] whether each of [n, 2] pairs is an edge."""
    known: NDArray[np.bool_] = find_edges_of_pairs(topology, pairs)[1] > 0
    return known


def mark_edges(topology: Topology, joined: Iterable[tuple[NDArray[Any], int | None]]) -> NDArray[np.bool_]:
    """Mark all edges [E] of pairs [n, 2], duplicates included; `joined` has pairs with a relation or None."""
    marked = np.zeros(topology.num_edges, np.bool_)
    for pairs, relation in joined:
        firsts, counts = find_edges_of_pairs(topology, pairs, relation)
        while (counts > 0).any():
            marked[firsts[counts > 0]] = True
            firsts, counts = firsts + 1, counts - 1
    return marked


def encode_pairs(topology: Topology, pairs: NDArray[Any], *, undirected: bool = False) -> NDArray[np.int64]:
    """Return one number per pair [n, 2]; if `undirected`, a pair and its reverse have the same number."""
    ends = np.asarray(pairs, np.int64).reshape(-1, 2)
    if undirected:
        ends = np.sort(ends, axis=1)
    codes: NDArray[np.int64] = ends[:, 0] * topology.num_vertices + ends[:, 1]
    return codes


# Number of edges that are processed at once, which bounds the temporary memory.
_EDGES_AT_ONCE = 1 << 24


def list_links(topology: Topology) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the links of a topology [M, 2], in edge order, and the first edge position of each [M] int64.

    Links are edges without self loops and duplicates. In a symmetric topology, an edge and its reverse are
    one link, whose source is the smaller vertex. Links are int32 if vertex ids fit.
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
        is_link = sources < ends if symmetric else sources != ends
        if len(sources) > 1:
            is_link[1:] &= (sources[1:] != sources[:-1]) | (ends[1:] != ends[:-1])
        at = np.flatnonzero(is_link)
        found.append(np.stack([sources[at].astype(ids), ends[at]], axis=1))
        places.append(at + indptr[start])
        start = stop
    if not found:
        return np.empty((0, 2), ids), np.empty(0, np.int64)
    return np.concatenate(found), np.concatenate(places)


def remove_links(topology: Topology, *links: NDArray[Any]) -> Topology:
    """Remove the edges of links [n, 2] and their reverse edges from a sorted topology; pairs without edges
    are ignored.
    """
    both = [(pairs, None) for each in links for pairs in (each, each[:, ::-1])]
    return select_edges(topology, ~mark_edges(topology, both))


def add_links(topology: Topology, *links: NDArray[Any]) -> Topology:
    """Return the topology, without types or values, with additional edges for links [n, 2] that are not edges
    yet.

    A symmetric topology also gets their reverse edges, so it stays symmetric.
    """
    pairs = np.concatenate([np.empty((0, 2), np.int64), *(np.asarray(each, np.int64) for each in links)])
    if topology.is_symmetric:
        pairs = np.concatenate([pairs, pairs[:, ::-1]])
    pairs = pairs[~mark_edge_pairs(topology, pairs)]
    if not len(pairs):
        return topology
    pairs = np.unique(pairs, axis=0)
    rows = np.repeat(np.arange(topology.num_vertices), np.diff(topology.indptr))
    sources = np.concatenate([topology.indices, pairs[:, 0].astype(topology.indices.dtype)])
    rows = np.concatenate([rows, pairs[:, 1]])
    order = np.lexsort((sources, rows))
    counts = np.bincount(rows, minlength=topology.num_vertices)
    return Topology(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), sources[order])


def select_edges(topology: Topology, mask: NDArray[np.bool_]) -> Topology:
    """Return the topology with only the marked edges [E]; the topology itself if all are marked."""
    if mask.all():
        return topology
    removed = np.zeros(topology.num_edges + 1, np.int64)
    np.cumsum(~mask, out=removed[1:])
    of_edges = {
        field.name: value[mask]
        for field in fields(topology)
        if field.name != "indptr" and (value := getattr(topology, field.name)) is not None
    }
    return replace(topology, indptr=topology.indptr - removed[topology.indptr], **of_edges)


TIME_NAMES = ("edge_time", "time", "timestamp")
"""Names of edge times in PyG and DGL graphs."""


class TimedEdges(NamedTuple):
    """Edges with times, in any order, possibly with duplicates."""

    pairs: NDArray[Any]
    """[n, 2] sources and destinations, numbered across all types."""
    times: NDArray[Any]
    """[n] int64 or float64."""
    relation: int | None = None
    """Relation of the edges in a heterogeneous graph; None if the topology's rows are not sorted by relation.
    """


def unknown_time(dtype: np.dtype[Any]) -> Any:
    """Return the marker of an unknown time: NaN, or the smallest integer."""
    return np.nan if dtype.kind == "f" else np.iinfo(dtype).min


def is_known_time(times: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each time is known."""
    known: NDArray[np.bool_] = (
        ~np.isnan(times) if times.dtype.kind == "f" else times != unknown_time(times.dtype)
    )
    return known


def order_edge_times(
    topology: Topology, edges: Iterable[TimedEdges], dtype: np.dtype[Any], file: Path | None = None
) -> NDArray[Any]:
    """Return each edge's time [E] of `dtype` (int64 or float64): the earliest time of its pair, or unknown.

    Pairs that are not edges are ignored. The result is mapped to `file`, or in memory if it is None.
    """
    latest = np.inf if dtype.kind == "f" else np.iinfo(dtype).max
    shape = (topology.num_edges,)
    times = np.empty(shape, dtype)
    if file is not None:
        times = np.lib.format.open_memmap(file, "w+", dtype, shape)
    times[:] = latest
    for pairs, values, relation in edges:
        firsts, counts = find_edges_of_pairs(topology, pairs, relation)
        places, left = firsts, np.where(is_known_time(values), counts, 0)
        for _ in range(int(counts.max(initial=0))):
            np.minimum.at(times, places[left > 0], values[left > 0].astype(dtype))
            places, left = places + 1, left - 1
    times[times == latest] = unknown_time(dtype)
    return times


def convert_times(values: NDArray[Any], num_edges: int, location: str, remedy: str) -> NDArray[Any]:
    """Convert edge times [e] or [e, 1] of PyG and DGL graphs to int64 or float64 [e].

    Raises DataError with `location` and `remedy` (how to leave the times out) unless there is one number per
    edge.
    """
    flat = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    if flat.shape != (num_edges,) or values.dtype.kind not in "iuf":
        raise DataError(
            f"{location} is {values.dtype.name} of shape {list(values.shape)}, expected one time for each "
            f"of {num_edges:,} edges: to train without times, run {remedy}"
        )
    times: NDArray[Any] = flat.astype(np.float64 if values.dtype.kind == "f" else np.int64)
    wrong = ~is_known_time(times)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(
            f"{location}: value {flat[at]} at position {at} is not a time: use a number, or to train "
            f"without times, run {remedy}"
        )
    return times
