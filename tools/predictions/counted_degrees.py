"""Degree distribution and degree mixing of a graph, from which expected mini-batch sizes follow."""

from __future__ import annotations

from typing import Any

import numpy as np
from counted_overlap import neighbor_overlap
from hyrt_perfmodel.degrees import DegreeClasses, DegreeDistribution, DegreeMixing
from numpy.typing import NDArray

from hyrt.graph.graph import Graph

Array = NDArray[Any]

_PIECE_EDGES = 1 << 22
# Numbers of edge groups: by degree, by the probability that neighbours sample, and by the number of possible
# targets among neighbours.
_LEVELS = 12
_PICK_LEVELS = 5
_MAX_TARGETS = 3
_USUAL_FANOUT = 10
_REVERSES = 2048


def degree_distribution(
    graph: Graph, targets: Array | None = None, *, structure: bool = True
) -> DegreeDistribution:
    """Count the degrees of a graph.

    Self-loops count as incoming edges, which may be sampled, but not as outgoing edges, because they reach no
    new vertex.

    Parameters
    ----------
    graph
        Graph, whose topology may be memory-mapped.
    targets
        Possible targets, [n]; by default the split `train`, or all vertices if it is empty.
    structure
        Whether to count also which degrees are neighbours (three passes over the edges instead of one) and,
        in symmetric graphs, how much the neighbourhoods of neighbours overlap (for a few thousand random
        vertices with a fixed seed).

    Returns
    -------
    The distribution, whose `source` is `counted`.
    """
    if targets is None and "train" in graph.masks:
        targets = graph.split("train")
    if targets is not None and len(targets) == 0:
        targets = None
    ins = np.diff(graph.topology.indptr)
    outs, loops = _out_degrees(graph)
    reciprocity = _reciprocity(graph)
    if not structure or graph.num_edges == 0:
        return DegreeDistribution.from_classes(
            DegreeClasses.from_degrees(ins, outs), targets=targets, reciprocity=reciprocity
        )
    kinds = _kinds(graph, ins, outs, targets)
    classes = DegreeClasses.from_degrees(ins, outs, kinds=kinds)
    symmetric = reciprocity == 1 and bool(np.array_equal(ins - loops, outs))
    return DegreeDistribution.from_classes(
        classes,
        targets=targets,
        reciprocity=reciprocity,
        mixing=_mixing(graph, classes, kinds, targets),
        overlap=neighbor_overlap(graph, targets) if symmetric else None,
    )


def _out_degrees(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of out-edges without self-loops and of self-loops of each vertex: [V] each."""
    every = np.arange(graph.num_vertices)
    outs = np.zeros(graph.num_vertices, np.int64)
    loops = np.zeros(graph.num_vertices, np.int64)
    for piece in _pieces(graph):
        sources = graph.topology.indices[piece]
        outs += np.bincount(sources, minlength=graph.num_vertices)
        self_loops = sources[sources == _destinations(graph, piece, every)]
        loops += np.bincount(self_loops, minlength=graph.num_vertices)
    return outs - loops, loops


def _reciprocity(graph: Graph) -> float:
    """Return the fraction of edges whose reverse is also an edge, based on a sample from the whole graph."""
    if graph.num_edges == 0:
        return 1.0
    both = other = 0
    for edge in np.unique(np.linspace(0, graph.num_edges - 1, _REVERSES).astype(np.int64)).tolist():
        v = int(np.searchsorted(graph.topology.indptr, edge, side="right")) - 1
        u = int(graph.topology.indices[edge])
        if u == v:
            continue
        row = graph.topology.indices[graph.topology.indptr[u] : graph.topology.indptr[u + 1]]
        place = int(np.searchsorted(row, v))
        both += place < len(row) and int(row[place]) == v
        other += 1
    return both / other if other else 1.0


def _pieces(graph: Graph) -> list[slice]:
    starts = range(0, graph.num_edges, _PIECE_EDGES)
    return [slice(start, min(start + _PIECE_EDGES, graph.num_edges)) for start in starts]


def _destinations(graph: Graph, piece: slice, values: Array) -> Array:
    """Return the elements of `values` [V] at the destinations of a piece's edges."""
    first = int(np.searchsorted(graph.topology.indptr, piece.start, side="right")) - 1
    last = int(np.searchsorted(graph.topology.indptr, piece.stop, side="left"))
    ends = np.clip(graph.topology.indptr[first : last + 1], piece.start, piece.stop)
    return np.repeat(values[first:last], np.diff(ends))


def _kinds(graph: Graph, ins: Array, outs: Array, targets: Array | None) -> NDArray[np.int64]:
    """Return class numbers [V] that distinguish vertices of equal degree by how these are reached.

    A class is a level of the probability that the neighbours of a vertex sample it with a fan-out of
    `_USUAL_FANOUT` (some vertices have only low-degree neighbours, which sample most of their edges), and the
    number of neighbours that may be targets, up to `_MAX_TARGETS`.
    """
    shares = np.minimum(_USUAL_FANOUT / np.maximum(ins, 1), 1.0)
    picked = _over_out_edges(graph, shares)
    by_targets = np.zeros(graph.num_vertices)
    if targets is not None:
        marked = np.zeros(graph.num_vertices)
        marked[targets] = 1.0
        by_targets = _over_out_edges(graph, marked)
    levels = _quantiles(picked / np.maximum(outs, 1), outs.astype(np.float64), _PICK_LEVELS)
    return levels * (_MAX_TARGETS + 1) + np.minimum(by_targets, _MAX_TARGETS).astype(np.int64)


def _over_out_edges(graph: Graph, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of `values` [V] over the destinations of each vertex's out-edges: [V]."""
    sums = np.zeros(graph.num_vertices)
    for piece in _pieces(graph):
        sums += np.bincount(
            graph.topology.indices[piece], _destinations(graph, piece, values), graph.num_vertices
        )
    return sums


def _mixing(graph: Graph, classes: DegreeClasses, kinds: Array, targets: Array | None) -> DegreeMixing:
    """Return the distribution of edges between groups, which have about equal numbers of edges."""
    groups = _groups(classes, kinds)
    size = int(groups.max()) + 1
    of_vertex = groups[classes.class_of_vertex]
    # Put targets in the upper half of the groups, and other vertices in the lower half.
    marked = of_vertex.copy()
    if targets is not None:
        marked[targets] += size
    every = np.arange(graph.num_vertices)
    table = np.zeros(2 * size * size, np.int64)
    for piece in _pieces(graph):
        sources = graph.topology.indices[piece]
        pairs = of_vertex[sources] * (2 * size) + _destinations(graph, piece, marked)
        table += np.bincount(pairs[sources != _destinations(graph, piece, every)], minlength=len(table))
    others, theirs = np.split(table.reshape(size, 2 * size).astype(np.float64), 2, axis=1)
    totals = (others + theirs).sum(1, keepdims=True)
    # The row of a group without out-edges is not used, but must be a distribution.
    shares = np.where(totals > 0, (others + theirs) / np.maximum(totals, 1), 1.0 / size)
    part = None if targets is None else theirs / np.maximum(totals, 1)
    return DegreeMixing(groups=groups, shares=shares, target_shares=part)


def _groups(classes: DegreeClasses, kinds: Array) -> NDArray[np.int64]:
    """Return the group of each class [C], by kind and by quantiles of edges over in- and out-degrees."""
    counts = classes.sums()
    ins, outs = classes.sums(classes.in_degrees) / counts, classes.sums(classes.out_degrees) / counts
    kind = (classes.sums(kinds) / counts).round().astype(np.int64)
    if np.array_equal(ins, outs):
        return _renumber(kind * _LEVELS + _quantiles(ins, counts * ins, _LEVELS))
    levels_per_axis = int(_LEVELS**0.5)
    degree = _quantiles(ins, counts * ins, levels_per_axis) * levels_per_axis + _quantiles(
        outs, counts * outs, levels_per_axis
    )
    return _renumber(kind * levels_per_axis**2 + degree)


def _quantiles(values: NDArray[np.float64], weights: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Return numbers 0..parts-1 by rank, each with about equal weight. Equal values have equal numbers."""
    levels, of_value = np.unique(values.round(6), return_inverse=True)
    inside = np.bincount(of_value.reshape(-1), weights, len(levels))
    middle = np.cumsum(inside) - inside / 2
    numbers = np.minimum(middle / max(float(weights.sum()), 1.0) * parts, parts - 1).astype(np.int64)
    ranks: NDArray[np.int64] = numbers[of_value.reshape(-1)]
    return ranks


def _renumber(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
