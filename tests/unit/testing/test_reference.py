"""The suite's float64 reference against numbers by hand, SciPy, and the generator's specification."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.operators.dropout import dropout
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing.cases import dropout_mask, reference_step


@given(
    seed=st.integers(0, 2**63),
    step=st.integers(0, 10**6),
    layer=st.integers(0, 5),
    rate=st.floats(0.01, 0.99),
    width=st.integers(1, 9),
)
def test_masks_are_those_of_the_operator(seed: int, step: int, layer: int, rate: float, width: int) -> None:
    vertices = np.array([0, 1, 77, 2**40], np.int64)
    ones = torch.ones(4, width, dtype=torch.float64)
    mine = dropout_mask(vertices, width, rate, seed, step, layer)
    theirs = dropout(ones, vertices, rate=rate, seed=seed, step=step, layer=layer)
    assert isinstance(theirs, torch.Tensor)
    np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-12)


def one_block(indptr: list[int], columns: list[int], degrees: list[int], weights=None) -> Block:
    num = len(indptr) - 1
    return Block(
        indptr=np.array(indptr, np.int32),
        columns=np.array(columns, np.int32),
        destinations=np.arange(num, dtype=np.int32),
        sources=np.arange(len(degrees), dtype=np.int32),
        num_src=len(degrees),
        degrees=np.array(degrees[:num], np.int32),
        source_degrees=np.array(degrees, np.int32),
        layer=1,
        weights=None if weights is None else np.array(weights, np.float32),
    )


# Vertex 0 has 4 neighbours, of which vertex 1 was sampled twice and 2 once; vertex 1 has none.
ROWS = np.array([[1.0], [2.0], [5.0]])
COMBINED = {
    ("gcn", "mean"): [[1 / 5 + 4 / 3 * (2 + 2) / math.sqrt(5 * 1) + 4 / 3 * 5 / math.sqrt(5 * 10)], [2.0]],
    ("graphsage", "mean"): [[1, 3], [2, 0]],
    ("graphsage", "max"): [[1, 5], [2, 0]],
}


@pytest.mark.parametrize(("kind", "reduce"), COMBINED)
def test_one_layer_by_hand(kind: str, reduce: str) -> None:
    block = one_block([0, 3, 3], [1, 1, 2], [4, 0, 9])
    combined = np.array(COMBINED[kind, reduce])
    model = GNN(
        Architecture(kind=kind, in_features=1, num_classes=2, layers=1, aggregate=reduce)  # type: ignore[arg-type]
    )
    weight = np.arange(1.0, 1 + 2 * combined.shape[1]).reshape(2, -1) / 3
    bias = np.array([0.5, -0.25])
    labels = np.array([1, 0])
    factors = np.array([2.0, 0.5], np.float32)
    batch = MiniBatch(0, block.destinations, [block], labels, factors, 2.0)
    found = reference_step(model, [torch.from_numpy(weight), torch.from_numpy(bias)], batch, ROWS)
    scores = combined @ weight.T + bias
    chances = log_softmax(scores, axis=1)
    assert found.loss_sum == pytest.approx(-(factors * chances[[0, 1], labels]).sum(), rel=1e-12)
    d_scores = factors[:, None] * (np.exp(chances) - np.eye(2)[labels])
    np.testing.assert_allclose(found.gradients[0].numpy(), d_scores.T @ combined, rtol=1e-12)
    np.testing.assert_allclose(found.gradients[1].numpy(), d_scores.sum(0), rtol=1e-12)
    right = int((scores.argmax(1) == labels).sum())
    assert found.correct == (right, right)


def test_equal_scores_may_count_or_not() -> None:
    block = one_block([0, 0, 0], [], [0, 0])
    model = GNN(Architecture(kind="gcn", in_features=1, num_classes=2, layers=1))
    batch = MiniBatch(0, block.destinations, [block], np.array([1, 0]), None, 2.0)
    found = reference_step(model, [torch.zeros(2, 1), torch.zeros(2)], batch, ROWS[:2])
    assert found.correct == (0, 2)


def test_attention_over_repeated_edges_by_hand() -> None:
    block = one_block([0, 3, 3], [1, 1, 2], [3, 0, 0])
    model = GNN(Architecture(kind="gat", in_features=1, num_classes=2, layers=1, heads=1))
    weight, source, own, bias = (
        torch.tensor([[[1.0], [-1.0]]]),
        torch.tensor([[0.5, 0.0]]),
        torch.tensor([[0.0, 1.0]]),
        torch.zeros(2),
    )
    batch = MiniBatch(0, block.destinations, [block], np.array([0, 0]), None, 2.0)
    found = reference_step(model, [weight, source, own, bias], batch, ROWS)
    # Scores of vertex 0: LeakyReLU(0.5 x_j - x_0) over itself, 1, 1 and 2.
    scores = np.array([-0.5 * 0.2, 0.0, 0.0, 1.5])
    share = np.exp(scores) / np.exp(scores).sum()
    mixed = share @ np.array([1.0, 2.0, 2.0, 5.0])
    losses = [np.log1p(np.exp(-2 * value)) for value in (mixed, 2.0)]
    assert found.loss_sum == pytest.approx(sum(losses), rel=1e-12)
