"""Dropout of attention weights: its masks in plain integers, and what they do in a dense softmax."""

from __future__ import annotations

import dense_reference as dense
import numpy as np
import pytest
import torch
from block_cases import awkward_graph, block_of, blocks, sampled, tensor_block, values
from closeness import distance
from full_graphs import topology
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.nn.full_graph.attention import attend_backward_into, attend_into
from hyrt.nn.operators.attention import attend
from hyrt.nn.operators.attention_dropout import AttentionDropout, attention_dropout_factors
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Block

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
KEY = {"seed": 9, "step": 1000, "layer": 2}


def mixed(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def factor(destination: int, source: int, head: int, heads: int, rate: float) -> float:
    """The definition: 16 bits a head of the destination's stream (purpose 6), at the source's words."""
    key = mixed((KEY["seed"] + _GOLDEN) & _MASK)
    for part in (6, KEY["step"], KEY["layer"]):
        key = mixed((key + (part + 1) * _GOLDEN) & _MASK)
    stream = mixed((key + (destination + 1) * _GOLDEN) & _MASK)
    word = source * -(-heads // 4) + head // 4
    bits = mixed((stream + (word + 1) * _GOLDEN) & _MASK) >> (16 * (head % 4))
    threshold = round(rate * 65536)
    return 65536 / (65536 - threshold) if bits & 0xFFFF >= threshold else 0.0


def factors(block: Block, heads: int, rate: float) -> torch.Tensor:
    """[heads, num_dst, num_src]."""
    sources = range(block.num_src) if block.sources is None else block.sources.tolist()
    return torch.tensor(
        [
            [[factor(int(i), int(j), h, heads, rate) for j in sources] for i in block.destinations]
            for h in range(heads)
        ],
        dtype=torch.float64,
    ).reshape(heads, block.num_dst, block.num_src)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


@settings(max_examples=25, deadline=None)
@given(
    block=blocks(),
    sliced=st.booleans(),
    heads=st.sampled_from([1, 3, 5]),
    on_device=st.booleans(),
    rate=st.sampled_from([0.3, 0.6]),
)
def test_any_block_equals_a_dense_softmax_times_the_masks(
    block: Block, sliced: bool, heads: int, on_device: bool, rate: float
) -> None:
    block.weights = None
    shape = (block.num_src, heads, 4) if sliced else (block.num_src, 4)
    inputs = [t.requires_grad_() for t in (drawn(*shape), drawn(heads, 4, seed=3), drawn(heads, 4, seed=1))]
    x, u_src, u_dst = inputs
    mask = AttentionDropout.from_rate(rate, **KEY)
    out = attend(tensor_block(block) if on_device else block, *inputs, mask=mask)
    expected = torch.stack(
        [
            dense.attention(block, x[:, h] if sliced else x, u_src[h], u_dst[h], factors=each)
            for h, each in enumerate(factors(block, heads, rate))
        ]
    )
    assert distance(out, expected) < 1e-13
    direction = drawn(*out.shape, seed=2)
    mine = torch.autograd.grad(out, inputs, direction, materialize_grads=True)
    theirs = torch.autograd.grad(expected, inputs, direction, materialize_grads=True)
    for a, b in zip(mine, theirs, strict=True):
        assert float((a - b).abs().sum()) <= 1e-12 * float(direction.abs().sum())


def test_gradcheck() -> None:
    block = block_of([[3, 0, 3], [], [2, 4, 5, 1, 0, 3]], 7)
    mask = AttentionDropout.from_rate(0.5, **KEY)
    for shape in ((7, 3), (7, 2, 3)):
        inputs = tuple(t.requires_grad_() for t in (drawn(*shape), drawn(2, 3, seed=1), drawn(2, 3, seed=2)))
        assert torch.autograd.gradcheck(lambda *t: attend(block, *t, mask=mask), inputs)


def test_a_whole_graph_and_some_of_its_rows_have_the_masks_of_blocks() -> None:
    """Of so many columns that the heads take two passes over the edges, of equal and of unequal numbers."""
    of, rate, width = topology("directed"), 0.6, 32
    num = of.num_vertices
    mask = AttentionDropout.from_rate(rate, **KEY)
    edges = torch.eye(num, dtype=torch.float64)
    for i in range(num):
        for j in of.indices[of.indptr[i] : of.indptr[i + 1]]:
            edges[i, j] += 1
    for heads, rows in ((5, None), (8, np.array([1, 4, 5, 22], np.int32))):
        p, at_source, at_destination = (
            drawn(num, heads, width),
            drawn(num, heads, seed=1),
            drawn(num, heads, seed=2),
        )
        inputs = [t.requires_grad_() for t in (p, at_source, at_destination)]
        scores = torch.nn.functional.leaky_relu(at_destination[:, None] + at_source[None], 0.2)
        drops = torch.tensor(
            [[[factor(i, j, h, heads, rate) for h in range(heads)] for j in range(num)] for i in range(num)],
            dtype=torch.float64,
        )
        alpha = (scores + edges.log()[:, :, None]).softmax(1) * drops
        expected = torch.einsum("ijh,jhd->ihd", alpha, p)
        want = expected if rows is None else expected[torch.from_numpy(rows)]
        grad = drawn(*want.shape, seed=3)
        theirs = torch.autograd.grad(want, inputs, grad)
        given = [t.detach().numpy() for t in inputs]
        count = len(want)
        out, positive = (np.empty((count, heads, width)) for _ in range(2))
        lse, weight, to_destination = (np.empty((count, heads)) for _ in range(3))
        kept = (out, lse, positive, weight)
        attend_into(of.indptr, of.indices, *given, *kept, rows=rows, mask=mask)
        assert distance(torch.from_numpy(out), want) < 1e-13
        positions = None
        if rows is not None:
            positions = np.full(num, -1, np.int32)
            positions[rows] = np.arange(count)
        found = (np.empty((num, heads, width)), np.empty((num, heads)), to_destination)
        turned = of.transposed
        attend_backward_into(
            turned.indptr, turned.indices, *given, *kept, grad.numpy(), *found,
            rows=rows, positions=positions, mask=mask,
        )  # fmt: skip
        of_rows = theirs[2] if rows is None else theirs[2][torch.from_numpy(rows)]
        for mine, other in zip(found, (theirs[0], theirs[1], of_rows), strict=True):
            assert distance(torch.from_numpy(mine), other) < 1e-12


def test_rows_in_place_and_gathered_ones_have_equal_masks_on_any_number_of_threads() -> None:
    graph, targets = awkward_graph(), list(range(0, 90, 2))
    gathered = sampled(graph, targets, [5]).blocks[0]
    there = sampled(graph, targets, [5], in_place=True).blocks[0]
    mask = AttentionDropout.from_rate(0.6, **KEY)
    u = drawn(3, graph.num_features).float()
    results = []
    for threads, block, rows in (
        (1, gathered, values(graph)[gathered.sources]),
        (3, gathered, values(graph)[gathered.sources]),
        (1, there, values(graph)),
    ):
        with Workers(threads, "threads") as workers, use_workers(workers):
            results.append(attend(block, rows, u, u, mask=mask))
    assert torch.equal(results[0], results[1])
    assert distance(results[2], results[0]) < 2e-6


def test_rates_hold_and_seed_step_and_layer_change_the_masks() -> None:
    graph = awkward_graph(300, 20.0)
    block = sampled(graph, list(range(300)), [50]).blocks[0]
    dtype = np.dtype(np.float64)
    edges, own = attention_dropout_factors(AttentionDropout.from_rate(0.6, **KEY), block, 4, dtype)
    # The masks of one edge's heads are as independent as those of two edges.
    assert abs((edges == 0).mean() - 0.6) < 5 * np.sqrt(0.24 / edges.size)
    assert abs((own == 0).mean() - 0.6) < 5 * np.sqrt(0.24 / own.size)
    both = (edges[:, 0] == 0) & (edges[:, 1] == 0)
    assert abs(both.mean() - 0.36) < 5 * np.sqrt(0.36 * 0.64 / len(both))
    for name in KEY:
        other, _ = attention_dropout_factors(
            AttentionDropout.from_rate(0.6, **(KEY | {name: KEY[name] + 1})), block, 4, dtype
        )
        agreement = ((edges == 0) == (other == 0)).mean()
        assert abs(agreement - (0.6**2 + 0.4**2)) < 5 * 0.5 / np.sqrt(edges.size)


def test_a_rate_beyond_its_range_is_said() -> None:
    with pytest.raises(ValueError, match=r"attention dropout rate of layer 2 is 1\.0, which is not in"):
        AttentionDropout.from_rate(1.0, **KEY)
