"""Overlap of the neighbourhoods of neighbours, estimated from a few thousand two-edge paths."""

from __future__ import annotations

from typing import Any

import numpy as np
from hyrt_perfmodel.degrees import NeighborOverlap, OverlapSample
from numpy.typing import NDArray

from hyrt.graph.graph import Graph

Array = NDArray[Any]

_PATHS = 3072


def neighbor_overlap(graph: Graph, targets: Array | None) -> NeighborOverlap:
    """Sample two-edge paths, and count other connections between their ends.

    Parameters
    ----------
    graph
        Symmetric graph with at least one edge and sorted rows, which may be memory-mapped.
    targets
        Possible targets, [n]; None means all vertices.

    Returns
    -------
    The overlap, which is deterministic because the random seed is fixed.
    """
    rng = np.random.default_rng(0)
    eligible = np.ones(graph.num_vertices, np.bool_)
    if targets is not None:
        eligible[:] = False
        eligible[targets] = True
    chosen = np.arange(graph.num_vertices) if targets is None else targets
    near = chosen[rng.integers(0, len(chosen), _PATHS)]
    second_neighbors = graph.topology.indices[rng.integers(0, graph.num_edges, _PATHS)]
    return NeighborOverlap(
        near=_sample(graph, near, eligible, rng), far=_sample(graph, second_neighbors, None, rng)
    )


def _sample(
    graph: Graph, firsts: Array, eligible: NDArray[np.bool_] | None, rng: np.random.Generator
) -> OverlapSample:
    """Sample a path to each of `firsts`, if there is one, and count the connections of its ends."""
    paths = []
    for z, x, y in zip(firsts.tolist(), rng.random(len(firsts)), rng.random(len(firsts)), strict=True):
        around = _around(graph, z)
        if len(around) == 0:
            continue
        w = int(around[int(x * len(around))])
        onward = _around(graph, w)
        onward = onward[onward != z]
        # Let a dead end be its own end: it then contributes nothing and has no weight.
        paths.append((z, w, int(onward[int(y * len(onward))]) if len(onward) else w))
    starts, middles, ends = np.array(paths, np.int64).reshape(-1, 3).T
    degrees = np.diff(graph.topology.indptr)
    pairs = [_common_neighbors(graph, *path) for path in paths]
    # As a baseline, pair each path with the end of the path that is half a list away.
    chance = [
        _common_neighbors(graph, a, -1, b)
        for a, b in zip(starts.tolist(), np.roll(ends, len(ends) // 2).tolist(), strict=True)
    ]
    return OverlapSample(
        first_degrees=degrees[starts].astype(np.float64),
        second_degrees=degrees[middles].astype(np.float64),
        others=np.array([count for count, *_ in pairs], np.float64),
        other_degrees=np.array([degree for _, degree, _ in pairs], np.float64),
        direct=np.array([direct for *_, direct in pairs], np.bool_),
        chance_others=np.array([count for count, *_ in chance], np.float64),
        chance_degrees=np.array([degree for _, degree, _ in chance], np.float64),
        # Whether targets are reached directly is known for every vertex.
        chance_direct=np.array([direct and eligible is None for *_, direct in chance], np.bool_),
        eligible=np.array(
            [
                0 if eligible is None else np.count_nonzero(eligible[_around(graph, end)])
                for end in ends.tolist()
            ],
            np.float64,
        ),
    )


def _around(graph: Graph, vertex: int) -> Array:
    """Return the neighbours of a vertex without the vertex itself."""
    row = graph.topology.indices[graph.topology.indptr[vertex] : graph.topology.indptr[vertex + 1]]
    others: Array = row[row != vertex]
    return others


def _common_neighbors(graph: Graph, z: int, without: int, u: int) -> tuple[int, float, bool]:
    """Return the number and harmonic mean degree of z and u's common neighbours except `without`, and whether
    z and u are neighbours.
    """
    around, around_u = _around(graph, z), _around(graph, u)
    shorter, longer = (around, around_u) if len(around) < len(around_u) else (around_u, around)
    shared = shorter[_among(longer, shorter)]
    shared = shared[shared != without].astype(np.int64)
    degree = 1.0
    if len(shared):
        degree = len(shared) / float(
            (1.0 / (graph.topology.indptr[shared + 1] - graph.topology.indptr[shared])).sum()
        )
    return len(shared), degree, bool(_among(around, np.array([u]))[0])


def _among(row: Array, vertices: Array) -> NDArray[np.bool_]:
    """Return whether each vertex is in a sorted row."""
    if len(row) == 0:
        return np.zeros(len(vertices), np.bool_)
    is_member: NDArray[np.bool_] = row[np.minimum(np.searchsorted(row, vertices), len(row) - 1)] == vertices
    return is_member
