"""Sampling along relations: how many, whose, and that the mini-batch around a vertex changes nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hetero_cases import RELATIONS, small_typed
from numpy.typing import NDArray
from reference_draws import GOLDEN, MASK, below, draw, mix64, stream_key

from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.runtime.rng import SAMPLE
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import RelationSampler
from hyrt.sampling.settings.neighbor_settings import NeighborSettings, resolve_relation_fanouts

Edge = tuple[int, int, int]


def sampled(
    graph: Graph, fanouts: list[list[int]], units: NDArray[np.int32], step: int = 0, threads: int = 1
) -> MiniBatch:
    sampler = RelationSampler(graph, graph.split("train"), fanouts, 64, 7)
    with Workers(threads, "test") as workers:
        return sampler.sample(step, units, workers, in_place=False)


def edges_of(block: Block, graph: Graph) -> dict[tuple[int, int], list[int]]:
    """By destination and relation, the sources, as vertices of the graph."""
    found: dict[tuple[int, int], list[int]] = {}
    assert block.sources is not None
    assert block.edge_types is not None
    for i, vertex in enumerate(block.destinations.tolist()):
        for e in range(block.indptr[i], block.indptr[i + 1]):
            key = (vertex, int(block.edge_types[e]))
            found.setdefault(key, []).append(int(block.sources[block.columns[e]]))
    return found


def rows_of(graph: Graph) -> dict[tuple[int, int], set[int]]:
    """By destination and relation, all sources."""
    topology, found = graph.topology, {}
    assert topology.edge_types is not None
    for vertex in range(graph.num_vertices):
        for e in range(topology.indptr[vertex], topology.indptr[vertex + 1]):
            key = (vertex, int(topology.edge_types[e]))
            found.setdefault(key, set()).add(int(topology.indices[e]))
    return found


def test_draws_its_fanout_of_every_relation_without_replacement() -> None:
    graph = small_typed(edges=900)
    fanouts = [[2, 3, 70, -1, 1], [1, 4, 2, 2, 0]]
    batch = sampled(graph, fanouts, graph.split("train")[:25].astype(np.int32))
    everything, cut = rows_of(graph), 0
    for block, of_layer in zip(batch.blocks[::-1], fanouts, strict=True):
        drawn = edges_of(block, graph)
        for i, vertex in enumerate(block.destinations.tolist()):
            types = block.edge_types[block.indptr[i] : block.indptr[i + 1]]
            assert np.all(np.diff(types) >= 0)
            for relation, fanout in enumerate(of_layer):
                there = everything.get((vertex, relation), set())
                mine = drawn.get((vertex, relation), [])
                wanted = len(there) if fanout < 0 else min(fanout, len(there))
                assert len(mine) == len(set(mine)) == wanted
                assert set(mine) <= there
                cut += 0 < wanted < len(there)
        assert block.weights is not None
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        for e, weight in enumerate(block.weights.tolist()):
            key = (int(block.destinations[rows[e]]), int(block.edge_types[e]))
            assert weight == pytest.approx(len(everything[key]) / len(drawn[key]))
        degrees = np.diff(graph.topology.indptr)[block.destinations]
        assert np.array_equal(block.degrees, degrees)
    assert cut > 50


def picks(key: int, vertex: int, relation: int, degree: int, count: int) -> list[int]:
    """Floyd's sampling from the numbers that the vertex has for the relation, in plain integers."""
    stream, found = draw(key, vertex, relation), []
    for k in range(count):
        last = degree - count + k
        pick = below(mix64((stream + (k + 1) * GOLDEN) & MASK), last + 1)
        found.append(last if pick in found else pick)
    return found


def test_each_relation_has_numbers_of_its_own() -> None:
    graph, topology = small_typed(edges=900), small_typed(edges=900).topology
    assert topology.edge_types is not None
    batch = sampled(graph, [[2] * 5, [1] * 5], graph.split("train")[:25].astype(np.int32), step=3)
    compared = set()
    for block, count in ((batch.blocks[1], 2), (batch.blocks[0], 1)):
        key, drawn = stream_key(7, SAMPLE, 3, block.layer), edges_of(block, graph)
        for vertex in block.destinations.tolist():
            low, high = topology.indptr[vertex], topology.indptr[vertex + 1]
            sources, types = topology.indices[low:high], topology.edge_types[low:high]
            for relation in set(types.tolist()):
                run = sources[types == relation]
                if len(run) > count:
                    wanted = run[picks(key, vertex, relation, len(run), count)].tolist()
                    assert drawn[vertex, relation] == wanted
                    compared.add(relation)
    assert len(compared) == len(RELATIONS)


def test_what_a_vertex_draws_does_not_depend_on_the_others() -> None:
    graph = small_typed(edges=900)
    units = graph.split("train").astype(np.int32)
    fanouts = [[3, 2, 2, 2, 2]] * 2
    together = sampled(graph, fanouts, units, step=5, threads=3)
    parts = [sampled(graph, fanouts, part, step=5) for part in (units[:7], units[7:])]
    for layer in range(2):
        whole = edges_of(together.blocks[layer], graph)
        for part in parts:
            for key, sources in edges_of(part.blocks[layer], graph).items():
                assert whole[key] == sources
    assert edges_of(sampled(graph, fanouts, units, step=6).blocks[1], graph) != edges_of(
        together.blocks[1], graph
    )


def test_neighbours_of_a_relation_are_drawn_equally_often() -> None:
    graph = small_typed(edges=900)
    vertex = int(graph.split("train")[0])
    everything = rows_of(graph)
    counts: Counter[tuple[int, int]] = Counter()
    steps = 1500
    for step in range(steps):
        batch = sampled(graph, [[2, 2, 2, 2, 2]], np.array([vertex], np.int32), step=step)
        for (_, relation), sources in edges_of(batch.blocks[0], graph).items():
            counts.update((relation, source) for source in sources)
    for (destination, relation), sources in everything.items():
        if destination != vertex or len(sources) <= 2:
            continue
        expected = steps * 2 / len(sources)
        for source in sources:
            # Five deviations of a binomial count.
            assert abs(counts[relation, source] - expected) < 5 * expected**0.5


def test_fanouts_by_name() -> None:
    types = small_typed().types
    assert types is not None
    given = {"cites": 7, "paper/written_by/author": [4, 3]}
    found = resolve_relation_fanouts([5, 2], given, types.relations)
    assert found == [[5, 7, 4, 5, 5], [2, 7, 3, 2, 2]]
    assert [relation.name for relation in types.relations] == [names[1] for names in RELATIONS]
    for wrong, words in (
        ({"cite": 3}, "did you mean 'cites'"),
        ({"cites": [1, 2, 3]}, "3 fan-outs for cites, but"),
        ({"cites": 1, "paper/cites/paper": 2}, "the same relation"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve_relation_fanouts([5, 2], wrong, types.relations)


def test_the_setting_makes_a_sampler_by_relation() -> None:
    settings = NeighborSettings(fanout=[3, 2], relation_fanout={"cites": 2})
    graph = small_typed()
    sampler = settings.build(graph, graph.split("train"), layers=2, batch_size=8, seed=0)
    assert isinstance(sampler, RelationSampler)
