"""Chunks of edges: counted against brute force, and expected against a drawn graph."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hyrt_perfmodel.chunk_costs import counted_grid, expected_grid, min_parts_for_memory
from hyrt_perfmodel.degrees import DegreeDistribution
from hyrt_perfmodel.workload import GatherLayer


@given(
    st.integers(1, 12).flatmap(
        lambda v: st.tuples(
            st.just(v), st.lists(st.tuples(st.integers(0, v - 1), st.integers(0, v - 1)), max_size=40)
        )
    ),
    st.integers(1, 5),
)
def test_counted_chunks(graph: tuple[int, list[tuple[int, int]]], parts: int) -> None:
    num, pairs = graph
    pairs = sorted(pairs, key=lambda pair: pair[1])
    indptr = np.concatenate([[0], np.cumsum([sum(d == v for _, d in pairs) for v in range(num)])])
    grid = counted_grid(indptr.astype(np.int64), np.array([s for s, _ in pairs], np.int64), parts)
    of = [next(i for i in range(parts) if v < (i + 1) * num // parts) for v in range(num)]
    for i in range(parts):
        assert grid.rows[i] == of.count(i)
        for j in range(parts):
            chunk = [(s, d) for s, d in pairs if of[s] == i and of[d] == j]
            assert grid.edges[i, j] == len(chunk)
            assert grid.sources[i, j] == len({s for s, _ in chunk})
            assert grid.destinations[i, j] == len({d for _, d in chunk})


def test_expected_chunks_are_those_of_a_drawn_graph() -> None:
    """Three in four edges stay in their interval of a graph of equal degrees."""
    num, degree, parts, inside = 6000, 5, 4, 0.75
    rng = np.random.default_rng(7)
    size = num // parts
    own = np.repeat(np.arange(num) // size, degree)
    stays = rng.random(num * degree) < inside
    other = (own + rng.integers(1, parts, num * degree)) % parts
    source = np.where(stays, own, other) * size + rng.integers(0, size, num * degree)
    drawn = counted_grid(np.arange(num + 1) * degree, source, parts)
    degrees = DegreeDistribution(
        counts=np.array([float(num)]),
        in_degrees=np.array([float(degree)]),
        out_degrees=np.array([float(degree)]),
        num_vertices=num,
        num_edges=num * degree,
        source="counted",
    )
    expected = expected_grid(degrees, parts, inside=inside)
    np.testing.assert_allclose(drawn.edges, expected.edges, rtol=0.2)
    np.testing.assert_allclose(drawn.destinations, expected.destinations, rtol=0.2)
    assert expected.edges.sum() == pytest.approx(num * degree)


def test_one_chunk_holds_all() -> None:
    grid = expected_grid(DegreeDistribution.assumed(1000, 20000), 1)
    assert grid.edges.tolist() == [[20000.0]]
    assert 900 < grid.sources[0, 0] <= 1000 + 1e-9


@given(st.integers(1, 10**6), st.integers(0, 10**7), st.integers(10**5, 10**9), st.booleans())
def test_the_least_number_of_parts(vertices: int, edges: int, budget: int, fused: bool) -> None:
    layers = (GatherLayer(gather_width=32, out_width=16), GatherLayer(gather_width=16, out_width=8))

    def need(parts: int) -> float:
        """Two chunks of 32 columns and their edges, two arrays of a row an edge each, and two more chunks."""
        rows = 4 * 32 * vertices / parts
        of_edges = edges / parts**2 * (8 + (0 if fused else 2 * 4 * 32))
        return 2 * (rows + of_edges) + 2 * rows

    parts = min_parts_for_memory(vertices, edges, layers, budget, fused=fused)
    assert need(parts) <= budget * (1 + 1e-12)
    assert parts == 1 or need(parts - 1) > budget * (1 - 1e-12)
