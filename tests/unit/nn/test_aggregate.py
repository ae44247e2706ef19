"""Aggregation over blocks against dense matrices."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import dense_reference as dense
import numpy as np
import pytest
import torch
from block_cases import awkward_graph, block_of, blocks, graph_from, sampled, values
from closeness import distance
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.graph.graph import Graph
from hyrt.graph.row_kernels import gather_rows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.fused.fused_gather import aggregate_with_loops
from hyrt.nn.operators.aggregate import aggregate, aggregate_into, compute_scales
from hyrt.sampling.block import Block

COMBINATIONS = [
    (reduce, self_path)
    for reduce, self_path in itertools.product(("mean", "sum", "gcn", "max"), ("none", "add", "concat"))
    if (reduce, self_path) != ("max", "add")
]
# A kernel is compiled for each combination of what may be None, for most of a second. Which rows are summed,
# how edges are weighed and what becomes of the own row are statements of their own, one after the other: for
# 64 bits, weights, halves, rows in place or sums onto others these have every statement; rows of 32 bits are
# computed by all.
EVERY_STATEMENT = [("mean", "none"), ("gcn", "add"), ("sum", "concat"), ("max", "none")]
SUMS = EVERY_STATEMENT[:3]


def distinct_rows(num: int, width: int, seed: int = 0) -> torch.Tensor:
    """Rows without two equal or close values, so that a maximum has a derivative."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.permutation(num * width).reshape(num, width) / max(1, num) - width / 2)


@pytest.mark.parametrize(
    ("reduce", "self_path", "weighted"),
    [(*each, weighted) for each in EVERY_STATEMENT for weighted in (False, True)],
)
def test_gradcheck(reduce: Any, self_path: Any, weighted: bool) -> None:
    block = block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7, weighted=weighted)
    x = distinct_rows(7, 3).requires_grad_()
    what = Aggregation(reduce, self_path, 0.3)
    assert torch.autograd.gradcheck(lambda rows: aggregate(block, rows, what), (x,))


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from(EVERY_STATEMENT), st.sampled_from([1, 3, 8]), st.integers(0, 99))
def test_forward_and_backward_of_any_block_equal_dense_matrices(
    block: Block, combination: tuple[Any, Any], width: int, seed: int
) -> None:
    x = distinct_rows(block.num_src, width, seed).requires_grad_()
    out = aggregate(block, x, Aggregation(*combination, 0.25))
    expected = dense.combine(block, x, *combination, 0.25)
    assert distance(out, expected) < 1e-13
    direction = torch.from_numpy(np.random.default_rng(seed).standard_normal(out.shape))
    (mine,) = torch.autograd.grad(out, x, direction)
    (reference,) = torch.autograd.grad(expected, x, direction, materialize_grads=True)
    assert distance(mine, reference) < 1e-13


@settings(max_examples=30, deadline=None)
@given(blocks(), st.sampled_from([*EVERY_STATEMENT, ("gcn", "none")]), st.integers(0, 99))
def test_loops_over_any_block_equal_dense_matrices(
    block: Block, combination: tuple[Any, Any], seed: int
) -> None:
    x = distinct_rows(block.num_src, 3, seed).requires_grad_()
    expected = dense.combine(block, x, *combination, 0.25)
    rows = x.detach().float().requires_grad_()
    out = aggregate_with_loops(block, rows, Aggregation(*combination, 0.25))
    assert distance(out, expected) < 1e-5
    direction = torch.from_numpy(np.random.default_rng(seed).standard_normal(out.shape))
    (mine,) = torch.autograd.grad(out, rows, direction.float())
    (reference,) = torch.autograd.grad(expected, x, direction, materialize_grads=True)
    assert distance(mine, reference) < 1e-5


@pytest.mark.parametrize(("reduce", "self_path"), COMBINATIONS)
@pytest.mark.parametrize("width", [1, 33])
def test_float32_is_float64_rounded(reduce: Any, self_path: Any, width: int) -> None:
    block = sampled(awkward_graph(), range(90), [4]).blocks[0]
    x = torch.randn(block.num_src, width, generator=torch.Generator().manual_seed(0)).requires_grad_()
    exact = x.detach().double().requires_grad_()
    out = aggregate(block, x, Aggregation(reduce, self_path))
    expected = dense.combine(block, exact, reduce, self_path)
    assert out.dtype == torch.float32
    assert distance(out, expected) < 1e-6
    out.square().sum().backward()
    expected.square().sum().backward()
    assert x.grad is not None
    assert exact.grad is not None
    assert distance(x.grad, exact.grad) < 2e-6


def test_a_tie_sends_the_gradient_to_one_edge_only() -> None:
    block = block_of([[1, 2, 3]], 4)
    x = torch.tensor([[0.0], [5.0], [5.0], [1.0]], dtype=torch.float64, requires_grad=True)
    aggregate(block, x, "max").sum().backward()
    assert x.grad is not None
    assert x.grad.flatten().tolist() == [0, 1, 0, 0]


def test_a_maximum_of_negative_rows_is_negative_and_of_no_rows_zero() -> None:
    x = torch.tensor([[-1.0], [-7.0], [-3.0], [-2.0]], dtype=torch.float64)
    assert aggregate(block_of([[1, 2], [], [1]], 4), x, "max").flatten().tolist() == [-3, 0, -7]


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded gradient"])
def test_memory_layout_does_not_matter(layout: str) -> None:
    block = block_of([[3, 0], [2, 1, 4]], 5)
    plain = distinct_rows(5, 4)
    x = {
        "transposed": plain.t().contiguous().t(),
        "strided": torch.stack([plain, plain + 1], 2)[:, :, 0],
        "expanded gradient": plain.clone(),
    }[layout].requires_grad_()
    out = aggregate(block, x, "mean")
    assert distance(out, dense.combine(block, plain, "mean", "none")) < 1e-14
    (grad,) = torch.autograd.grad(out.sum(), x)
    expected = dense.mixing_matrix(block, "mean").sum(0)[:, None].expand(5, 4)
    assert distance(grad, expected) < 1e-14


def test_every_finite_half_is_widened_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
    bits = bits[np.isfinite(bits.view(np.float16)).all(1)]
    out = np.empty(bits.shape, np.float32)
    gather_rows(bits, np.arange(len(bits), dtype=np.int32), out, 0, len(bits))
    assert len(bits) == 256 - 8
    assert np.array_equal(out.view(np.uint32), bits.view(np.float16).astype(np.float32).view(np.uint32))


@pytest.mark.parametrize(("reduce", "self_path"), EVERY_STATEMENT)
def test_halves_in_place_equal_their_widened_rows(reduce: Any, self_path: Any) -> None:
    graph = awkward_graph()
    block = sampled(graph, range(0, 90, 2), [6], in_place=True).blocks[0]
    bits = halves(graph.num_vertices, 40)
    wide = bits.view(np.float16).astype(np.float32)
    what = Aggregation(reduce, self_path)

    def result(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = np.empty((block.num_dst, what.width(40)), np.float32)
        aggregate_into(what, block, x, out)
        return out

    out, expected = result(bits), result(wide)
    assert np.isfinite(out).all()
    # Rows are widened exactly; four of them may be added in another order.
    assert (np.abs(out - expected) <= 2.0**-22 * result(np.abs(wide))).all()
    if reduce == "max":
        assert np.array_equal(out, expected)


def halves(num: int, width: int) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Bits of random finite halves: zeros of both signs, subnormals, the largest."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 0x7C00, (num, width)).astype(np.uint16)
    bits[rng.random(bits.shape) < 0.2] &= 0x03FF
    bits[rng.random(bits.shape) < 0.05] = 0x7BFF
    bits[rng.random(bits.shape) < 0.05] = 0
    return bits | (rng.integers(0, 2, bits.shape) << 15).astype(np.uint16)


@pytest.mark.parametrize(("reduce", "self_path"), EVERY_STATEMENT)
def test_rows_read_in_place_equal_gathered_ones(reduce: Any, self_path: Any) -> None:
    graph = awkward_graph()
    targets = [8, 3, 5, 77, 11]
    gathered = sampled(graph, targets, [5]).blocks[0]
    there = sampled(graph, targets, [5], in_place=True).blocks[0]
    what = Aggregation(reduce, self_path)
    expected = aggregate(gathered, torch.from_numpy(values(graph)[gathered.sources]), what)
    out = np.empty((5, what.width(graph.num_features)), np.float32)
    aggregate_into(what, there, values(graph), out)
    assert np.array_equal(out, expected.numpy())


def test_gcn_with_all_neighbours_is_the_symmetric_normalisation_of_the_whole_graph() -> None:
    graph = symmetric_graph()
    num = graph.num_vertices
    a_hat = dense_adjacency(graph) + np.eye(num)
    inverse_root = np.diag(a_hat.sum(1) ** -0.5)
    x = np.random.default_rng(0).standard_normal((num, 6))
    expected = inverse_root @ a_hat @ inverse_root @ x
    block = sampled(graph, range(num), [-1]).blocks[0]
    out = aggregate(block, torch.from_numpy(x[block.sources]), Aggregation("gcn", "add"))
    assert distance(out, torch.from_numpy(expected)) < 1e-14


@pytest.mark.parametrize(("reduce", "self_path"), [("gcn", "add"), ("sum", "add"), ("mean", "none")])
def test_the_mean_over_sampled_steps_approaches_all_neighbours(reduce: Any, self_path: Any) -> None:
    graph = awkward_graph()
    targets = [5, 0, 7, 33]
    x = np.random.default_rng(0).standard_normal((graph.num_vertices, 3))
    what = Aggregation(reduce, self_path)

    def result(fanout: int, step: int) -> np.ndarray[Any, Any]:
        block = sampled(graph, targets, [fanout], step=step).blocks[0]
        return aggregate(block, torch.from_numpy(x[block.sources]), what).numpy()

    full = result(-1, 0)
    steps = 1500
    draws = np.stack([result(2, step) for step in range(steps)])
    spread = draws.std(0) / np.sqrt(steps)
    assert (spread[0] > 0).all()
    assert (np.abs(draws.mean(0) - full) <= 4.5 * spread + 1e-12).all()


@pytest.mark.parametrize(("reduce", "self_path"), SUMS)
@pytest.mark.parametrize("chunks", [1, 5])
def test_column_chunks_one_after_the_other_give_the_whole_sum(
    reduce: Any, self_path: Any, chunks: int
) -> None:
    """A part of each destination's edges at a time, with the factors of all; its own row with the first."""
    graph = awkward_graph()
    whole = sampled(graph, range(90), [-1], in_place=True).blocks[0]
    x, what = values(graph), Aggregation(reduce, self_path)
    gathered = sampled(graph, range(90), [-1]).blocks[0]
    exact = torch.from_numpy(x[gathered.sources]).double()
    expected = dense.combine(gathered, exact, reduce, self_path)
    factors = compute_scales(what, whole, np.dtype(np.float32))
    out = np.zeros((90, what.width(graph.num_features)), np.float32)
    rows = np.repeat(np.arange(90), np.diff(whole.indptr))
    borders = np.linspace(0, 90, chunks + 1).astype(int)
    for first, last in itertools.pairwise(borders):
        inside = (whole.columns >= first) & (whole.columns < last)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[inside], minlength=90))]).astype(np.int32)
        part = dataclasses.replace(whole, indptr=indptr, columns=whole.columns[inside])
        if first == 0:
            aggregate_into(what, part, x, out, factors, accumulate=True)
        else:
            at = what.columns(graph.num_features)[0]
            beside = np.ascontiguousarray(out[:, at:])
            rest = dataclasses.replace(factors, self_loop=None)
            aggregate_into(Aggregation(reduce, "none"), part, x, beside, rest, accumulate=True)
            out[:, at:] = beside
    assert distance(torch.from_numpy(out), expected) < 1e-6


@pytest.mark.parametrize(
    ("reduce", "self_path", "weighted"), [*((*each, False) for each in SUMS[1:]), ("gcn", "none", True)]
)
def test_a_sum_onto_rows_is_the_sum_of_both_and_so_are_its_gradients(
    reduce: Any, self_path: Any, weighted: bool
) -> None:
    block = block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7, weighted=weighted)
    what = Aggregation(reduce, self_path, 0.3)
    x, direction = distinct_rows(7, 3).float(), torch.randn(3, what.width(3))
    start = torch.randn(3, what.width(3), generator=torch.Generator().manual_seed(1))
    results = []
    for in_place in (True, False):
        rows, onto = x.clone().requires_grad_(), start.clone().requires_grad_()
        # A leaf may not be overwritten: a copy takes its place.
        out = (
            aggregate(block, rows, what, accumulate_into=onto.clone())
            if in_place
            else onto + aggregate(block, rows, what)
        )
        results.append([out.detach(), *torch.autograd.grad(out, (rows, onto), direction)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    exact = start.double() + dense.combine(block, x.double(), reduce, self_path, 0.3)
    assert distance(results[0][0], exact) < 1e-6


@pytest.mark.parametrize(("reduce", "self_path"), [("gcn", "add"), ("max", "none")])
def test_offsets_of_64_bits_give_equal_bits(reduce: Any, self_path: Any) -> None:
    """Edges beyond 2^31 are counted by 64-bit offsets, in the transpose too."""
    narrow = sampled(awkward_graph(), range(90), [4]).blocks[0]
    wide = dataclasses.replace(narrow, indptr=narrow.indptr.astype(np.int64), _transposed=None)
    turned = wide.transposed()
    assert turned.indptr.dtype == turned.edges.dtype == np.int64
    results = []
    for block in (narrow, wide):
        rows = torch.randn(block.num_src, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        out = aggregate(block, rows, Aggregation(reduce, self_path))
        results.append((out, *torch.autograd.grad(out, rows, torch.ones_like(out))))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_a_maximum_is_not_accumulated() -> None:
    block = block_of([[1], [2]], 4)
    with pytest.raises(ValueError, match="use a sum"):
        aggregate(block, torch.zeros(4, 2), "max", accumulate_into=torch.zeros(2, 2))


def test_rows_that_do_not_fit_are_named() -> None:
    block = block_of([[1], [2]], 4)
    with pytest.raises(ValueError, match=r"in layer 1, x has shape \(3, 2\), but the block has 4 sources"):
        aggregate(block, torch.zeros(3, 2), "mean")
    with pytest.raises(ValueError, match=r"x has shape \(4,\)"):
        aggregate(block, torch.zeros(4), "mean")
    with pytest.raises(ValueError, match=r"pass rows of torch\.float32"):
        aggregate(block, torch.zeros(4, 2, dtype=torch.float16), "mean")
    with pytest.raises(ValueError, match="4 sources"):
        aggregate_into(Aggregation("mean", "none"), block, np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"out has shape \(2, 2\): pass an array of shape \(2, 4\)"):
        aggregate_into(Aggregation("mean", "concat"), block, np.zeros((4, 2)), np.zeros((2, 2)))


def test_a_maximum_is_not_added_to_the_own_row() -> None:
    block = block_of([[1], [2]], 4)
    with pytest.raises(ValueError, match="cannot be combined"):
        aggregate(block, torch.zeros(4, 2), Aggregation("max", "add"))
    with pytest.raises(ValueError, match="cannot be combined"):
        aggregate_into(Aggregation("max", "add"), block, np.zeros((4, 2)), np.zeros((2, 2)))


def symmetric_graph() -> Graph:
    rng = np.random.default_rng(2)
    adjacency = rng.random((60, 60)) < 0.08
    adjacency |= adjacency.T
    np.fill_diagonal(adjacency, 0)
    adjacency[9] = adjacency[:, 9] = False
    return graph_from(adjacency, np.zeros((60, 1), np.float32))


def dense_adjacency(graph: Graph) -> np.ndarray[Any, Any]:
    out = np.zeros((graph.num_vertices, graph.num_vertices))
    for v in range(graph.num_vertices):
        out[v, graph.topology.indices[graph.topology.indptr[v] : graph.topology.indptr[v + 1]]] = 1
    return out
