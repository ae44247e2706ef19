"""Expected sizes of random-walk subgraphs against sampled ones, and where they are known exactly."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hyrt_perfmodel.degrees import DegreeClasses, DegreeDistribution
from hyrt_perfmodel.sampler_sizes import expected_subgraphs

from hyrt.config import build_config
from hyrt.graph import open_graph
from hyrt.predict.dataset_sizes import generated_sizes
from hyrt.runtime.workers import Workers
from hyrt.sampling.saint_sampler import SaintSampler


@pytest.mark.parametrize(("roots", "walk_length"), [(20, 2), (200, 2), (100, 4)])
def test_they_are_those_that_are_sampled(roots: int, walk_length: int) -> None:
    source = "synthetic:community,vertices=20k"
    graph = open_graph(source)
    degrees = generated_sizes(source).degrees
    assert degrees is not None
    config = build_config(
        {"sampler": {"kind": "saint", "roots": roots, "walk_length": walk_length}, "model": {"layers": 3}}
    )
    sampled = []
    with Workers(1, "test") as workers:
        sampler = SaintSampler(graph, graph.split("train"), 3, roots, walk_length, 2, 0, coverage=1)
        for step in range(10):
            batch = sampler.sample(step, sampler.units(step), workers)
            sampled.append(config.sampler.batch_sizes(batch, 2))
            batch.release()
    found = config.sampler.expected_sizes(degrees, layers=3, num_targets=12_000, units=2)
    assert found is not None
    for layer in range(4):
        assert found.vertices[layer] == pytest.approx(fmean(s.vertices[layer] for s in sampled), rel=0.05)
    for layer in range(3):
        assert found.edges[layer] == pytest.approx(fmean(s.edges[layer] for s in sampled), rel=0.1)
    assert found.scanned_edges == pytest.approx(fmean(s.scanned_edges for s in sampled), rel=0.05)
    assert {s.walk_steps for s in sampled} == {found.walk_steps} == {2.0 * roots * (walk_length + 1)}


def test_walks_without_edges_stay_where_they_begin() -> None:
    """By hand: of 50 targets among 100 vertices, 30 draws meet 50 (1 - 0.98^30)."""
    degrees = DegreeDistribution.from_classes(
        DegreeClasses.from_degrees(np.zeros(100, np.int64)), targets=np.arange(50)
    )
    found = expected_subgraphs(degrees, layers=2, roots=30, walk_length=3, subgraphs=4)
    met = 4 * 50 * (1 - 0.98**30)
    assert found.vertices == pytest.approx((met, met, met))
    assert found.edges == (0, 0)
    assert (found.walk_steps, found.scanned_edges) == (4 * 30 * 4, 0)


def test_walks_that_meet_everything_hold_every_edge() -> None:
    degrees = DegreeDistribution.from_classes(
        DegreeClasses.from_degrees(np.full(60, 8)), targets=np.arange(20)
    )
    found = expected_subgraphs(degrees, layers=2, roots=100_000, walk_length=5, subgraphs=1)
    assert found.vertices == pytest.approx((60, 60, 20))
    assert found.edges == pytest.approx((480, 160))
    assert found.scanned_edges == pytest.approx(480)


def test_a_walk_of_one_step_by_hand() -> None:
    """One walk in a large regular directed graph: a root, its neighbour and the edge between."""
    degrees = replace(
        DegreeDistribution.from_classes(DegreeClasses.from_degrees(np.full(100_000, 5))), reciprocity=0.0
    )
    found = expected_subgraphs(degrees, layers=1, roots=1, walk_length=1, subgraphs=1)
    assert found.vertices == pytest.approx((2, 2), rel=1e-3)
    assert found.edges == pytest.approx((1,), rel=1e-3)
    assert found.scanned_edges == pytest.approx(10, rel=1e-3)
