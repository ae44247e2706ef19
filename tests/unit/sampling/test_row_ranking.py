"""Rankings of rows say how often they will be read, for every kind of sampler."""

from __future__ import annotations

import math

import numpy as np
import pytest
from small_graphs import random_graph
from test_all_samplers import ALONE, KINDS, sampler_of

from hyrt.config import build_config
from hyrt.sampling.hotness import HotnessRanking, count_accesses, rank_by_hotness


@pytest.mark.parametrize("kind", KINDS)
def test_hit_rates_are_those_of_steps_to_come(kind: str) -> None:
    graph, part = random_graph(3000, 8, seed=2), 0.5
    sampler = sampler_of(kind, graph, batch_size=200)
    settings = build_config({"sampler": KINDS[kind]}).sampler
    targets = np.arange(0, graph.num_vertices, 2)
    ranking = rank_by_hotness(settings, sampler, graph.topology, targets, 200, [4, 3], part, ALONE)
    assert len(np.unique(ranking.vertices)) == len(ranking.vertices)
    assert ranking.vertices.dtype == graph.topology.indices.dtype
    few = len(ranking.vertices) // 5
    kept = np.zeros(graph.num_vertices, np.bool_)
    kept[ranking.vertices[:few]] = True
    by_degree = np.zeros(graph.num_vertices, np.bool_)
    by_degree[np.argsort(-graph.topology.in_degrees, kind="stable")[:few]] = True
    hits = lookups = of_degree = of_counted = 0
    counted = count_accesses(sampler, range(400, 600), part, graph.num_vertices, ALONE)
    by_count = np.zeros(graph.num_vertices, np.bool_)
    by_count[np.argsort(-counted, kind="stable")[:few]] = True
    for step in range(200, 260):
        units = sampler.units(step)
        batch = sampler.sample(step, units[: math.ceil(part * len(units))], ALONE, in_place=False)
        sources = batch.blocks[0].sources
        hits, lookups = hits + int(kept[sources].sum()), lookups + len(sources)
        of_degree += int(by_degree[sources].sum())
        of_counted += int(by_count[sources].sum())
    assert ranking.hit_rate(few) == pytest.approx(hits / lookups, abs=0.025)
    assert hits > (0.98 if kind == "neighbor" else 0.8) * of_counted
    # Vertices are read for their out-edges and because they are targets: in-degrees say little of that here.
    assert hits > of_degree or kind in ("cluster", "shadow")


def test_whoever_has_the_other_groups_of_the_counted_steps_hits_as_often() -> None:
    """What one trainer reads of few parts more often than usual, the other reads less often."""
    graph = random_graph(600, 8, seed=2)
    given = {**KINDS["cluster"], "parts": 8, "groups": 2}
    settings = build_config({"sampler": given}).sampler
    targets = np.arange(0, graph.num_vertices, 2)
    sampler = settings.build(graph, targets, layers=2, batch_size=200, seed=3)
    ranking = rank_by_hotness(settings, sampler, graph.topology, targets, 200, [4, 3], 0.5, ALONE)
    kept = np.zeros(graph.num_vertices, np.bool_)
    kept[ranking.vertices[: len(kept) * 3 // 10]] = True
    hits = lookups = 0
    for step in range(64):
        sources = sampler.sample(step, sampler.units(step)[1:], ALONE, in_place=False).blocks[0].sources
        assert sources is not None
        hits, lookups = hits + int(kept[sources].sum()), lookups + len(sources)
    assert ranking.hit_rate(int(kept.sum())) == pytest.approx(hits / lookups, abs=0.02)


def test_a_row_that_several_subgraphs_have_is_counted_in_each() -> None:
    graph = random_graph(30, 8, seed=2)
    sampler = sampler_of("shadow", graph, batch_size=10)
    sources = sampler.sample(3, sampler.units(3), ALONE, in_place=False).blocks[0].sources
    assert sources is not None
    asked = np.bincount(sources, minlength=30)
    assert asked.max() > 1
    assert count_accesses(sampler, [3], 1.0, 30, ALONE).tolist() == asked.tolist()


def test_a_ranking_leaves_out_what_is_never_read() -> None:
    ranking = HotnessRanking.from_accesses(np.array([0.0, 2.0, 0.0, 5.0, 2.0]), np.dtype(np.int64))
    assert ranking.vertices.tolist() == [3, 1, 4]
    assert ranking.accesses.tolist() == [5.0, 2.0, 2.0]
    assert [ranking.hit_rate(count) for count in range(4)] == [0.0, 5 / 9, 7 / 9, 1.0]
    assert HotnessRanking.from_accesses(np.zeros(3), np.dtype(np.int32)).hit_rate(2) == 0.0
