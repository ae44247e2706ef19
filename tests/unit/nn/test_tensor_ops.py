"""The operators over tensor blocks against dense matrices, and their masks against the compiled ones."""

from __future__ import annotations

import itertools
from typing import Any

import dense_reference as dense
import numpy as np
import pytest
import torch
from block_cases import awkward_graph, block_of, blocks, sampled, tensor_block, values
from closeness import assert_close, distance
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import KINDS, direction_of, model_of, ours, reference

from hyrt.nn.architecture import Aggregation
from hyrt.nn.operators import tensor_ops
from hyrt.nn.operators.aggregate import aggregate
from hyrt.nn.operators.attention import attend
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.linear import linear
from hyrt.sampling.block import Block

COMBINATIONS = [
    (reduce, self_path)
    for reduce, self_path in itertools.product(("mean", "sum", "gcn", "max"), ("none", "add", "concat"))
    if (reduce, self_path) != ("max", "add")
]


@pytest.fixture(params=["segment_reduce", "pairwise"], autouse=True)
def summing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which rows are added."""
    if request.param == "pairwise":
        monkeypatch.setattr(tensor_ops, "_SEGMENT_REDUCE", ())


@pytest.fixture
def off_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as on a device: torch's own."""

    def torch_linear(x, weight, bias=None, *, relu=False, low_precision=False):
        return tensor_ops.linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)

    monkeypatch.setattr("hyrt.nn.layers.linear", torch_linear)
    monkeypatch.setattr("hyrt.nn.model.linear", torch_linear)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def distinct_rows(num: int, width: int, seed: int = 0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.permutation(num * width).reshape(num, width) / max(1, num) - width / 2)


@given(block=blocks())
def test_a_tensor_block_says_what_the_block_says(block: Block) -> None:
    moved = tensor_block(block)
    assert (moved.num_dst, moved.num_src, moved.num_edges) == (block.num_dst, block.num_src, block.num_edges)
    assert moved.edge_index().equal(block.edge_index())
    assert moved.destinations.numpy().tolist() == block.destinations.tolist()
    mine, theirs = moved.transposed(), block.transposed()
    for name in ("indptr", "rows", "edges"):
        assert getattr(mine, name).tolist() == getattr(theirs, name).tolist()
    assert not moved.in_place


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("reduce", "self_path"), COMBINATIONS)
def test_gradcheck(reduce: Any, self_path: Any, weighted: bool) -> None:
    block = tensor_block(block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7, weighted=weighted))
    x = distinct_rows(7, 3).requires_grad_()
    what = Aggregation(reduce, self_path, 0.3)
    assert torch.autograd.gradcheck(lambda rows: aggregate(block, rows, what), (x,), fast_mode=True)


@settings(max_examples=40, deadline=None)
@given(
    block=blocks(),
    combination=st.sampled_from(COMBINATIONS),
    width=st.sampled_from([1, 3, 8]),
    seed=st.integers(0, 99),
)
def test_aggregation_over_any_block_equals_dense_matrices(
    block: Block, combination: tuple[Any, Any], width: int, seed: int
) -> None:
    x = distinct_rows(block.num_src, width, seed).requires_grad_()
    out = aggregate(tensor_block(block), x, Aggregation(*combination, 0.25))
    expected = dense.combine(block, x, *combination, 0.25)
    assert distance(out, expected) < 1e-13
    direction = drawn(*out.shape, seed=seed)
    (mine,) = torch.autograd.grad(out, x, direction)
    (wanted,) = torch.autograd.grad(expected, x, direction, materialize_grads=True)
    assert distance(mine, wanted) < 1e-13


def test_a_tie_gives_its_gradient_to_the_first_edge() -> None:
    block = tensor_block(block_of([[2, 1, 3], [3]], 4))
    x = torch.tensor([[0.0], [5.0], [5.0], [1.0]], requires_grad=True)
    aggregate(block, x, "max").sum().backward()
    assert x.grad is not None
    assert x.grad[:, 0].tolist() == [0, 0, 1, 1]


@settings(max_examples=40, deadline=None)
@given(block=blocks(), sliced=st.booleans(), heads=st.sampled_from([1, 3]), seed=st.integers(0, 99))
def test_attention_over_any_block_equals_a_dense_softmax(
    block: Block, sliced: bool, heads: int, seed: int
) -> None:
    block.weights = None
    shape = (block.num_src, heads, 4) if sliced else (block.num_src, 4)
    inputs = [
        t.requires_grad_() for t in (drawn(*shape, seed=seed), drawn(heads, 4), drawn(heads, 4, seed=1))
    ]
    x, u_src, u_dst = inputs
    out = attend(tensor_block(block), x, u_src, u_dst)
    slices = [x if x.ndim == 2 else x[:, h] for h in range(heads)]
    expected = torch.stack([dense.attention(block, z, u_src[h], u_dst[h]) for h, z in enumerate(slices)])
    assert distance(out, expected) < 1e-13
    direction = drawn(*out.shape, seed=2)
    mine = torch.autograd.grad(out, inputs, direction, materialize_grads=True)
    wanted = torch.autograd.grad(expected, inputs, direction, materialize_grads=True)
    names = ("x", "u_src", "u_dst")
    assert_close(
        {"out": out, **dict(zip(names, mine, strict=True))},
        {"out": expected, **dict(zip(names, wanted, strict=True))},
        1e-12,
    )


def test_attention_survives_scores_that_overflow() -> None:
    block = tensor_block(block_of([[2, 3], []], 4))
    x = 1000 * drawn(4, 2)
    out = attend(block, x, drawn(1, 2), drawn(1, 2, seed=1))
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("width", [1, 4, 7, 32])
def test_dropout_masks_are_bit_equal_to_the_compiled_ones(width: int) -> None:
    vertices = np.array([0, 1, 5, 2**31 - 1, 2**40, 17], np.int64)
    x = drawn(6, width).float()
    keys = {"rate": 0.37, "seed": 11, "step": 5, "layer": 2}
    mine = dropout(x, torch.from_numpy(vertices), **keys)
    theirs = dropout(x, vertices, **keys)
    assert isinstance(mine, torch.Tensor)
    assert isinstance(theirs, torch.Tensor)
    assert mine.equal(theirs)


def test_dropout_passes_gradients_through_its_mask() -> None:
    vertices = np.arange(50)
    x, y = drawn(50, 9).requires_grad_(), drawn(50, 9).requires_grad_()
    keys = {"rate": 0.5, "seed": 1, "step": 2, "layer": 0}
    direction = drawn(50, 9, seed=4)
    for t, ids in ((x, torch.from_numpy(vertices)), (y, vertices)):
        dropout(t, ids, **keys).backward(direction)
    assert x.grad is not None
    assert y.grad is not None
    assert x.grad.equal(y.grad)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("low_precision", [False, True])
def test_products_agree_with_the_compiled_ones(relu: bool, low_precision: bool) -> None:
    inputs = [drawn(40, 12).float(), drawn(7, 12, seed=1).float(), drawn(7, seed=2).float()]
    results = []
    for multiply in (linear, tensor_ops.linear_tensors):
        taken = [t.clone().requires_grad_() for t in inputs]
        out = multiply(*taken, relu=relu, low_precision=low_precision)
        out.backward(direction_of(out))
        results.append([out, *[t.grad for t in taken]])
    for mine, theirs in zip(*results, strict=True):
        assert mine.dtype == torch.float32
        assert distance(mine, theirs) < (2e-2 if low_precision else 1e-6)


def test_a_product_off_the_host_is_torchs_own() -> None:
    x, weight = torch.empty(3, 4, device="meta"), torch.empty(2, 4, device="meta")
    assert linear(x, weight).shape == (3, 2)


@pytest.mark.usefixtures("off_host")
@pytest.mark.parametrize("more", [{}, {"norm": "layer", "residual": True}], ids=["plain", "norm+residual"])
@pytest.mark.parametrize("kind", KINDS)
def test_models_over_tensor_blocks_equal_dense_float64(kind: str, more: dict[str, Any]) -> None:
    graph = awkward_graph()
    batch = sampled(graph, [5, 3, 60, 11, 2], [4, -1])
    rows = values(graph)[batch.blocks[0].sources]
    model = model_of(kind, rows.shape[1], 2, **more)
    x = torch.from_numpy(rows).double().requires_grad_()
    mine = ours(model, [tensor_block(b) for b in batch.blocks], x)
    assert_close(mine, reference(kind, model, batch.blocks, x), 1e-12)


@pytest.mark.usefixtures("off_host")
def test_equal_inputs_give_equal_bits() -> None:
    graph = awkward_graph()
    batch = sampled(graph, list(range(40)), [10, 10])
    x = torch.from_numpy(values(graph)[batch.blocks[0].sources])
    for kind in KINDS:
        model = model_of(kind, x.shape[1], 2, torch.float32)
        first, second = (ours(model, [tensor_block(b) for b in batch.blocks], x) for _ in range(2))
        assert all(first[name].equal(second[name]) for name in first)
