"""Graph attention against a dense softmax."""

from __future__ import annotations

import dataclasses
from typing import Any

import dense_reference as dense
import numpy as np
import pytest
import torch
from block_cases import awkward_graph, block_of, blocks, sampled, values
from closeness import distance
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.nn.operators.attention import attend
from hyrt.sampling.block import Block


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def reference(block: Block, x: torch.Tensor, u_src: torch.Tensor, u_dst: torch.Tensor) -> torch.Tensor:
    """[H, num_dst, f]."""
    slices = [x if x.ndim == 2 else x[:, h] for h in range(len(u_src))]
    return torch.stack([dense.attention(block, z, u_src[h], u_dst[h]) for h, z in enumerate(slices)])


@pytest.mark.parametrize("shape", [(7, 3), (7, 2, 3)], ids=["shared rows", "a slice a head"])
def test_gradcheck(shape: tuple[int, ...]) -> None:
    block = block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7)
    x, u_src, u_dst = drawn(*shape), drawn(2, 3, seed=1), drawn(2, 3, seed=2)
    inputs = tuple(t.requires_grad_() for t in (x, u_src, u_dst))
    assert torch.autograd.gradcheck(lambda *t: attend(block, *t), inputs)


@settings(max_examples=50, deadline=None)
@given(blocks(), st.booleans(), st.sampled_from([1, 3]), st.integers(0, 99))
def test_forward_and_backward_of_any_block_equal_a_dense_softmax(
    block: Block, sliced: bool, heads: int, seed: int
) -> None:
    block.weights = None
    shape = (block.num_src, heads, 4) if sliced else (block.num_src, 4)
    inputs = [
        t.requires_grad_() for t in (drawn(*shape, seed=seed), drawn(heads, 4), drawn(heads, 4, seed=1))
    ]
    out, expected = attend(block, *inputs), reference(block, *inputs)
    assert distance(out, expected) < 1e-13
    direction = drawn(*out.shape, seed=2)
    mine = torch.autograd.grad(out, inputs, direction)
    theirs = torch.autograd.grad(expected, inputs, direction, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        # The gradients of u vanish where there are no edges: measure against the direction.
        assert a.shape == b.shape
        assert float((a - b).abs().sum()) <= 1e-12 * float(direction.abs().sum())


def test_large_scores_do_not_overflow() -> None:
    block = block_of([[1, 2], [0]], 3)
    x = torch.tensor([[300.0, 1], [200, 2], [-300, 3]])
    u = torch.ones(1, 2)
    out = attend(block, x, u, u)
    assert out.isfinite().all()
    assert distance(out, reference(block, x.double(), u.double(), u.double())) < 1e-5


def test_the_own_row_alone_is_all_there_is_without_edges() -> None:
    x = drawn(4, 5)
    out = attend(block_of([[], []], 4), x, drawn(3, 5), drawn(3, 5))
    assert torch.equal(out, x[:2].expand(3, 2, 5))


@pytest.mark.parametrize("half", [False, True])
def test_rows_in_place_give_the_scores_and_gradients_of_gathered_rows(half: bool) -> None:
    graph = awkward_graph()
    kept = values(graph).astype(np.float16) if half else values(graph)
    wide = kept.astype(np.float32)
    targets = list(range(0, 90, 3))
    gathered = sampled(graph, targets, [5]).blocks[0]
    there = sampled(graph, targets, [5], in_place=True).blocks[0]
    results: list[list[torch.Tensor]] = []
    for block, rows in (
        (gathered, torch.from_numpy(wide[gathered.sources])),
        (there, kept.view(np.uint16) if half else kept),
    ):
        u_src, u_dst = (drawn(2, graph.num_features, seed=s).float().requires_grad_() for s in (1, 2))
        out = attend(block, rows, u_src, u_dst)
        out.square().sum().backward()
        results.append([out, u_src.grad, u_dst.grad])  # type: ignore[list-item]
    for a, b in zip(*results, strict=True):
        assert distance(b, a) < 2e-6


def test_offsets_of_64_bits_give_equal_values_and_gradients() -> None:
    """Up to rounding: the compiler adds up a row's edges in another order where it counts them otherwise."""
    narrow = sampled(awkward_graph(), range(90), [4]).blocks[0]
    wide = dataclasses.replace(narrow, indptr=narrow.indptr.astype(np.int64), _transposed=None)
    results = []
    for block in (narrow, wide):
        inputs = [drawn(block.num_src, 3), drawn(2, 3, seed=1), drawn(2, 3, seed=2)]
        out = attend(block, *(t.requires_grad_() for t in inputs))
        results.append([out, *torch.autograd.grad(out, inputs, torch.ones_like(out))])
    for a, b in zip(*results, strict=True):
        assert distance(b, a) < 1e-13


def test_what_does_not_fit_is_named() -> None:
    block = block_of([[1], [2]], 4)
    u = torch.zeros(2, 3)
    bad: list[tuple[Any, Any, Any, str]] = [
        (torch.zeros(3, 3), u, u, "4 sources"),
        (torch.zeros(4, 5), u, u, "2 heads of width 3"),
        (torch.zeros(4, 3, 3), u, u, "2 heads of width 3"),
        (torch.zeros(4), u, u, "4 sources"),
        (torch.zeros(4, 3), u, torch.zeros(1, 3), "pass two tensors"),
        (torch.zeros(4, 3).double(), u, u, "the same dtype"),
        (np.zeros((4, 3), object), u, u, "pass rows of float32 or float64"),
        (np.zeros((4, 3), np.int32), u, u, "pass rows of float32 or float64"),
    ]
    for x, u_src, u_dst, message in bad:
        with pytest.raises(ValueError, match=message):
            attend(block, x, u_src, u_dst)
