"""The parts of attention: each against dense matrices, and all of them together against the one pass."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, block_of, sampled
from closeness import distance

from hyrt.nn.operators.attention import attend
from hyrt.nn.operators.edges import edge_scores, edge_softmax, weighted_sum
from hyrt.sampling.block import Block

ROWS = [[3, 0, 3], [], [2, 4, 5, 1, 0, 3]]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).requires_grad_()


def with_loops(block: Block) -> Block:
    """The block with an edge from each destination to itself."""
    rows = np.split(block.columns, block.indptr[1:-1])
    columns = np.concatenate([np.append(row, i) for i, row in enumerate(rows)]).astype(np.int32)
    indptr = block.indptr + np.arange(len(block.indptr), dtype=block.indptr.dtype)
    return dataclasses.replace(block, indptr=indptr, columns=columns, _transposed=None)


@pytest.mark.parametrize("wide", [False, True], ids=["int32", "int64"])
@pytest.mark.parametrize("sliced", [False, True])
def test_each_part_has_an_exact_gradient(sliced: bool, wide: bool) -> None:
    block = block_of(ROWS, 7)
    if wide:
        block = dataclasses.replace(block, indptr=block.indptr.astype(np.int64))
    assert torch.autograd.gradcheck(lambda a, b: edge_scores(block, a, b), (drawn(7, 2), drawn(3, 2, seed=1)))
    assert torch.autograd.gradcheck(lambda s: edge_softmax(block, s), (drawn(9, 2),))
    x = drawn(7, 2, 3) if sliced else drawn(7, 3)
    assert torch.autograd.gradcheck(lambda x, w: weighted_sum(block, x, w), (x, drawn(9, 2, seed=1)))


def test_each_part_is_what_it_says() -> None:
    block = block_of(ROWS, 7)
    edges = [(j, i) for i, row in enumerate(ROWS) for j in row]
    source, destination, x = (drawn(n, 2, seed=n).detach() for n in (7, 3, 8))
    scores = edge_scores(block, source, destination, 0.1)
    for e, (j, i) in enumerate(edges):
        total = source[j] + destination[i]
        assert distance(scores[e], torch.where(total > 0, total, 0.1 * total)) < 1e-15
    # Scores of hundreds: their exponentials would overflow.
    weights = edge_softmax(block, 300 * scores)
    for i, row in enumerate(ROWS):
        if row:
            here = slice(int(block.indptr[i]), int(block.indptr[i + 1]))
            assert distance(weights[here], (300 * scores[here]).softmax(0)) < 1e-13
    exact = torch.zeros(3, 2, 2, dtype=torch.float64)
    for e, (j, i) in enumerate(edges):
        exact[i] += weights[e][:, None] * x[j]
    assert distance(weighted_sum(block, x[:7], weights), exact) < 1e-14


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("sliced", [False, True])
def test_together_they_are_the_one_pass(heads: int, sliced: bool, dtype: torch.dtype) -> None:
    block = sampled(awkward_graph(), range(0, 90, 2), [6]).blocks[0]
    looped = with_loops(block)
    shape = (block.num_src, heads, 5) if sliced else (block.num_src, 5)
    inputs = [drawn(*shape), drawn(heads, 5, seed=1), drawn(heads, 5, seed=2)]
    inputs = [t.detach().to(dtype).requires_grad_() for t in inputs]
    direction = drawn(heads, block.num_dst, 5, seed=3).detach().to(dtype)

    def parts(x: torch.Tensor, u_src: torch.Tensor, u_dst: torch.Tensor) -> torch.Tensor:
        slices = x if x.ndim == 3 else x[:, None]
        at_source, at_destination = ((slices * u).sum(2) for u in (u_src, u_dst))
        scores = edge_scores(looped, at_source, at_destination[: block.num_dst])
        return weighted_sum(looped, x, edge_softmax(looped, scores)).transpose(0, 1)

    results: list[Any] = []
    for compute in (lambda *t: attend(block, *t), parts):
        out = compute(*inputs)
        results.append([out, *torch.autograd.grad(out, inputs, direction)])
    for fused, composed in zip(*results, strict=True):
        assert distance(composed, fused) < (1e-12 if dtype == torch.float64 else 1e-5)


def test_what_does_not_fit_is_named() -> None:
    block = block_of([[1], [2]], 4)
    with pytest.raises(ValueError, match=r"layer 1: scores has shape \(3, 1\)"):
        edge_softmax(block, torch.zeros(3, 1))
    with pytest.raises(ValueError, match="give 4 rows"):
        weighted_sum(block, torch.zeros(3, 2), torch.zeros(2, 1))
    with pytest.raises(ValueError, match="float16"):
        edge_scores(block, torch.zeros(4, 1).half(), torch.zeros(2, 1))


def test_softmax_of_large_scores_is_that_of_their_differences() -> None:
    block = block_of(ROWS, 7)
    scores = drawn(block.num_edges, 2).detach()
    plain = edge_softmax(block, scores)
    for shift in (1000.0, -1000.0):
        assert distance(edge_softmax(block, scores + shift), plain) < 1e-12
