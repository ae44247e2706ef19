"""LABOR against the formulas of its paper: which neighbours are least, how many, with what weights."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats
from small_graphs import graph_of, graphs, random_graph, row, sampled_rows

from hyrt.graph.graph import Graph
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.layer_samplers import LaborImportanceSampler, LaborLayerSampler
from hyrt.sampling.layered_sampler import LayeredSampler
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.priority_kernels import sample_smallest_numbers

ALONE = Workers(1, "test")
MASK = (1 << 64) - 1


def labor_sampler(
    graph: Graph, targets: np.ndarray, fanouts: list[int], batch_size: int, seed: int
) -> LayeredSampler:
    draw = LaborLayerSampler(graph.topology, fanouts[::-1], seed)
    return LayeredSampler(graph, targets, len(fanouts), draw, batch_size, seed)


def number(key: int, vertex: int) -> float:
    """In Python's integers: SplitMix64 of a key's stream, as a number in (0, 1]."""
    z = (key + (vertex + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return ((z >> 11) + 1) / 2**53


@settings(max_examples=40, deadline=None)
@given(
    graphs(max_vertices=80), st.lists(st.sampled_from([1, 2, 5, 20, -1]), min_size=1, max_size=3), st.data()
)
def test_every_vertex_keeps_the_least_numbers(graph: Graph, fanout: list[int], data: st.DataObject) -> None:
    step, seed = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 2**40))
    sampler = labor_sampler(graph, np.arange(graph.num_vertices), fanout, graph.num_vertices, seed)
    batch = sampler.sample(step, sampler.units(step)[:40], ALONE, in_place=False)
    for block, size in zip(batch.blocks, reversed(fanout), strict=True):
        key = int(stream_key(seed, SAMPLE, step, block.layer))
        assert block.weights is None
        for vertex, found in zip(block.destinations, sampled_rows(block), strict=True):
            everyone = row(graph, int(vertex))
            wanted = sorted(everyone, key=lambda u: number(key, u))[: len(everyone) if size < 0 else size]
            assert found == sorted(wanted)
            assert block.degrees[list(block.destinations).index(vertex)] == len(everyone)


def test_the_least_are_in_the_order_of_the_row_when_a_heap_finds_them() -> None:
    """Fan-out 2 over 20,000 vertices of 60 neighbours: some rows have fewer than two below the limit."""
    random = np.random.default_rng(1)
    count, degree, wanted = 20_000, 60, 2
    neighbours = np.sort(
        random.permuted(np.tile(np.arange(400), (count // 10, 1)), axis=1)[:, :degree], axis=1
    )
    neighbours = np.repeat(neighbours, 10, axis=0)
    indptr, indices = np.arange(count + 1) * degree, neighbours.astype(np.int32).ravel()
    offsets, vertices = np.arange(count + 1, dtype=np.int32) * wanted, np.arange(count, dtype=np.int32)
    room = count * wanted
    ranks, positions, found = np.empty(room), np.empty(room, np.int64), np.empty(room, np.int32)
    were_few = 0
    for key in range(1, 6):
        sample_smallest_numbers(
            indptr, indices, vertices, offsets, np.uint64(key), 0, count, ranks, positions, found
        )
        numbers = np.array([number(key, u) for u in range(400)])[neighbours]
        least = np.sort(np.argsort(numbers, axis=1)[:, :wanted], axis=1)
        np.testing.assert_array_equal(
            found.reshape(count, wanted), np.take_along_axis(neighbours, least, axis=1)
        )
        first = indptr[:-1, None]
        np.testing.assert_array_equal(positions.reshape(count, wanted), first + least)
        limit = (wanted + 3 * np.sqrt(wanted) + 3) / degree
        were_few += int(((numbers <= limit).sum(axis=1) < wanted).sum())
    assert were_few > 0


def test_the_least_are_found_where_fewer_than_expected_are_small() -> None:
    """Of 8,000 vertices with 60 neighbours, some have none below the limit that is tried first."""
    random = np.random.default_rng(0)
    count, degree = 8000, 60
    neighbours = np.sort(random.permuted(np.tile(np.arange(400), (count, 1)), axis=1)[:, :degree], axis=1)
    indptr, indices = np.arange(count + 1) * degree, neighbours.astype(np.int32).ravel()
    offsets = np.arange(count + 1, dtype=np.int32)
    ranks, positions, found = np.empty(count), np.empty(count, np.int64), np.empty(count, np.int32)
    for key in range(1, 30):
        vertices = np.arange(count, dtype=np.int32)
        sample_smallest_numbers(
            indptr, indices, vertices, offsets, np.uint64(key), 0, count, ranks, positions, found
        )
        numbers = np.array([number(key, u) for u in range(400)])
        np.testing.assert_array_equal(found, neighbours[np.arange(count), numbers[neighbours].argmin(1)])
        if (numbers[neighbours].min(1) > (1 + 3 + 3) / degree).any():
            return
    raise AssertionError("no vertex had none")


def test_each_set_is_equally_likely_and_destinations_share_theirs() -> None:
    """Two vertices with the same neighbours draw the same; each set of 2 among 5 comes equally often."""
    graph = graph_of([[]] * 5 + [range(5), range(5), [0, 1, 2]])
    sampler = labor_sampler(graph, np.arange(8), [2], 8, 5)
    sets: Counter[tuple[int, ...]] = Counter()
    for step in range(3000):
        block = sampler.sample(step, np.array([5, 6, 7], np.int32), ALONE, in_place=True).blocks[0]
        first, second, third = sampled_rows(block)
        assert first == second
        # What both could draw and the larger did, the smaller did too.
        assert set(first) & {0, 1, 2} <= set(third)
        sets[tuple(first)] += 1
    assert set(sets) == set(itertools.combinations(range(5), 2))
    assert stats.chisquare(list(sets.values())).pvalue > 1e-3


def test_sums_are_unbiased_and_sources_fewer_than_those_of_neighbour_sampling() -> None:
    graph = random_graph(120, 14, seed=3)
    everyone = np.arange(120, dtype=np.int32)
    x = np.random.default_rng(0).normal(1, 1, 120)
    sums, distinct = [], []
    kinds = (labor_sampler, NeighborSampler)
    for kind in kinds:
        sampler = kind(graph, everyone, [4], 120, 2)
        found, sources = [], 0
        for step in range(1500):
            block = sampler.sample(step, everyone, ALONE, in_place=True).blocks[0]
            counts = np.diff(block.indptr)
            rows = np.repeat(np.arange(120), counts)
            drawn = np.bincount(rows, x[block.columns], 120) * block.degrees / np.maximum(counts, 1)
            found.append(drawn)
            sources += len(np.unique(block.columns))
        sums.append(np.array(found))
        distinct.append(sources / 1500)
    exact = np.array([x[row(graph, v)].sum() for v in range(120)])
    for found in sums:
        error = found.std(0) / np.sqrt(len(found)) + 1e-9
        assert np.abs((found.mean(0) - exact) / error).max() < 4.5
    # Each vertex's variance is that of neighbour sampling.
    many = np.diff(graph.topology.indptr) > 4
    assert (sums[0].var(0)[many] / sums[1].var(0)[many]) == pytest.approx(1, abs=0.25)
    # A source is there if its number is below the largest share of those whose neighbour it is.
    shares = np.zeros(120)
    for v in range(120):
        neighbors = row(graph, v)
        shares[neighbors] = np.maximum(shares[neighbors], min(1, 4 / max(len(neighbors), 1)))
    assert distinct[0] == pytest.approx(shares.sum(), rel=0.1)
    assert distinct[0] < 0.9 * distinct[1]


def chances_by_hand(graph: Graph, vertices: list[int], fanout: int, rounds: int) -> tuple[np.ndarray, ...]:
    """The paper's iteration with a root finder: importances, and inclusion probabilities by destination."""
    chances = np.ones(graph.num_vertices)

    def factor(neighbors: list[int]) -> float:
        d = len(neighbors)
        if d <= fanout:
            return float(1 / chances[neighbors].min()) if d else 0.0
        over = lambda c: (1 / np.minimum(1, c * chances[neighbors])).sum() - d * d / fanout  # noqa: E731
        return float(optimize.brentq(over, 1e-9, 2 / chances[neighbors].min(), xtol=1e-13))

    for _ in range(rounds):
        factors = {v: factor(row(graph, v)) for v in vertices}
        largest = np.zeros(graph.num_vertices)
        for v in vertices:
            largest[row(graph, v)] = np.maximum(largest[row(graph, v)], factors[v])
        chances = np.where(largest > 0, np.minimum(1, chances * largest), chances)
    factors = {v: factor(row(graph, v)) for v in vertices}
    return chances, np.array([np.minimum(1, factors[v] * chances[row(graph, v)]).sum() for v in vertices])


@pytest.mark.parametrize("rounds", [1, 3])
def test_importances_are_those_of_the_papers_iteration(rounds: int) -> None:
    graph = random_graph(60, 12, seed=9)
    vertices = np.arange(0, 60, 2, dtype=np.int32)
    draw = LaborImportanceSampler(graph, [3], 4, rounds, np.ones(60), np.zeros(60))
    chances, expected = chances_by_hand(graph, vertices.tolist(), 3, rounds)
    key = int(stream_key(4, SAMPLE, 7, 1))
    hop = draw.draw(7, 1, vertices, ALONE)
    assert hop.weights is not None
    for i, v in enumerate(vertices.tolist()):
        at = slice(hop.offsets[i], hop.offsets[i + 1])
        everyone, found = row(graph, v), hop.neighbors[at].tolist()
        assert len(found) == pytest.approx(expected[i], abs=0.5 + 1e-6)
        ranks = {u: number(key, u) / chances[u] for u in everyone}
        order = sorted(everyone, key=lambda u: ranks[u])
        assert found == sorted(order[: len(found)])
        if len(found) < len(everyone):
            inverse = 1 / np.minimum(1, chances[found] * ranks[order[len(found)]])
            assert hop.weights[at] == pytest.approx(inverse * len(everyone) / inverse.sum(), rel=1e-5)
        else:
            assert (hop.weights[at] == 1).all()
    assert (draw.probabilities == 1).all()
    assert (draw.max_factors == 0).all()


def test_importances_lower_what_is_read_and_hardly_bias_the_mean() -> None:
    """The mean is a ratio of two unbiased sums: its bias is of the order of 1 / fan-out of its deviation."""
    graph = random_graph(300, 40, seed=8)
    vertices = np.arange(0, 300, 3, dtype=np.int32)
    x = np.random.default_rng(0).normal(1, 1, 300)
    degrees = np.diff(graph.topology.indptr)[vertices]
    exact = np.array([x[row(graph, int(v))].mean() if row(graph, int(v)) else 0 for v in vertices])
    read = []
    for rounds in (1, 2):
        draw = LaborImportanceSampler(graph, [8], 1, rounds, np.ones(300), np.zeros(300))
        found, distinct = [], 0
        for step in range(400):
            hop = draw.draw(step, 1, vertices, ALONE)
            rows = np.repeat(np.arange(len(vertices)), np.diff(hop.offsets))
            totals = np.bincount(rows, hop.weights * x[hop.neighbors], len(vertices))
            found.append(totals / np.maximum(degrees, 1))
            distinct += len(np.unique(hop.neighbors))
        bias = np.mean(found, 0) - exact
        assert np.sqrt((bias**2).mean()) < 0.15 * np.std(found, 0).mean()
        read.append(distinct / 400)
    sampler = labor_sampler(graph, np.arange(300), [8], 300, 1)
    labor0 = np.mean(
        [
            len(np.unique(sampler.sample(step, vertices, ALONE, in_place=True).blocks[0].columns))
            for step in range(100)
        ]
    )
    assert read[0] < 0.97 * labor0
    assert read[1] < 1.02 * read[0]
