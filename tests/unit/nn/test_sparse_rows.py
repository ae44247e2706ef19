"""Products of sparse feature rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from block_cases import sparse_of
from closeness import distance
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from hyrt.nn.operators.sparse import SparseRows, sparse_linear
from hyrt.runtime.workers import Workers, use_workers


def rows_of(num: int, width: int, density: float, seed: int) -> SparseRows:
    rng = np.random.default_rng(seed)
    dense = rng.standard_normal((num, width)).astype(np.float32)
    dense[rng.random(dense.shape) >= density] = 0
    return sparse_of(dense)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 20),
    st.integers(1, 20),
    # One column, and a vector of which all numbers hold one or some do: loops are compiled for each.
    st.sampled_from([1, 5, 8]),
    st.sampled_from([0, 0.1, 1]),
    st.integers(0, 99),
)
def test_values_and_gradient_are_those_of_scipy(
    num: int, width: int, out: int, density: float, seed: int
) -> None:
    rows = rows_of(num, width, density, seed)
    matrix = sparse.csr_matrix((rows.values.astype(float), rows.columns, rows.indptr), shape=(num, width))
    assert np.array_equal(rows.to_dense().numpy(), matrix.toarray())
    weight = torch.randn(out, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight.requires_grad_()
    result = sparse_linear(rows, weight)
    assert distance(result, torch.from_numpy(matrix @ weight.detach().numpy().T)) < 1e-13
    direction = np.random.default_rng(seed).standard_normal((num, out))
    result.backward(torch.from_numpy(direction))
    assert weight.grad is not None
    assert distance(weight.grad, torch.from_numpy((matrix.T @ direction).T.copy())) < 1e-13


def test_gradcheck() -> None:
    rows = rows_of(8, 6, 0.4, 0)
    weight = torch.randn(
        5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    assert torch.autograd.gradcheck(lambda w: sparse_linear(rows, w), (weight,))


def test_the_first_rows_are_a_view_of_all() -> None:
    rows = rows_of(9, 6, 0.4, 0)
    head = rows.head(4)
    assert len(head) == 4
    assert np.shares_memory(head.values, rows.values)
    assert torch.equal(head.to_dense(), rows.to_dense()[:4])
    # Compiled loops read as far as indptr says, whatever the lengths are: they are compared for themselves.
    for number in range(len(rows) + 1):
        head = rows.head(number)
        assert len(head.columns) == len(head.values) == rows.indptr[number]


def test_a_weight_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"the rows have 6 columns, but the weight has shape \(3, 5\)"):
        sparse_linear(rows_of(4, 6, 0.5, 0), torch.zeros(3, 5))


@pytest.mark.parametrize("out", [32, 33, 64])
def test_the_gradient_is_equal_bit_for_bit_for_any_number_of_threads(out: int) -> None:
    rows = rows_of(300, 40, 0.3, 1)
    direction = torch.randn(300, out, generator=torch.Generator().manual_seed(2))
    gradients = []
    for threads in (1, 2, 4):
        weight = torch.zeros(out, 40, requires_grad=True)
        workers = Workers(threads, "hyrt.test")
        try:
            with use_workers(workers):
                sparse_linear(rows, weight).backward(direction)
        finally:
            workers.close()
        assert weight.grad is not None
        gradients.append(weight.grad)
    expected = direction.double().T @ rows.to_dense().double()
    assert distance(gradients[0].double(), expected) < 1e-6
    assert all(torch.equal(gradients[0], other) for other in gradients[1:])
