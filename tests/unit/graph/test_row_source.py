"""Every row source gives the rows of the matrix it stands for, as float32, in the order asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.runtime.workers import Workers

VERTICES = 40


def matrix_of(seed: int, width: int, dtype: str) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((VERTICES, width)) * (generator.random((VERTICES, width)) < 0.3)
    return np.ascontiguousarray(values.astype(dtype))


def sparse_of(values: np.ndarray) -> SparseFeatures:
    rows = sparse.csr_matrix(values)
    return SparseFeatures(rows.indptr.astype(np.int64), rows.indices, rows.data, values.shape[1])


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 70),
    ids=st.lists(st.integers(0, VERTICES - 1), max_size=60),
    form=st.sampled_from(["float32", "float16", "sparse"]),
)
def test_rows_are_those_of_the_matrix(seed: int, width: int, ids: list[int], form: str) -> None:
    values = matrix_of(seed, width, "float32" if form == "sparse" else form)
    source = sparse_of(values) if form == "sparse" else DenseFeatures(values)
    wanted = np.array(ids, np.int32)
    out = np.full((len(ids), width), np.nan, np.float32)
    with Workers(2, "test") as workers:
        source.rows(wanted, out, workers)
        assert np.array_equal(out, values[wanted].astype(np.float32))
        if isinstance(source, SparseFeatures):
            taken = source.take(wanted, workers)
            parts = (taken.values, taken.columns, taken.indptr)
            shown = sparse.csr_matrix(parts, shape=(len(ids), width)).toarray()
            assert np.array_equal(shown, values[wanted])
    assert source.width == width


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_matrix_is_read_in_place(dtype: str) -> None:
    values = matrix_of(1, 5, dtype)
    matrix = DenseFeatures(values).matrix
    assert np.shares_memory(matrix, values)
    assert matrix.shape == values.shape
    assert matrix.dtype == (np.uint16 if dtype == "float16" else np.float32)
    assert sparse_of(values.astype(np.float32)).matrix is None
