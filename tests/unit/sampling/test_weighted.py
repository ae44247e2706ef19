"""Weighted neighbour sampling: chances by weight, and sums that are unbiased."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats
from small_graphs import graph_of, random_graph, row, sampled_rows

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.runtime.workers import Workers
from hyrt.sampling import block_builder
from hyrt.sampling.sampler import Sampler
from hyrt.training.setup import build_sampler

ALONE = Workers(1, "test")


def weighted(graph: Graph, seed: int = 0) -> Graph:
    weights = np.random.default_rng(seed).lognormal(0, 1, graph.num_edges).astype(np.float32)
    return replace(graph, topology=replace(graph.topology, edge_weights=weights))


def sampler_of(graph: Graph, targets: Any, **settings: Any) -> Sampler:
    layers = len(settings["fanout"])
    config = build_config({"sampler": {"kind": "weighted", **settings}, "model": {"layers": layers}})
    return config.sampler.build(graph, np.array(targets), layers=layers, batch_size=len(targets), seed=4)


def test_priorities_keep_the_first_as_often_as_its_chance_says() -> None:
    """With one of three kept, the chances of all orders of numbers over weights, by integration."""
    graph = graph_of([[]] * 3 + [range(3)])
    weights = np.array([1.0, 2.0, 5.0], np.float32)
    graph = replace(graph, topology=replace(graph.topology, edge_weights=weights))
    sampler = sampler_of(graph, [3], fanout=[1])
    counts = np.zeros(3)
    for step in range(6000):
        counts[sampler.sample(step, np.array([3], np.int32), ALONE, in_place=True).blocks[0].columns] += 1
    # An edge of weight w comes first if its number over w is at, and no other's is less.
    at = np.linspace(0, 1, 200_001)
    chances = []
    for w in weights:
        others = np.prod([np.clip(1 - v * at, 0, 1) for v in weights if v != w], axis=0)
        chances.append(w * integrate.trapezoid(others * (w * at < 1), at))
    assert sum(chances) == pytest.approx(1, abs=1e-3)
    assert stats.chisquare(counts, np.array(chances) / sum(chances) * counts.sum()).pvalue > 1e-3


def test_draws_with_replacement_are_in_proportion_to_weight() -> None:
    graph = weighted(graph_of([[]] * 8 + [range(8)]))
    sampler = sampler_of(graph, [8], fanout=[5], replacement=True)
    counts = np.zeros(8)
    for step in range(2000):
        block = sampler.sample(step, np.array([8], np.int32), ALONE, in_place=True).blocks[0]
        assert block.num_edges == 5
        counts += np.bincount(block.columns, minlength=8)
    weights = graph.topology.edge_weights
    assert weights is not None
    assert stats.chisquare(counts, weights / weights.sum(dtype=float) * counts.sum()).pvalue > 1e-3


@pytest.mark.parametrize("replacement", [False, True])
def test_sums_are_unbiased_and_exact_where_all_are_drawn(replacement: bool) -> None:
    graph = weighted(random_graph(100, 12, seed=3))
    everyone = np.arange(100, dtype=np.int32)
    x = np.random.default_rng(0).normal(1, 1, 100)
    settings = {"fanout": [4], "replacement": replacement}
    plain = sampler_of(graph, everyone, scale_weights=False, **settings)
    scaled = sampler_of(graph, everyone, **settings)
    exact = np.array([x[row(graph, v)].sum() for v in range(100)])
    estimates = np.zeros((2000, 100))
    for step in range(len(estimates)):
        block = plain.sample(step, everyone, ALONE, in_place=True).blocks[0]
        counts = np.diff(block.indptr)
        np.testing.assert_array_equal(counts, np.minimum(block.degrees, 4))
        rows = np.repeat(np.arange(100), counts)
        np.add.at(estimates[step], rows, block.weights * x[block.columns])
        if step < 20:
            other = scaled.sample(step, everyone, ALONE, in_place=True).blocks[0]
            np.testing.assert_array_equal(other.columns, block.columns)
            sums = np.bincount(rows, other.weights * other.edge_weights, 100)
            assert sums == pytest.approx(graph.topology.weighted_degrees, rel=1e-5)
    few = np.diff(graph.topology.indptr) <= 4
    assert estimates[:, few] == pytest.approx(np.broadcast_to(exact[few], (2000, few.sum())))
    error = estimates[:, ~few].std(0) / np.sqrt(len(estimates))
    # Inverse chances have long tails: a few of 90 means may be far out in their deviations.
    assert np.abs((estimates.mean(0) - exact)[~few] / error).max() < 5.5


def test_without_replacement_nobody_is_drawn_twice() -> None:
    graph = weighted(random_graph(200, 20, seed=5))
    sampler = sampler_of(graph, range(200), fanout=[6, 3])
    for block in sampler.sample(1, sampler.units(1), ALONE, in_place=False).blocks:
        for v, neighbors in zip(block.destinations, sampled_rows(block), strict=True):
            assert len(set(neighbors)) == len(neighbors)
            assert set(neighbors) <= set(row(graph, int(v)))


def test_missing_weights_are_named() -> None:
    bare = random_graph(20, 3, seed=0)
    everyone = np.arange(20)
    with pytest.raises(ConfigError, match=r"sampler\.kind=weighted needs edge weights, but small has"):
        sampler_of(bare, everyone, fanout=[3])


def test_blocks_of_a_third_party_without_weights_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, everyone = weighted(random_graph(40, 4, seed=2)), np.arange(40)
    config = build_config({"sampler": {"fanout": [3, 2]}, "model": {"kind": "gcn"}})
    monkeypatch.setattr(type(config.sampler), "__module__", "theirs.sampling")
    assert build_sampler(config, graph, everyone)
    block = block_builder.BlockBuilder._block

    def bare(*given: Any, **named: Any) -> Any:
        return replace(block(*given, **named), edge_weights=None)

    monkeypatch.setattr(block_builder.BlockBuilder, "_block", bare)
    with pytest.raises(ConfigError, match=r"its blocks have no edge weights, but small does"):
        build_sampler(config, graph, everyone)
