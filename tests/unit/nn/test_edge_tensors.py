"""Edge tensors and maxima over whole graphs against loops over the edges."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from full_graphs import KINDS, long_rows, topology

from hyrt.graph.topology import Topology
from hyrt.nn.full_graph.aggregate import max_aggregate_backward_into, max_aggregate_into
from hyrt.nn.full_graph.edge_operators import (
    combine_into,
    dot_into,
    reduce_edges_into,
    softmax_edges_backward_into,
    softmax_edges_into,
)
from hyrt.runtime.workers import Workers

V = 40


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ends(of: Topology) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(V), np.diff(of.indptr)), of.indices


def off(found: np.ndarray, exact: np.ndarray) -> float:
    assert found.shape == exact.shape
    return float(np.abs(found - exact).max(initial=0) / max(np.abs(exact).max(initial=0), 1e-12))


PLACES: list[tuple[Any, Any]] = [("source", "destination"), ("edge", "destination"), ("source", "edge")]


@pytest.mark.parametrize(("left_at", "right_at"), PLACES)
def test_values_of_edges(left_at: Any, right_at: Any) -> None:
    for kind in KINDS:
        of = topology(kind)
        rows, columns = ends(of)
        at = {"source": columns, "destination": rows, "edge": np.arange(of.num_edges)}
        length = {"source": V, "destination": V, "edge": of.num_edges}
        left, right = drawn(length[left_at], 3, 5), drawn(length[right_at], 3, 5, seed=1)
        a, b = left[at[left_at]].astype(np.float64), right[at[right_at]].astype(np.float64)
        out = np.empty((of.num_edges, 3), np.float32)
        dot_into(of.indptr, of.indices, left, right, out, left_at, right_at)
        assert off(out, (a * b).sum(2)) < 1e-6
        right = np.abs(right) + 1
        b = np.abs(b) + 1
        flat = np.empty((of.num_edges, 15), np.float32)
        for name, exact in (("add", a + b), ("sub", a - b), ("mul", a * b), ("div", a / b)):
            given = left.reshape(-1, 15), right.reshape(-1, 15)
            combine_into(of.indptr, of.indices, *given, flat, name, left_at, right_at)
            assert off(flat, exact.reshape(-1, 15)) < 1e-6


# The last is two passes, of which the second has five columns: a loop is compiled for each size of a vector,
# and once more for edges in an order of their own.
@pytest.mark.parametrize("width", [1, 5, 133])
def test_rows_of_edges(width: int) -> None:
    for kind in KINDS:
        of = topology(kind)
        values = drawn(of.num_edges, width)
        ids = np.random.default_rng(1).permutation(of.num_edges)
        for edge_ids in (None, ids) if width == 5 else (None,):
            along = values if edge_ids is None else values[ids]
            parts = np.split(along.astype(np.float64), of.indptr[1:-1])
            out, winners = np.empty((V, width), np.float32), np.empty((V, width), np.int64)
            reduce_edges_into(of.indptr, values, out, edge_ids=edge_ids)
            assert off(out, np.stack([part.sum(0) for part in parts])) < 1e-6
            reduce_edges_into(of.indptr, values, out, largest=True, edge_ids=edge_ids, winners=winners)
            best = [part.max(0) if len(part) else np.zeros(width) for part in parts]
            np.testing.assert_array_equal(out, np.stack(best))
            there = winners >= 0
            assert there.any(1).tolist() == (np.diff(of.indptr) > 0).tolist()
            columns = np.broadcast_to(np.arange(width), winners.shape)
            np.testing.assert_array_equal(values[winners[there], columns[there]], out[there])


def test_rows_of_very_many_edges() -> None:
    """In pieces that threads share."""
    of = long_rows()
    rows, columns = ends(of)
    left, right = drawn(V, 2, 3), drawn(V, 2, 3, seed=1)
    values, out = drawn(of.num_edges, 2), np.empty((of.num_edges, 2), np.float32)
    parts = [np.arange(a, b) for a, b in itertools.pairwise(of.indptr)]
    with Workers(2, "threads") as workers:
        dot_into(of.indptr, of.indices, left, right, out, workers=workers)
        assert off(out, (left.astype(np.float64)[columns] * right[rows]).sum(2)) < 1e-6
        dot_into(of.indptr, of.indices, left, right, out, "destination", "source", workers=workers)
        assert off(out, (left.astype(np.float64)[rows] * right[columns]).sum(2)) < 1e-6
        combine_into(
            of.indptr, of.indices, values, right[:, :, 0].copy(), out, "mul", "edge", "destination",
            workers=workers,
        )  # fmt: skip
        assert off(out, values.astype(np.float64) * right[rows, :, 0]) < 1e-6
        ids = np.random.default_rng(1).permutation(of.num_edges)
        for edge_ids in (None, ids):
            along = values if edge_ids is None else values[ids]
            found, winners = np.empty((V, 2), np.float32), np.empty((V, 2), np.int64)
            reduce_edges_into(of.indptr, values, found, edge_ids=edge_ids, workers=workers)
            assert off(found, np.stack([along[part].sum(0, np.float64) for part in parts])) < 1e-5
            reduce_edges_into(
                of.indptr, values, found, largest=True, edge_ids=edge_ids, winners=winners, workers=workers
            )
            for i, part in enumerate(parts):
                if len(part):
                    best = part[along[part].argmax(0)]
                    assert winners[i].tolist() == (best if edge_ids is None else ids[best]).tolist()
                    assert found[i].tolist() == along[part].max(0).tolist()


@pytest.mark.parametrize("heads", [1, 3])
def test_softmax(heads: int) -> None:
    for kind in KINDS:
        of = topology(kind)
        # Scores of hundreds: their exponentials would overflow.
        scores = torch.from_numpy(200 + drawn(of.num_edges, heads)).double().requires_grad_()
        parts = torch.split(scores, np.diff(of.indptr).tolist())
        exact = torch.cat([part.softmax(0) for part in parts])
        grad = torch.from_numpy(drawn(of.num_edges, heads, seed=1)).double()
        (wanted,) = torch.autograd.grad(exact, scores, grad)
        for dtype, bound in ((np.float32, 3e-6), (np.float64, 1e-13)):
            out = scores.detach().numpy().astype(dtype)
            softmax_edges_into(of.indptr, out, out)
            assert off(out, exact.detach().numpy()) < bound
            softmax_edges_backward_into(of.indptr, out, grad.numpy().astype(dtype), out)
            assert off(out, wanted.numpy()) < bound


@pytest.mark.parametrize("width", [3, 64])
def test_the_largest_of_sources_and_its_transpose(width: int) -> None:
    for kind in KINDS:
        of = topology(kind)
        # Few values, so that many are equal: the first source wins.
        x = np.round(drawn(V, width)).astype(np.float32)
        out, winners = np.empty_like(x), np.empty((V, width), np.int32)
        max_aggregate_into(of.indptr, of.indices, x, out, winners)
        grad, wanted = drawn(V, width, seed=1), np.zeros((V, width))
        for i in range(V):
            sources = of.indices[of.indptr[i] : of.indptr[i + 1]]
            assert out[i].tolist() == (x[sources].max(0) if len(sources) else np.zeros(width)).tolist()
            for k in range(width if len(sources) else 0):
                wanted[sources[x[sources, k].argmax()], k] += grad[i, k]
        found = np.empty_like(x)
        turned = of.transposed
        max_aggregate_backward_into(turned.indptr, turned.indices, grad, winners, found)
        assert off(found, wanted) < 1e-6
        rows = np.array([1, 3, 8, 20], np.int32)
        positions = np.full(V, -1, np.int32)
        positions[rows] = np.arange(4)
        max_aggregate_into(of.indptr, of.indices, x, out[:4], winners[:4], rows=rows)
        max_aggregate_backward_into(
            turned.indptr, turned.indices, grad[:4], winners[:4], found, positions=positions
        )
        wanted[:] = 0
        for k, i in enumerate(rows):
            sources = of.indices[of.indptr[i] : of.indptr[i + 1]]
            for column in range(width if len(sources) else 0):
                wanted[sources[x[sources, column].argmax()], column] += grad[k, column]
        assert off(found, wanted) < 1e-6


def test_a_maximum_of_what_is_no_number_is_none() -> None:
    x = np.array([[1.0], [np.nan], [2.0]], np.float32)
    out = np.empty((1, 1), np.float32)
    for order in ([0, 1, 2], [1, 0, 2], [0, 2, 1]):
        max_aggregate_into(np.array([0, 3, 3, 3]), np.array(order), x, out, rows=np.array([0]))
        assert np.isnan(out).all()


def test_what_does_not_go_together_is_said() -> None:
    of = topology("directed")
    x, edges = np.ones((V, 2), np.float32), np.ones((of.num_edges, 2), np.float32)
    both = (of.indptr, of.indices)
    with pytest.raises(ValueError, match=r"right has shape \(40, 2\) .* pass .* shape \(\d\d\d, 2\)"):
        combine_into(*both, x, x, edges, "add", "source", "edge")
    with pytest.raises(ValueError, match="rows, heads, columns per head"):
        dot_into(*both, x, x, edges)
    with pytest.raises(ValueError, match="values has shape"):
        reduce_edges_into(of.indptr, edges[:-1], x)
    with pytest.raises(ValueError, match=r"out has shape .* all arrays in float32 or all in float64"):
        softmax_edges_into(of.indptr, edges, edges.astype(np.float64))
    with pytest.raises(ValueError, match=r"winners has shape .* int64: pass .* int32"):
        max_aggregate_into(*both, x, x.copy(), np.ones((V, 2), np.int64))
    with pytest.raises(ValueError, match="39 rows for 40 vertices"):
        max_aggregate_into(*both, x[:-1], x.copy())
