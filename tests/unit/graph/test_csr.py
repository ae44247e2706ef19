from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hyrt.errors import DataError
from hyrt.graph import csr
from hyrt.graph.csr import ArrayBuilder, build_csr, drop_edges


def _build(sources, targets, count, symmetric, bound, pieces, folder=None, loops=False):
    cuts = np.linspace(0, len(sources), pieces + 1).astype(int)
    store = ArrayBuilder(np.dtype(np.int32), folder and folder / "indices.npy")

    def stream():
        for a, b in itertools.pairwise(cuts):
            yield sources[a:b], targets[a:b]

    indptr = build_csr(
        stream,
        count,
        symmetric=symmetric,
        self_loops=loops,
        emit=store.append,
        source="test",
        range_entries=bound,
        threads=2,
    )
    return indptr, store.finish()


def _reference(sources, targets, count, symmetric, loops=False):
    matrix = sparse.coo_matrix((np.ones(len(sources)), (targets, sources)), shape=(count, count)).tocsr()
    if symmetric:
        matrix = matrix + matrix.T
    if not loops:
        matrix.setdiag(0)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix.indptr, matrix.indices


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 60),
    edges=st.integers(0, 400),
    symmetric=st.booleans(),
    bound=st.sampled_from([1, 30, 1 << 62]),
    pieces=st.integers(1, 4),
    loops=st.booleans(),
    dtype=st.sampled_from([np.int32, np.int64]),
)
@pytest.mark.filterwarnings("ignore:Changing the sparsity structure")
def test_agrees_with_scipy(seed, count, edges, symmetric, bound, pieces, loops, dtype):
    rng = np.random.default_rng(seed)
    # Few distinct targets: rows long enough for both sorts, with duplicates and self loops.
    sources = rng.integers(0, count, edges).astype(dtype)
    targets = rng.integers(0, rng.integers(1, count + 1), edges).astype(dtype)
    indptr, indices = _build(sources, targets, count, symmetric, bound, pieces, loops=loops)
    expected = _reference(sources, targets, count, symmetric, loops)
    np.testing.assert_array_equal(indptr, expected[0])
    np.testing.assert_array_equal(indices, expected[1])
    assert indptr.dtype == np.int64
    assert indices.dtype == np.int32


def test_to_a_file(tmp_path):
    rng = np.random.default_rng(0)
    sources, targets = rng.integers(0, 50, (2, 500))
    memory = _build(sources, targets, 50, True, 1 << 62, 1)
    file = _build(sources, targets, 50, True, 100, 3, tmp_path)
    for a, b in zip(memory, file, strict=True):
        np.testing.assert_array_equal(a, b)


def test_edge_out_of_range():
    with pytest.raises(
        DataError, match=r"test: edge 3 \(5 → 1\) has an endpoint that is not one of the 5 vertices"
    ):
        _build(np.array([0, 1, 2, 5, 9]), np.array([1, 2, 3, 1, 9]), 5, True, 1 << 62, 2)


@pytest.mark.parametrize("excess", [0, 1, 7, 150, 400])
@pytest.mark.parametrize("bound", [10, 1 << 24])
def test_drop_edges(monkeypatch, excess, bound):
    rng = np.random.default_rng(1)
    sources, targets = rng.integers(0, 80, (2, 600))
    indptr, indices = _build(sources, targets, 80, True, 1 << 62, 1)
    monkeypatch.setattr(csr, "_RANGE", bound)
    store = ArrayBuilder(np.dtype(np.int32))
    left = drop_edges(indptr, indices, excess, 99, store.append)
    matrix = sparse.csr_matrix((np.ones(left[-1]), store.finish(), left), shape=(80, 80)).toarray()
    before = sparse.csr_matrix((np.ones(indptr[-1]), indices, indptr), shape=(80, 80)).toarray()
    assert matrix.sum() == before.sum() - 2 * excess
    np.testing.assert_array_equal(matrix, matrix.T)
    assert ((before - matrix) >= 0).all()
