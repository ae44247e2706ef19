"""Graphs with every awkward vertex, and blocks over them, for the tests of the layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler

ALONE = Workers(1, "test")
OF_EDGES = (
    "edge_types",
    "edge_weights",
    "edge_features",
    "run_weights",
    "weighted_degrees",
    "source_weighted_degrees",
)


def graph_from(adjacency: NDArray[np.bool_], features: NDArray[Any], classes: int = 3) -> Graph:
    """The graph with an edge u -> v where adjacency[v, u]."""
    num = len(adjacency)
    indptr = np.concatenate([[0], np.cumsum(adjacency.sum(1))]).astype(np.int64)
    labels = (np.arange(num) % classes).astype(np.int16)
    everywhere = np.ones(num, np.bool_)
    masks = {"train": everywhere, "val": everywhere, "test": everywhere}
    indices = np.nonzero(adjacency)[1].astype(np.int32)
    return Graph.from_arrays("case", indptr, indices, DenseFeatures(features), labels, masks)


@cache
def awkward_graph(vertices: int = 90, degree: float = 7.0, features: int = 10) -> Graph:
    """Directed, with self loops, vertices that nothing points to, that point to nothing, and one hub."""
    rng = np.random.default_rng(vertices)
    adjacency = rng.random((vertices, vertices)) < degree / vertices
    adjacency[5] = rng.random(vertices) < min(1.0, 60 / vertices)
    adjacency[np.arange(0, 20), np.arange(0, 20)] = True
    adjacency[[3, 11, 40]] = False
    adjacency[:, [11, 12]] = False
    x = rng.standard_normal((vertices, features)).astype(np.float32)
    x[rng.random(x.shape) < 0.4] = 0
    return graph_from(adjacency, x)


def values(graph: Graph) -> NDArray[Any]:
    """[V, f] features."""
    assert isinstance(graph.features, DenseFeatures)
    return graph.features.values


def sampled(
    graph: Graph,
    targets: Sequence[int],
    fanouts: Sequence[int],
    *,
    step: int = 0,
    seed: int = 7,
    in_place: bool = False,
) -> MiniBatch:
    """A mini-batch around the targets; its arrays are never recycled."""
    sampler = NeighborSampler(graph, graph.split("train"), fanouts, graph.num_vertices, seed)
    return sampler.sample(step, np.array(targets, sampler.ids), ALONE, in_place=in_place)


def sparse_of(dense: NDArray[np.float32]) -> SparseRows:
    """The same rows without their zeros."""
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(np.int32)
    rows, columns = np.nonzero(dense)
    return SparseRows(indptr, columns.astype(np.int32), dense[rows, columns], dense.shape[1])


def block_of(rows: Sequence[Sequence[int]], num_src: int, seed: int = 0, *, weighted: bool = False) -> Block:
    """A block whose destination i has the edges rows[i], repeated sources allowed; degrees as if sampled."""
    rng = np.random.default_rng(seed)
    counts = [len(row) for row in rows]
    num_dst, num_edges = len(rows), sum(counts)
    degrees = np.array(counts, np.int32) + rng.integers(0, 4, num_dst).astype(np.int32)
    rest = rng.integers(0, 9, num_src - num_dst).astype(np.int32)
    vertices = rng.permutation(4 * num_src)[:num_src].astype(np.int32)
    return Block(
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        columns=np.array([source for row in rows for source in row], np.int32),
        destinations=vertices[:num_dst],
        sources=vertices,
        num_src=num_src,
        degrees=degrees,
        source_degrees=np.concatenate([degrees, rest]),
        layer=1,
        weights=rng.uniform(0.2, 3, num_edges).astype(np.float32) if weighted else None,
    )


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Any block: isolated destinations, unused sources, repeated edges, self loops, nothing at all."""
    num_dst = draw(st.integers(0, 12))
    num_src = num_dst + draw(st.integers(0, 12))
    source = st.integers(0, max(0, num_src - 1))
    rows = [draw(st.lists(source, max_size=9)) for _ in range(num_dst)]
    return block_of(rows, num_src, draw(st.integers(0, 999)), weighted=draw(st.booleans()))


def tensor_block(block: Block) -> TensorBlock:
    """A relabelled block as a device that runs torch would have it."""

    def moved(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array))

    return TensorBlock(
        indptr=moved(block.indptr),
        columns=moved(block.columns),
        sources=moved(block.sources),
        num_dst=block.num_dst,
        degrees=moved(block.degrees),
        source_degrees=moved(block.source_degrees),
        layer=block.layer,
        step=block.step,
        seed=block.seed,
        weights=None if block.weights is None else moved(block.weights),
        **{name: moved(array) for name in OF_EDGES if (array := getattr(block, name)) is not None},
    )
