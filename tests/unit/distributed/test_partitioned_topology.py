"""Ranks that have the edges into their own vertices sample what they would sample with all edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import (
    ALONE,
    losses,
    own_edges,
    settings,
    trained_alone,
    trained_on,
    weights,
)

from hyrt.distributed.context import DistributedContext
from hyrt.distributed.sampling import RemoteNeighborSampler, with_global_degrees
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.predict.counted_traffic import remote_sampling_bytes
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import EvaluationFinished

FANOUTS = [4, 3]


def typed_graph(symmetric: bool) -> Graph:
    """A graph whose edges have types, weights and features."""
    graph = with_values(random_graph(seed=5, symmetric=symmetric), columns=2)
    types = np.random.default_rng(6).integers(0, 3, graph.num_edges).astype(np.int8)
    return Graph.from_arrays(
        "typed",
        graph.topology.indptr,
        graph.topology.indices,
        graph.features,
        graph.labels,
        dict(graph.masks),
        edge_types=types,
        edge_weights=graph.topology.edge_weights,
        edge_features=graph.topology.edge_features,
    )


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_mini_batches_are_those_of_all_edges(symmetric: bool, in_place: bool) -> None:
    graph = typed_graph(symmetric)
    homes = np.random.default_rng(7).integers(0, 3, graph.num_vertices).astype(np.uint8)
    everything = NeighborSampler(graph, graph.split("train"), FANOUTS, 32, 0)

    def sampled(ranks: DistributedContext) -> None:
        part = with_global_degrees(own_edges(graph, homes, ranks.rank), ranks.control)
        asked = RemoteNeighborSampler(part.topology, homes, ranks.rows, FANOUTS, 0)
        sampler = NeighborSampler(part, graph.split("train"), FANOUTS, 32, 0)
        for step in range(3):
            # The last rank has nothing to train, but others need its edges.
            units = everything.units(step)[ranks.rank :: 2] if ranks.rank < 2 else np.empty(0, np.int32)
            hops = asked.sample_step(step, units, ALONE)
            # Two trainers share the rank's units.
            for piece in np.array_split(units, 2):
                if not len(piece):
                    continue
                found = sampler.sample(step, piece, ALONE, in_place=in_place, hops=hops)
                wanted = everything_of[ranks.rank].sample(step, piece, ALONE, in_place=in_place)
                for mine, theirs in zip(found.blocks, wanted.blocks, strict=True):
                    assert (mine.sources is None) == in_place == (theirs.sources is None) or mine.layer > 1
                    held = ("edge_types", "edge_weights", "edge_features", "weighted_degrees")
                    for name in ("indptr", "columns", "destinations", "degrees", *held):
                        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
                    for name in ("source_degrees", "source_weighted_degrees"):
                        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
                    if mine.sources is not None:
                        np.testing.assert_array_equal(mine.sources, theirs.sources)

    everything_of = [NeighborSampler(graph, graph.split("train"), FANOUTS, 32, 0) for _ in range(3)]
    results_of(3, sampled)


def test_the_bytes_of_neighbours_are_those_that_are_predicted() -> None:
    graph = typed_graph(symmetric=False)
    homes = np.random.default_rng(7).integers(0, 3, graph.num_vertices).astype(np.uint8)
    everything = NeighborSampler(graph, graph.split("train"), FANOUTS, 32, 0)
    units = np.array_split(everything.units(0), 3)

    def asked(ranks: DistributedContext) -> int:
        topology = own_edges(graph, homes, ranks.rank).topology
        RemoteNeighborSampler(topology, homes, ranks.rows, FANOUTS, 0).sample_step(
            0, units[ranks.rank], ALONE
        )
        return ranks.counts.sent()["edges"]

    predicted = np.zeros((3, 3))
    for rank, mine in enumerate(units):
        predicted += remote_sampling_bytes(everything.sample(0, mine, ALONE, in_place=False), homes, rank, 3)
    assert predicted.sum(1).tolist() == results_of(3, asked)


CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gcn, hopgnn": ("gcn", "hopgnn", {}),
    "gat, model-centric": ("gat", "model-centric", {"evaluate": {"mode": "sampled"}}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_that_of_all_edges_to_the_bit(case: str) -> None:
    model, strategy, more = CASES[case]
    graph = random_graph(seed=1, symmetric=False)
    homes = np.random.default_rng(2).integers(0, 3, graph.num_vertices).astype(np.uint8)
    given = settings(model, train={"epochs": 2, "lr": 0.01, "weight_decay": 0.0}, **more)
    given["distributed"] = {"strategy": strategy, "time_steps": 2}
    runs = [
        results_of(3, lambda ranks, split=split: trained_on(ranks, graph, homes, given, split=split))
        for split in (False, True)
    ]
    (whole, heard_whole), (split, heard_split) = runs[0][0], runs[1][0]
    assert torch.equal(weights(whole), weights(split))
    assert losses(heard_whole) == losses(heard_split)
    metrics = [
        [each.metrics for each in heard if isinstance(each, EvaluationFinished)]
        for heard in (heard_whole, heard_split)
    ]
    assert metrics[0]
    assert metrics[0] == metrics[1]


def test_home_trains_the_model_of_one_process() -> None:
    graph = random_graph(seed=1)
    homes = np.random.default_rng(2).integers(0, 2, graph.num_vertices).astype(np.uint8)
    given = settings("graphsage")
    alone, _ = trained_alone(graph, given)
    found = results_of(2, lambda ranks: trained_on(ranks, graph, homes, given, split=True))
    difference = (weights(found[0][0]) - weights(alone)).norm() / weights(alone).norm()
    assert difference < 1e-5


@pytest.mark.parametrize("strategy", ["p3", "naive-migration"])
def test_strategies_that_sample_for_all_ranks_need_all_edges(strategy: str) -> None:
    graph = random_graph(seed=1)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    given = settings("graphsage", distributed={"strategy": strategy})
    with pytest.raises(ConfigError, match="--topology replicated"):
        results_of(2, lambda ranks: trained_on(ranks, graph, homes, given, split=True))
