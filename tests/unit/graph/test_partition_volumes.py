"""The traffic of parts, and moves that lower it, against brute force."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hyrt.graph.partition import refine
from hyrt.graph.partition import refine as neighbor_parts
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.graph.partition.manifest import count_part_sizes
from hyrt.graph.partition.method import PartBounds
from hyrt.graph.partition.registry import get_partition_method
from hyrt.graph.topology import Topology


def by_hand(topology: Topology, homes: NDArray[Any], num_parts: int) -> list[int]:
    """Count the rows that each part sends, then the rows that each receives, from all pairs of a vertex and
    another part that it has an edge to.
    """
    pairs = set()
    for v in range(topology.num_vertices):
        for u in topology.indices[topology.indptr[v] : topology.indptr[v + 1]]:
            if homes[u] != homes[v]:
                pairs.add((int(u), int(homes[v])))
    traffic = [0] * (2 * num_parts)
    for u, part in pairs:
        traffic[homes[u]] += 1
        traffic[num_parts + part] += 1
    return traffic


@st.composite
def parted(draw: st.DrawFn) -> tuple[Topology, NDArray[np.int32], int]:
    graph = random_graph(
        draw(st.integers(8, 60)),
        draw(st.sampled_from([1.0, 4.0, 12.0])),
        seed=draw(st.integers(0, 99)),
        symmetric=draw(st.booleans()),
    )
    num_parts = draw(st.integers(2, 7))
    homes = np.random.default_rng(draw(st.integers(0, 99))).integers(0, num_parts, graph.num_vertices)
    homes[:num_parts] = np.arange(num_parts)
    return graph.topology, homes.astype(np.int32), num_parts


@given(parted())
@settings(max_examples=30)
def test_volumes_are_those_counted_by_hand(case: Any) -> None:
    topology, homes, num_parts = case
    found = count_block_volumes(topology.indptr, topology.indices, homes, num_parts)
    traffic = by_hand(*case)
    assert [*found.needed.sum(axis=0).tolist(), *found.needed.sum(axis=1).tolist()] == traffic
    training = np.zeros(len(homes), np.bool_)
    sizes = count_part_sizes(topology.indptr, topology.indices, training, homes, num_parts, 16)
    assert [*(part.sends for part in sizes), *(part.receives for part in sizes)] == traffic
    into = np.repeat(homes, topology.in_degrees)
    for i in range(num_parts):
        assert found.rows[i] == (homes == i).sum()
        for k in range(num_parts):
            sources = topology.indices[(into == i) & (homes[topology.indices] == k)]
            assert found.edges[i, k] == len(sources)
            assert found.needed[i, k] == (0 if i == k else len(np.unique(sources)))


@given(parted(), st.integers(0, 9), st.booleans())
@settings(max_examples=40)
def test_a_move_changes_what_it_says(case: Any, seed: int, is_full: bool) -> None:
    topology, homes, num_parts = case
    graph = (topology.indptr, topology.indices)
    counted = neighbor_parts.NeighborPartCounts(*graph, homes, num_parts)
    near = (counted.starts, counted.parts, counted.counts, counted.used)
    traffic = neighbor_parts.count_traffic(counted.starts, counted.parts, counted.used, homes, num_parts)
    assert traffic.tolist() == by_hand(*case)
    weights = topology.in_degrees + 1.0
    held = np.bincount(homes, weights, minlength=num_parts), np.bincount(homes, minlength=num_parts)
    # Where the largest part is full of vertices, none goes there.
    most = int(held[1].max()) if is_full else topology.num_vertices
    bounds = (0.0, 1e9, most)
    power = seed % 4
    scale, prices = refine._prices(traffic, power)
    scratch, changed = refine._scratch(num_parts)

    def cost_of(sent: list[int]) -> float:
        """Return the cost of both aims: all rows, and those of busy directions over and over."""
        return sum(sent) + (scale * sum((rows / scale) ** power for rows in sent) if power else 0)

    for v in np.random.default_rng(seed).permutation(topology.num_vertices)[:12]:
        to, cost = refine._best_move(v, graph, homes, near, held, weights, bounds, prices, scratch)
        if to < 0:
            continue
        assert held[1][to] < most
        neighbors = topology.indices[topology.indptr[v] : topology.indptr[v + 1]]
        full = set(np.flatnonzero(held[1] >= most).tolist())
        for part in {to, *homes[neighbors].tolist()} - {int(homes[v])} - full:
            elsewhere = homes.copy()
            elsewhere[v] = part
            more = float(prices @ (np.array(by_hand(topology, elsewhere, num_parts)) - traffic))
            assert cost <= more + 1e-9
            if part == to:
                assert cost == pytest.approx(more)
        before = cost_of(traffic.tolist())
        pricing = (scale, power, prices)
        added = refine._move(v, to, graph, homes, near, held, weights, traffic, pricing, changed)
        assert traffic.tolist() == by_hand(topology, homes, num_parts)
        assert added == pytest.approx(cost_of(traffic.tolist()) - before, abs=1e-6)
        # Prices are the slopes of the cost.
        for q, rows in enumerate(traffic.tolist()):
            slope = 1 + (power * (rows / scale) ** (power - 1) if power else 0)
            assert prices[q] == pytest.approx(slope)
    np.testing.assert_allclose(held[0], np.bincount(homes, weights, minlength=num_parts))
    assert held[1].tolist() == np.bincount(homes, minlength=num_parts).tolist()


@given(parted(), st.integers(0, 3))
@settings(max_examples=15)
def test_refined_parts_are_no_busier_and_stay_under_the_bound(case: Any, seed: int) -> None:
    topology, homes, num_parts = case
    weights = topology.in_degrees + 1.0
    before = np.bincount(homes, weights, minlength=num_parts)
    bound = before.max() / before.mean()
    found = refine.refine_parts(topology.indptr, topology.indices, homes, weights, num_parts, bound, seed)
    after = np.bincount(found, weights, minlength=num_parts)
    assert len(after) == num_parts
    assert after.min() > 0
    assert after.max() <= before.max() * (1 + 1e-9)
    refined, given = np.array(by_hand(topology, found, num_parts)), np.array(by_hand(*case))
    assert refined.max() <= given.max()
    assert 2 * refined.max() + refined.mean() <= 2 * given.max() + given.mean()
    again = refine.refine_parts(topology.indptr, topology.indices, homes, weights, num_parts, bound, seed)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("seed", range(4))
def test_a_tight_bound_that_the_given_homes_hold_is_held(seed: int) -> None:
    """Parts of equal weight, and a bound that allows no other."""
    indptr = np.array([0, 4, 7, 11, 15, 17, 17, 21, 24, 26, 31, 33])
    sources = [
        1, 4, 6, 7, 4, 8, 9, 0, 3, 8, 9, 1, 2, 6, 8, 0, 8, 4, 8, 9,
        10, 4, 8, 9, 3, 9, 1, 2, 7, 8, 10, 1, 8,
    ]  # fmt: skip
    homes, weights = np.array([0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 1]), np.diff(indptr) + 1.0
    assert np.bincount(homes, weights).tolist() == [22, 22]
    found = refine.refine_parts(indptr, np.array(sources, np.int32), homes, weights, 2, 1.0, seed)
    assert np.bincount(found, weights).tolist() == [22, 22]


@given(parted(), st.integers(0, 5), st.booleans())
@settings(max_examples=15)
def test_no_part_has_more_vertices_than_it_may(case: Any, spare: int, is_uneven: bool) -> None:
    topology, homes, num_parts = case
    if is_uneven:
        homes = np.minimum(np.arange(len(homes)), num_parts - 1).astype(np.int32)
    weights = topology.in_degrees + 1.0
    most = -(-topology.num_vertices // num_parts) + spare
    found = refine.refine_parts(topology.indptr, topology.indices, homes, weights, num_parts, 1.05, 0, most)
    sizes = np.bincount(found, minlength=num_parts)
    assert sizes.max() <= most
    assert sizes.min() > 0


def test_parts_that_weigh_too_much_give_vertices_away() -> None:
    topology = random_graph(200, seed=4).topology
    homes = np.minimum(np.arange(200) // 20, 3).astype(np.int32)
    weights = topology.in_degrees + 1.0
    found = refine.refine_parts(topology.indptr, topology.indices, homes, weights, 4, 1.1, 0)
    loads = np.bincount(found, weights, minlength=4)
    assert loads.max() <= 1.1 * loads.mean()


@pytest.mark.parametrize("counts_vertices", [False, True])
def test_heavy_parts_give_away_what_costs_least(counts_vertices: bool) -> None:
    """Part 0 is a clique of five, in which vertex 5 has one neighbour; part 1 has two vertices."""
    pairs = [(i, k) for i in range(5) for k in range(i)] + [(5, 4), (6, 7)]
    edges = sorted([*pairs, *((k, i) for i, k in pairs)])
    indptr = np.searchsorted([i for i, _ in edges], np.arange(9)).astype(np.int64)
    graph = (indptr, np.array([k for _, k in edges], np.int32))
    homes = np.array([0] * 6 + [1] * 2, np.int32)
    counted = neighbor_parts.NeighborPartCounts(*graph, homes, 2)
    near = (counted.starts, counted.parts, counted.counts, counted.used)
    traffic = neighbor_parts.count_traffic(counted.starts, counted.parts, counted.used, homes, 2)
    loads, sizes, weights = np.array([6.0, 2.0]), np.array([6, 2]), np.ones(8)
    # By what they weigh, or by their vertices.
    bounds = (0.0, np.inf, 5) if counts_vertices else (0.0, 5.0, 8)
    refine._balancing_pass(graph, homes, near, (loads, sizes), weights, bounds, traffic, 0, counts_vertices)
    assert homes.tolist() == [0] * 5 + [1] * 3
    assert loads.tolist() == sizes.tolist() == [5, 3]
    assert traffic.tolist() == [1, 1, 1, 1]


def test_large_graphs_have_fewer_phases_with_the_first_and_the_last() -> None:
    for edges in (10, 1 << 20, 30_000_000, 10**9):
        phases = refine._phases(edges)
        assert phases[0] == refine._PHASES[0]
        assert phases[-1] == refine._PHASES[-1]
    assert len(refine._phases(10)) == 3 * len(refine._PHASES)
    assert len(refine._phases(30_000_000)) == 5
    assert len(refine._phases(10**9)) == 3


def uneven_graph(num: int = 2000, edges: int = 10000, seed: int = 5) -> Topology:
    """Return a graph of eight groups in which some vertices are the neighbours of very many."""
    rng = np.random.default_rng(seed)
    groups = np.sort(rng.integers(0, 8, num))
    first = (num * rng.random(edges) ** 3).astype(np.int64)
    order = rng.permutation(num)
    u = order[first]
    same = rng.random(edges) < 0.8
    starts = np.searchsorted(groups, np.arange(9))
    v = rng.integers(0, num, edges)
    inside = (starts[groups[u]] + rng.random(edges) * (starts[groups[u] + 1] - starts[groups[u]])).astype(
        np.int64
    )
    v = np.where(same, inside, v)
    both = np.unique(np.stack([np.concatenate([u, v]), np.concatenate([v, u])]), axis=1)
    both = both[:, both[0] != both[1]]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(both[0], minlength=num))]).astype(np.int64)
    return Topology(indptr, both[1].astype(np.int32))


def test_volume_is_less_busy_than_metis() -> None:
    topology = uneven_graph()
    training = np.ones(topology.num_vertices, np.bool_)
    traffic = {}
    for name in ("metis", "volume"):
        said: list[str] = []
        bounds = PartBounds(0.02)
        homes = get_partition_method(name).homes(topology, training, 8, 0, bounds, said.append)
        traffic[name] = np.array(by_hand(topology, homes, 8))
        loads = np.bincount(homes, topology.in_degrees + 1.0, minlength=8)
    assert loads.max() <= 1.02 * loads.mean()
    total, busiest = traffic["volume"].sum() // 2, traffic["volume"].max()
    assert said[1].startswith(
        f"by volume  {total:,} rows sent · at most {busiest:,} sent or received by one part, "
    )
    assert f"non-zeros at most {loads.max() / loads.mean() - 1:.1%} above their mean" in said[1]
    metis_total, metis_busiest = traffic["metis"].sum() // 2, traffic["metis"].max()
    assert said[0].startswith(
        f"by metis   {metis_total:,} rows sent · at most {metis_busiest:,} sent or received by one part, "
    )
    assert busiest < metis_busiest
    assert total < metis_total


def test_received_rows_count_like_sent_ones() -> None:
    """With each edge in one direction only, the rows that a part sends and receives differ widely."""
    graph = uneven_graph(600, 4000, seed=2)
    into = np.repeat(np.arange(graph.num_vertices), graph.in_degrees)
    kept = graph.indices < into
    indptr = np.concatenate([[0], np.cumsum(np.bincount(into[kept], minlength=graph.num_vertices))])
    directed = Topology(indptr.astype(np.int64), graph.indices[kept])
    training = np.zeros(graph.num_vertices, np.bool_)
    before, after = (
        np.array(by_hand(directed, get_partition_method(name).homes(directed, training, 4, 0), 4))
        for name in ("metis", "volume")
    )
    assert after.max() < 0.8 * before.max()
    assert after.max() <= 1.1 * after.mean()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num_parts", [2, 4, 8])
def test_volume_is_never_busier_than_metis(seed: int, num_parts: int) -> None:
    """Few training vertices let METIS's parts have far more edges than the mean, and less traffic."""
    rng = np.random.default_rng(seed)
    pieces = [random_graph(int(rng.integers(10, 60)), 3.0, seed=seed, symmetric=True) for _ in range(6)]
    starts = np.cumsum([0, *(piece.num_vertices for piece in pieces)])
    indptr = np.concatenate([[0], np.cumsum(np.concatenate([p.topology.in_degrees for p in pieces]))])
    indices = np.concatenate(
        [p.topology.indices + start for p, start in zip(pieces, starts, strict=False)]
    ).astype(np.int32)
    topology = Topology(indptr.astype(np.int64), indices)
    training = rng.random(topology.num_vertices) < 0.1
    busiest = {}
    for name in ("metis", "volume"):
        homes = get_partition_method(name).homes(topology, training, num_parts, seed)
        busiest[name] = max(by_hand(topology, homes, num_parts))
    assert busiest["volume"] <= busiest["metis"]
