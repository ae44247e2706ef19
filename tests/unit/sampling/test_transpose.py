from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import random_graph

from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.neighbor_sampler import NeighborSampler


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Bipartite graphs with repeated edges, empty rows and sources that nothing reads."""
    num_dst = draw(st.integers(0, 12))
    num_src = num_dst + draw(st.integers(0, 12))
    rows = draw(
        st.lists(
            st.lists(st.integers(0, max(0, num_src - 1)), max_size=9), min_size=num_dst, max_size=num_dst
        )
    )
    indptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int32)
    sources = np.arange(num_src, dtype=np.int32)
    return Block(
        indptr=indptr,
        columns=np.array([j for row in rows for j in row], np.int32),
        destinations=sources[:num_dst],
        sources=sources,
        num_src=num_src,
        degrees=np.diff(indptr).astype(np.int32),
        source_degrees=np.zeros(num_src, np.int32),
        layer=1,
    )


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_transpose_equals_scipy(block: Block) -> None:
    turned = block.transposed()
    # Edges numbered from 1: scipy drops no explicit value, and the numbers travel with the edges.
    numbers = np.arange(1, block.num_edges + 1)
    matrix = scipy.sparse.csr_array(
        (numbers, block.columns, block.indptr), shape=(block.num_dst, block.num_src)
    ).tocsc()
    np.testing.assert_array_equal(turned.indptr, matrix.indptr)
    np.testing.assert_array_equal(turned.rows, matrix.indices)
    np.testing.assert_array_equal(turned.edges, matrix.data - 1)
    assert {turned.indptr.dtype, turned.rows.dtype, turned.edges.dtype} == {np.dtype(np.int32)}


def test_transpose_is_built_once_and_refused_in_place() -> None:
    graph = random_graph(50, 4, seed=0)
    sampler = NeighborSampler(graph, np.arange(50), [3], batch_size=20, seed=0)
    workers = Workers(1, "test")
    block = sampler.sample(0, sampler.units(0), workers, in_place=False).blocks[0]
    assert block.transposed() is block.transposed()
    in_place = sampler.sample(0, sampler.units(0), workers, in_place=True).blocks[0]
    for read in (in_place.transposed, in_place.edge_index):
        with pytest.raises(ValueError, match="in place"):
            read()


def test_edge_index_lists_every_edge() -> None:
    graph = random_graph(60, 5, seed=1)
    sampler = NeighborSampler(graph, np.arange(60), [4, 3], batch_size=10, seed=0)
    for block in sampler.sample(1, sampler.units(1), Workers(1, "test"), in_place=False).blocks:
        pairs = [(int(s), int(d)) for s, d in block.edge_index().T]
        expected = [
            (int(block.columns[e]), i)
            for i in range(block.num_dst)
            for e in range(block.indptr[i], block.indptr[i + 1])
        ]
        assert pairs == expected
