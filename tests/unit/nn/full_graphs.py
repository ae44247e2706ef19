"""Topologies that operators over whole graphs are tested on, and their dense form."""

from __future__ import annotations

import numpy as np

from hyrt.graph.topology import Topology

KINDS = ("symmetric", "directed", "empty rows", "one hub", "multi-edges")


def topology(kind: str, vertices: int = 40, *, wide: bool = False) -> Topology:
    """One with self loops, and in all but the first kind vertices without edges."""
    rng = np.random.default_rng(len(kind))
    counts = (rng.random((vertices, vertices)) < 0.15).astype(np.int64)
    if kind != "symmetric":
        counts[[3, vertices - 1]] = 0
    if kind == "symmetric":
        counts |= counts.T
    elif kind == "empty rows":
        counts[rng.random(vertices) < 0.7] = 0
    elif kind == "one hub":
        counts[:, 5] = counts[5] = 1
    elif kind == "multi-edges":
        counts *= rng.integers(1, 4, counts.shape)
        counts += counts.T
    indptr = np.concatenate([[0], np.cumsum(counts.sum(1))])
    columns = np.repeat(np.tile(np.arange(vertices), vertices), counts.ravel())
    return Topology(indptr, columns.astype(np.int64 if wide else np.int32))


def long_rows(vertices: int = 40) -> Topology:
    """One with rows of so many edges that several threads share each of them, among short ones."""
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 9, vertices)
    degrees[::7] = rng.integers(66_000, 90_000, len(degrees[::7]))
    columns = [np.sort(rng.integers(0, vertices, degree)) for degree in degrees]
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    return Topology(indptr, np.concatenate(columns).astype(np.int32))


def dense(of: Topology, weights: np.ndarray | None = None) -> np.ndarray:
    """[V, V] float64: entry (i, c) adds up the weights of the edges from c into i, ones by default."""
    out = np.zeros((of.num_vertices, of.num_vertices))
    rows = np.repeat(np.arange(of.num_vertices), np.diff(of.indptr))
    np.add.at(out, (rows, of.indices), 1.0 if weights is None else weights)
    return out
