"""A graph's degrees and which of them are neighbours, for the expected sizes of mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from counted_overlap import neighbor_overlap
from hyrt_perfmodel.sizes.degree_classes import DegreeClasses
from hyrt_perfmodel.sizes.degrees import DegreeDistribution, DegreeMixing
from numpy.typing import NDArray

from hyrt.graph.graph import Graph

Array = NDArray[Any]

_PIECE_EDGES = 1 << 22
# How finely groups of edges are told apart: by degree, by how readily neighbours pick, by neighbours that may
# be targets.
_LEVELS = 12
_PICK_LEVELS = 5
_MANY = 3
_USUAL_FANOUT = 10
_REVERSES = 2048


def degree_distribution(
    graph: Graph, targets: Array | None = None, *, structure: bool = True
) -> DegreeDistribution:
    """Count the degrees of a graph.

    Self loops count as incoming edges, which may be sampled, but not as outgoing ones: they reach nothing
    new.

    Parameters
    ----------
    graph
        Topology; may be memory-mapped.
    targets
        [n] vertices that may be targets; None for those of the split `train`, or for all where it is empty.
    structure
        Count also which degrees are neighbours (three passes over the edges instead of one) and, in symmetric
        graphs, how far the neighbourhoods of neighbours overlap (around a few thousand vertices, drawn with a
        fixed seed).

    Returns
    -------
    The distribution; its `source` is `counted`.
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
            DegreeClasses.of(ins, outs), targets=targets, reciprocity=reciprocity
        )
    kinds = _kinds(graph, ins, outs, targets)
    classes = DegreeClasses.of(ins, outs, kinds=kinds)
    symmetric = reciprocity == 1 and bool(np.array_equal(ins - loops, outs))
    return DegreeDistribution.from_classes(
        classes,
        targets=targets,
        reciprocity=reciprocity,
        mixing=_mixing(graph, classes, kinds, targets),
        overlap=neighbor_overlap(graph, targets) if symmetric else None,
    )


def _out_degrees(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[V] outgoing edges but self loops, and self loops of each vertex."""
    every = np.arange(graph.num_vertices)
    outs = np.zeros(graph.num_vertices, np.int64)
    loops = np.zeros(graph.num_vertices, np.int64)
    for piece in _pieces(graph):
        sources = graph.topology.indices[piece]
        outs += np.bincount(sources, minlength=graph.num_vertices)
        own = sources[sources == _destinations(graph, piece, every)]
        loops += np.bincount(own, minlength=graph.num_vertices)
    return outs - loops, loops


def _reciprocity(graph: Graph) -> float:
    """Share of the edges whose reverse is an edge too, of a few spread over the graph."""
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
    """`values` ([V]) of the vertices that the edges of a piece enter."""
    first = int(np.searchsorted(graph.topology.indptr, piece.start, side="right")) - 1
    last = int(np.searchsorted(graph.topology.indptr, piece.stop, side="left"))
    ends = np.clip(graph.topology.indptr[first : last + 1], piece.start, piece.stop)
    return np.repeat(values[first:last], np.diff(ends))


def _kinds(graph: Graph, ins: Array, outs: Array, targets: Array | None) -> NDArray[np.int64]:
    """[V] numbers that tell vertices of equal degree apart: by how they are reached.

    They are levels of how readily a vertex's neighbours pick it with a fan-out of `_USUAL_FANOUT` (some have
    only neighbours of few edges, who pick most of them), and how many of the neighbours may be targets, up to
    `_MANY`.
    """
    shares = np.minimum(_USUAL_FANOUT / np.maximum(ins, 1), 1.0)
    picked = _over_out_edges(graph, shares)
    by_targets = np.zeros(graph.num_vertices)
    if targets is not None:
        marked = np.zeros(graph.num_vertices)
        marked[targets] = 1.0
        by_targets = _over_out_edges(graph, marked)
    levels = _quantiles(picked / np.maximum(outs, 1), outs.astype(np.float64), _PICK_LEVELS)
    return levels * (_MANY + 1) + np.minimum(by_targets, _MANY).astype(np.int64)


def _over_out_edges(graph: Graph, values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[V] sums of `values` ([V]) over the vertices that the outgoing edges of each enter."""
    sums = np.zeros(graph.num_vertices)
    for piece in _pieces(graph):
        sums += np.bincount(
            graph.topology.indices[piece], _destinations(graph, piece, values), graph.num_vertices
        )
    return sums


def _mixing(graph: Graph, classes: DegreeClasses, kinds: Array, targets: Array | None) -> DegreeMixing:
    """Edges between groups that have about equally many edges each."""
    groups = _groups(classes, kinds)
    size = int(groups.max()) + 1
    of_vertex = groups[classes.of_vertex]
    # Targets in the upper half, others in the lower.
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
    # A group without outgoing edges has no use for its row, which is to be a distribution all the same.
    shares = np.where(totals > 0, (others + theirs) / np.maximum(totals, 1), 1.0 / size)
    part = None if targets is None else theirs / np.maximum(totals, 1)
    return DegreeMixing(groups=groups, shares=shares, target_shares=part)


def _groups(classes: DegreeClasses, kinds: Array) -> NDArray[np.int64]:
    """[C] the group of each class, by kind and by quantiles of the edges over in- and out-degrees."""
    counts = classes.sums()
    ins, outs = classes.sums(classes.in_degrees) / counts, classes.sums(classes.out_degrees) / counts
    kind = (classes.sums(kinds) / counts).round().astype(np.int64)
    if np.array_equal(ins, outs):
        return _numbered(kind * _LEVELS + _quantiles(ins, counts * ins, _LEVELS))
    each = int(_LEVELS**0.5)
    degree = _quantiles(ins, counts * ins, each) * each + _quantiles(outs, counts * outs, each)
    return _numbered(kind * each**2 + degree)


def _quantiles(values: NDArray[np.float64], weights: NDArray[np.float64], parts: int) -> NDArray[np.int64]:
    """Numbers 0..parts-1 by rank, about equally much weight each; equal values share a number."""
    levels, of_value = np.unique(values.round(6), return_inverse=True)
    inside = np.bincount(of_value.reshape(-1), weights, len(levels))
    middle = np.cumsum(inside) - inside / 2
    found = np.minimum(middle / max(float(weights.sum()), 1.0) * parts, parts - 1).astype(np.int64)
    ranks: NDArray[np.int64] = found[of_value.reshape(-1)]
    return ranks


def _numbered(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
