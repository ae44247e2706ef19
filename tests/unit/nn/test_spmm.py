"""Sums over whole graphs against dense float64, for any width, storage and number of threads."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from full_graphs import KINDS, dense, long_rows, topology

from hyrt.graph.topology import Topology
from hyrt.nn.full_graph.aggregate import spmm_into
from hyrt.nn.full_graph.traversal import run_by_edges, split_by_edges
from hyrt.runtime.workers import Workers

V = 40


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def off(found: np.ndarray, exact: np.ndarray) -> float:
    assert found.shape == exact.shape
    return float(np.abs(found - exact).max() / max(np.abs(exact).max(), 1e-12))


@pytest.mark.parametrize("width", [1, 3, 16, 17, 47, 64, 128, 200])
def test_any_width(width: int) -> None:
    for kind in KINDS:
        of = topology(kind)
        x, out = drawn(V, width), np.full((V, width), np.nan, np.float32)
        spmm_into(of.indptr, of.indices, x, out)
        assert off(out, dense(of) @ x) < 1e-6


def everything(of: Topology, x: np.ndarray, dtype: Any, **more: Any) -> tuple[np.ndarray, np.ndarray]:
    """A sum with all there is, over half of the rows from half of the sources; and of dense matrices."""
    rng = np.random.default_rng(1)
    rows = np.sort(rng.choice(V, V // 2, replace=False)).astype(np.int32)
    there = np.sort(rng.choice(V, V // 2, replace=False))
    positions = np.full(V, -1, np.int32)
    positions[there] = np.arange(V // 2)
    row, source, own = (rng.standard_normal(V).astype(dtype) for _ in range(3))
    weights = rng.standard_normal(of.num_edges).astype(dtype)
    ids = rng.permutation(of.num_edges).astype(np.int32)
    out = rng.standard_normal((V // 2, x.shape[1])).astype(dtype)
    whole = np.zeros((V, x.shape[1]))
    whole[there] = x
    exact = row[:, None] * (dense(of, weights[ids].astype(np.float64)) @ (source[:, None] * whole))
    exact = out + (exact + own[:, None] * whole)[rows]
    spmm_into(
        of.indptr, of.indices, x, out, row_scale=row, source_scale=source, self_scale=own, weights=weights,
        edge_ids=ids, rows=rows, positions=positions, accumulate=True, **more,
    )  # fmt: skip
    return out, exact


@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1e-6), (np.float64, 1e-14)])
def test_scales_weights_rows_and_positions_at_once(dtype: Any, bound: float) -> None:
    for kind in KINDS:
        of = topology(kind, wide=True)
        for width in (17, 64):
            assert off(*everything(of, drawn(V // 2, width).astype(dtype), dtype)) < bound


def test_rows_of_very_many_edges_are_shared_by_threads() -> None:
    of, results = long_rows(), []
    for threads in (1, 3):
        with Workers(threads, "threads") as workers:
            found, exact = everything(of, drawn(V // 2, 17), np.float32, workers=workers)
            results.append(found.tobytes())
            assert off(found, exact) < 1e-5
    assert results[0] == results[1]
    x, out = drawn(V, 5), np.empty((V, 5), np.float32)
    spmm_into(of.indptr, of.indices, x, out)
    # Thousands of equal numbers follow each other in these rows.
    assert off(out, dense(of) @ x) < 1e-4
    bits = torch.from_numpy(x).bfloat16().view(torch.int16).numpy()
    rounded = np.empty_like(bits)
    spmm_into(of.indptr, of.indices, bits, rounded)
    wide = torch.from_numpy(bits).view(torch.bfloat16).double().numpy()
    assert off(torch.from_numpy(rounded).view(torch.bfloat16).double().numpy(), dense(of) @ wide) < 2.0**-8


class Pieces:
    """Notes which pieces of a row were computed, and how often it was finished."""

    def __init__(self, row: int, starts: np.ndarray) -> None:
        self.row, self.starts, self.seen, self.finished = row, starts, list[int](), 0

    def compute_piece(self, number: int) -> None:
        assert not self.finished
        self.seen.append(number)

    def finish(self) -> None:
        self.finished += 1


@pytest.mark.parametrize("chosen", [None, [3, 10, 12, 30, 31, 39]])
def test_each_edge_is_in_one_range_or_one_piece(chosen: list[int] | None) -> None:
    """With one row that has most of the edges, and long rows that follow each other."""
    degrees = np.full(40, 3)
    degrees[[0, 10, 30, 31, 39]] = 70_000, 2_000_000, 100_000, 80_000, 90_000
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    rows = None if chosen is None else np.array(chosen)
    done: list[int] = []
    cuts: list[Pieces] = []

    def cut(row: int, starts: np.ndarray) -> Pieces:
        cuts.append(Pieces(row, starts))
        return cuts[-1]

    with Workers(2, "threads") as workers:
        run_by_edges(lambda start, stop: done.extend(range(start, stop)), indptr, rows, workers, cut)
    vertices = np.arange(40) if rows is None else rows
    long = [k for k, i in enumerate(vertices) if degrees[i] > 60_000]
    assert [each.row for each in cuts] == long
    assert sorted(done + long) == list(range(len(vertices)))
    for each in cuts:
        i = vertices[each.row]
        assert [each.starts[0], each.starts[-1]] == [indptr[i], indptr[i + 1]]
        assert 0 < np.diff(each.starts).min() <= np.diff(each.starts).max() <= 1 << 14
        assert sorted(each.seen) == list(range(len(each.starts) - 1))
        assert each.finished == 1


@pytest.mark.parametrize(
    ("edges", "width", "alone"),
    [(60_000, 16, True), (66_000, 16, False), (50_000, 64, False), (16_000, 500, True), (70_000, 1, False)],
)
def test_few_numbers_are_not_shared(edges: int, width: int, alone: bool) -> None:
    indptr = np.linspace(0, edges, 101).astype(np.int64)
    calls: list[tuple[int, int]] = []
    with Workers(2, "threads") as workers:
        run_by_edges(lambda *rows: calls.append(rows), indptr, workers=workers, width=width)
    assert (calls == [(0, 100)]) == alone
    assert sorted(row for rows in calls for row in range(*rows)) == list(range(100))


@pytest.mark.parametrize("heads", [1, 3])
def test_the_transpose_by_edge_id_is_the_gradient(heads: int) -> None:
    """With weights that differ in both directions."""
    for kind in KINDS:
        of = topology(kind)
        x, g = drawn(V, 3 * heads), drawn(V, 3 * heads, seed=1)
        weights = drawn(of.num_edges, heads, seed=2)
        forward, backward = np.empty_like(x), np.empty_like(x)
        spmm_into(of.indptr, of.indices, x, forward, weights=weights)
        turned = of.transposed
        spmm_into(turned.indptr, turned.indices, g, backward, weights=weights, edge_ids=of.transposed_edges)
        for h in range(heads):
            here = slice(3 * h, 3 * h + 3)
            matrix = dense(of, weights[:, h])
            assert off(forward[:, here], matrix @ x[:, here]) < 1e-6
            assert off(backward[:, here], matrix.T @ g[:, here]) < 1e-6


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_16_bits_are_summed_in_float32_and_rounded_once(kind: torch.dtype) -> None:
    of = topology("one hub")
    x = torch.from_numpy(drawn(V, 20)).to(kind)
    bits = x.view(torch.uint16 if kind == torch.float16 else torch.int16).numpy()
    exact = dense(of) @ x.double().numpy()
    out = np.empty((V, 20), np.float32)
    spmm_into(of.indptr, of.indices, bits, out)
    assert off(out, exact) < 1e-6
    narrow = torch.empty(V, 20, dtype=kind)
    spmm_into(of.indptr, of.indices, bits, narrow.view(torch.from_numpy(bits).dtype).numpy())
    assert torch.equal(narrow, torch.from_numpy(out).to(kind))
    # What is no number, or becomes infinite, stays so.
    x[0] = torch.tensor([np.nan, -np.inf, torch.finfo(kind).max, -0.0] * 5)
    spmm_into(
        np.array([0, 1]), np.array([0]), bits[:1], narrow.view(torch.from_numpy(bits).dtype)[:1].numpy()
    )
    assert torch.equal(narrow[0].nan_to_num(7), x[0].nan_to_num(7))


def test_rows_may_have_gaps() -> None:
    of = topology("directed")
    x, out = drawn(V, 50)[:, 7:30], np.zeros((V, 40), np.float32)
    spmm_into(of.indptr.astype(np.int32), of.indices, x, out[:, 10:33])
    assert off(out[:, 10:33], dense(of) @ x) < 1e-6
    assert not out[:, :10].any()
    assert not out[:, 33:].any()


def test_threads_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    degrees = rng.integers(0, 60, 4000)
    degrees[17] = 100_000
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    columns = rng.integers(0, 4000, indptr[-1]).astype(np.int32)
    assert len(split_by_edges(indptr)) > 5
    x, results = drawn(4000, 16), []
    for threads in (1, 2, 3):
        with Workers(threads, "threads") as workers:
            results.append(np.empty_like(x))
            spmm_into(indptr, columns, x, results[-1], workers=workers)
    assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()
    assert off(results[0], dense(Topology(indptr, columns)) @ x) < 1e-4


def test_ranges_have_equal_edges_and_hold_each_row_once() -> None:
    rng = np.random.default_rng(3)
    degrees = rng.integers(0, 20, 500)
    degrees[[0, 100, 499]] = 1000, 700, 3000
    indptr = np.concatenate([[0], np.cumsum(degrees)])
    rows = np.sort(rng.choice(500, 200, replace=False))
    for of, chosen, sizes in ((indptr, None, degrees + 1), (indptr, rows, degrees[rows] + 1)):
        borders = split_by_edges(of, chosen, grain=100)
        assert borders[0] == 0
        assert borders[-1] == len(sizes)
        assert (np.diff(borders) > 0).all()
        for first, last in itertools.pairwise(borders):
            # No more than asked for, but for the row that crosses the border.
            assert sizes[first : last - 1].sum() < 100
    assert split_by_edges(np.zeros(1, np.int64)).tolist() == [0]
    assert split_by_edges(np.zeros(5, np.int64)).tolist() == [0, 4]
    assert split_by_edges(indptr, rows[:0]).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": np.ones((V, 3), np.int32)}, "x has shape .* and dtype int32"),
        ({"x": np.ones((3, V), np.float32).T}, "must be adjacent in memory"),
        ({"out": np.ones((V, 2), np.float32)}, r"out has shape \(40, 2\), expected \(40, 3\)"),
        ({"rows": np.arange(3)}, r"expected \(3, 3\)"),
        ({"weights": np.ones((1, 2), np.float32)}, "2 heads"),
    ],
)
def test_what_does_not_go_together_is_said(change: dict[str, Any], message: str) -> None:
    of = topology("directed")
    given = {"x": np.ones((V, 3), np.float32), "out": np.ones((V, 3), np.float32), **change}
    with pytest.raises(ValueError, match=message):
        spmm_into(of.indptr, of.indices, given.pop("x"), given.pop("out"), **given)
