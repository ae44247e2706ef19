"""Every sampled edge against a pick from the published generator, written again as its papers have it.

Nothing of `hyrt.runtime.rng` is used: SplitMix64 is a counter that a function scrambles (Steele, Lea
and Flood, OOPSLA 2014). The key of (seed, purpose, step, layer) starts from the first output of SplitMix64
with the seed; then each part p replaces it by output number p + 1 of SplitMix64 with it as its seed. A
vertex's stream is output number vertex + 1 under the key, and its draw number k is output number k + 1 under
that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_graphs import graphs, random_graph, row, sampled_rows

from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.sampling.saint_sampler import SaintSampler
from hyrt.sampling.sampler import Hop

ALONE = Workers(1, "test")
SAMPLE, WALK = 1, 3


class SplitMix64:
    """The generator of the paper: a state that grows by an odd constant, and a mix of it."""

    def __init__(self, seed: int) -> None:
        self.state = seed % 2**64

    def output(self, number: int) -> int:
        """Output `number`, counted from 1: what the generator gives at its so many-th call."""
        z = (self.state + number * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31


def draw(seed: int, purpose: int, step: int, layer: int, vertex: int, number: int, bound: int) -> int:
    """Draw `number` of a vertex, in 0..bound-1: the high half of its bits, scaled."""
    key = SplitMix64(seed).output(1)
    for part in (purpose, step, layer):
        key = SplitMix64(key).output(part + 1)
    stream = SplitMix64(key).output(vertex + 1)
    return (SplitMix64(stream).output(number + 1) >> 32) * bound >> 32


def picked(graph: Graph, vertex: int, fanout: int, seed: int, step: int, layer: int) -> list[int]:
    """The neighbours of a vertex in a layer: Floyd's sample up to 64 of them, selection sampling above."""
    everyone = row(graph, vertex)
    degree = len(everyone)
    if fanout < 0 or fanout >= degree:
        return everyone
    if fanout <= 64:
        places: list[int] = []
        for number, last in enumerate(range(degree - fanout, degree)):
            place = draw(seed, SAMPLE, step, layer, vertex, number, last + 1)
            places.append(last if place in places else place)
        return [everyone[place] for place in places]
    chosen: list[int] = []
    for seen, neighbor in enumerate(everyone):
        wanted = fanout - len(chosen)
        if wanted and draw(seed, SAMPLE, step, layer, vertex, seen, degree - seen) < wanted:
            chosen.append(neighbor)
    return chosen


seeds = st.integers(0, 2**63 - 1)
# Evaluation samples as step -1.
steps = st.integers(-1, 2**31)


def check_edges(
    graph: Graph, fanouts: Sequence[int], seed: int, step: int, in_place: bool, units: np.ndarray
) -> None:
    sampler = NeighborSampler(graph, np.arange(graph.num_vertices), fanouts, 8, seed)
    batch = sampler.sample(step, units, ALONE, in_place=in_place)
    destinations = [int(v) for v in units]
    for layer, fanout in zip(range(len(fanouts), 0, -1), fanouts, strict=True):
        block = batch.blocks[layer - 1]
        assert block.destinations.tolist() == destinations
        rows = [picked(graph, v, fanout, seed, step, layer) for v in destinations]
        assert sampled_rows(block) == rows
        destinations = list(dict.fromkeys([*destinations, *(u for each in rows for u in each)]))


@settings(max_examples=60, deadline=None)
@given(
    graphs(),
    st.lists(st.sampled_from([1, 3, 63, 64, 65, -1]), min_size=1, max_size=4),
    seeds,
    steps,
    st.booleans(),
)
def test_every_layer_of_a_mini_batch(
    graph: Graph, fanouts: list[int], seed: int, step: int, in_place: bool
) -> None:
    ids = np.arange(0, graph.num_vertices, 3, dtype=np.int32)
    check_edges(graph, fanouts, seed, step, in_place, ids)


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_each_layer_draws_with_its_own_number(layers: int) -> None:
    graph = random_graph(300, 20, seed=4)
    check_edges(graph, [2] * layers, 11, 5, False, np.arange(0, 300, 17, dtype=np.int32))


def test_a_device_draws_with_the_keys_of_the_host() -> None:
    graph = random_graph(200, 15, seed=2)
    seed, step, fanouts = 2**63 - 1, 9, [3, 2, 4]
    asked: list[tuple[int, int]] = []

    class Device:
        def draw(self, vertices: np.ndarray, fanout: int, key: np.uint64, *, relabel: bool) -> Hop:
            asked.append((fanout, int(key)))
            rows = [row(graph, int(v))[:fanout] for v in vertices]
            return Hop(
                np.array([len(row(graph, int(v))) for v in vertices], np.int32),
                np.cumsum([0, *map(len, rows)]).astype(np.int32),
                np.array([u for each in rows for u in each], np.int32),
            )

        def close(self) -> None:
            pass

    sampler = NeighborSampler(graph, np.arange(200), fanouts, 8, seed)
    sampler.sample(step, np.arange(8, dtype=np.int32), ALONE, in_place=False, hops=Device())
    keys = []
    for layer in (3, 2, 1):
        key = SplitMix64(seed).output(1)
        for part in (SAMPLE, step, layer):
            key = SplitMix64(key).output(part + 1)
        keys.append(key)
    assert asked == list(zip(fanouts, keys, strict=True))


@settings(max_examples=30, deadline=None)
@given(graphs(max_vertices=40), st.integers(1, 6), st.integers(1, 4), seeds, st.integers(0, 2**31))
def test_the_walks_of_every_subgraph(graph: Graph, roots: int, length: int, seed: int, step: int) -> None:
    targets = list(range(0, graph.num_vertices, 2))
    sampler = SaintSampler(graph, np.array(targets), 2, roots, length, 2, seed, coverage=1)
    units = sampler.units(step)
    assert units.tolist() == [2 * step, 2 * step + 1]
    batch = sampler.sample(step, units, ALONE)
    expected: list[list[int]] = []
    for unit in units.tolist():
        met = []
        for root in range(roots):
            at = targets[draw(seed, WALK, unit, 0, root, 0, len(targets))]
            met.append(at)
            for number in range(1, length + 1):
                everyone = row(graph, at)
                at = everyone[draw(seed, WALK, unit, 0, root, number, len(everyone))] if everyone else at
                met.append(at)
        expected.append(list(dict.fromkeys(met)))
    is_target = set(targets)
    first = [[v for v in met if v in is_target] for met in expected]
    rest = [[v for v in met if v not in is_target] for met in expected]
    assert batch.blocks[0].sources is not None
    assert batch.blocks[0].sources.tolist() == [v for part in (*first, *rest) for v in part]
