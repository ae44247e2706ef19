"""Graphs to sample, and blocks read back as plain Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.sampling.block import Block

Rows = Sequence[Sequence[int]]


def graph_of(rows: Rows, ids: Any = np.int32) -> Graph:
    """The graph in which vertex v has the in-neighbours rows[v]."""
    num = len(rows)
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
    indices = np.array([u for row in rows for u in sorted(row)], dtype=ids)
    everywhere = np.ones(num, np.bool_)
    return Graph.from_arrays(
        name="small",
        indptr=indptr,
        indices=indices,
        features=DenseFeatures(np.zeros((num, 1), np.float32)),
        labels=np.arange(num) % 3,
        masks=dict.fromkeys(("train", "val", "test"), everywhere),
    )


def random_graph(num: int, mean_degree: float, seed: int, ids: Any = np.int32) -> Graph:
    """A directed graph of skewed in-degrees, with isolated vertices and self loops."""
    rng = np.random.default_rng(seed)
    degrees = np.minimum(rng.geometric(1 / mean_degree, num) - 1, num)
    return graph_of([rng.choice(num, degree, replace=False) for degree in degrees], ids)


@st.composite
def graphs(draw: st.DrawFn, max_vertices: int = 130) -> Graph:
    """Directed simple graphs: any density, self loops and isolated vertices among them."""
    num = draw(st.integers(1, max_vertices))
    density = draw(st.sampled_from([0.0, 0.02, 0.2, 0.9, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    edges = rng.random((num, num)) < density
    edges[rng.random(num) < 0.1] = False
    ids = draw(st.sampled_from([np.int32, np.int64]))
    return graph_of([np.flatnonzero(row) for row in edges], ids)


def row(graph: Graph, vertex: int) -> list[int]:
    """In-neighbours of a vertex."""
    return [
        int(u)
        for u in graph.topology.indices[graph.topology.indptr[vertex] : graph.topology.indptr[vertex + 1]]
    ]


def sampled_rows(block: Block) -> list[list[int]]:
    """Sampled neighbours of each destination, as vertices of the graph."""
    vertices = block.columns if block.sources is None else block.sources[block.columns]
    return [[int(u) for u in vertices[block.indptr[i] : block.indptr[i + 1]]] for i in range(block.num_dst)]


def arrays_of(block: Block) -> dict[str, Any]:
    names = ("indptr", "columns", "destinations", "sources", "degrees", "source_degrees", "weights")
    return {name: getattr(block, name) for name in names if getattr(block, name) is not None}


def assert_equal_blocks(a: Block, b: Block) -> None:
    first, second = arrays_of(a), arrays_of(b)
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert array.dtype == second[name].dtype, name
        np.testing.assert_array_equal(array, second[name], err_msg=name)
    assert (a.num_src, a.layer, a.step, a.seed) == (b.num_src, b.layer, b.step, b.seed)


def memory_ranges(blocks: Sequence[Block], skip: Sequence[Any] = ()) -> list[tuple[int, int]]:
    """[start, end) addresses of the blocks' arrays that are not part of `skip`."""
    ranges = set()
    for block in blocks:
        for array in arrays_of(block).values():
            if array.nbytes and not any(np.shares_memory(array, other) for other in skip):
                ranges.add((array.ctypes.data, array.ctypes.data + array.nbytes))
    return sorted(ranges)
