"""Small graphs that tests build for themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures


def random_graph(
    vertices: int = 300,
    degree: float = 8.0,
    features: int = 12,
    classes: int = 3,
    seed: int = 0,
    *,
    sparse: bool = False,
    symmetric: bool = True,
) -> Graph:
    """A random graph with some isolated vertices and features that tell the class."""
    rng = np.random.default_rng(seed)
    adjacency = rng.random((vertices, vertices)) < degree / vertices
    if symmetric:
        adjacency |= adjacency.T
    np.fill_diagonal(adjacency, 0)
    lonely = rng.choice(vertices, max(1, vertices // 50), replace=False)
    adjacency[lonely] = 0
    adjacency[:, lonely] = 0
    indptr = np.concatenate([[0], np.cumsum(adjacency.sum(1))]).astype(np.int64)
    indices = np.nonzero(adjacency)[1].astype(np.int32)
    labels = rng.integers(0, classes, vertices).astype(np.int16)
    x = rng.standard_normal((vertices, features)).astype(np.float32)
    x += 2 * rng.standard_normal((classes, features)).astype(np.float32)[labels]
    store: DenseFeatures | SparseFeatures = DenseFeatures(x)
    if sparse:
        x[rng.random(x.shape) < 0.6] = 0
        rows, columns = np.nonzero(x)
        pointer = np.concatenate([[0], np.cumsum((x != 0).sum(1))]).astype(np.int64)
        store = SparseFeatures(pointer, columns.astype(np.int32), x[rows, columns], features)
    part = rng.integers(0, 4, vertices)
    masks = {"train": part < 2, "val": part == 2, "test": part == 3}
    return Graph.from_arrays("random", indptr, indices, store, labels, masks)


def with_values(graph: Graph, columns: int = 0, seed: int = 3) -> Graph:
    """The graph with weights of its edges, and so many columns of features."""
    rng = np.random.default_rng(seed)
    weights = rng.lognormal(0, 0.8, graph.num_edges).astype(np.float32)
    rows = rng.standard_normal((graph.num_edges, columns)).astype(np.float32) if columns else None
    return replace(graph, topology=replace(graph.topology, edge_weights=weights, edge_features=rows))


def dense_weights(graph: Graph) -> np.ndarray:
    """[V, V] float64, the weight of the edge u -> v at (v, u)."""
    topology, dense = graph.topology, np.zeros((graph.num_vertices, graph.num_vertices))
    rows = np.repeat(np.arange(len(dense)), np.diff(topology.indptr))
    np.add.at(dense, (rows, topology.indices), topology.edge_weights)
    return dense


def dense_features(graph: Graph) -> np.ndarray:
    """[V, F] float64."""
    store = graph.features
    if isinstance(store, DenseFeatures):
        return np.asarray(store.values, np.float64)
    out = np.zeros((graph.num_vertices, store.width))
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(store.indptr))
    out[rows, store.columns] = store.values
    return out


def adjacency(graph: Graph) -> np.ndarray:
    """[V, V] float64, entry (v, u) counts edges u -> v."""
    out = np.zeros((graph.num_vertices, graph.num_vertices))
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(graph.topology.indptr))
    np.add.at(out, (rows, graph.topology.indices), 1.0)
    return out
