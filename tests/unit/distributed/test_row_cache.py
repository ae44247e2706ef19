"""The cache of remote rows: who is expected to need what, and that training is the same with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from unit.distributed.placed_steps import ALONE
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import settings, trained_on, weights
from unit.sampling.small_graphs import graph_of

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.load_balancing import remote_reads
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.registry import find_rank_problem
from hyrt.distributed.strategies.strategy import Seeds, Strategy
from hyrt.errors import ConfigError
from hyrt.sampling.hotness import access_probabilities, expected_accesses
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import Notice

ROUNDED = "feature rows sent between ranks are rounded to float16, which changes training slightly"


def test_visits_of_a_tree_are_products_of_probabilities() -> None:
    # 0 has the neighbours 1 and 2, and 2 has 3, 4 and 5; nobody else has any.
    tree = graph_of([np.array([1, 2]), np.array([]), np.array([3, 4, 5]), *[np.array([])] * 3]).topology
    drawn = np.array([0.5, 0.0, 0.0, 0.25, 0.0, 0.0])
    np.testing.assert_allclose(access_probabilities(tree, drawn, [1]), [0.5, 0.25, 0.25, 0.25, 0.0, 0.0])
    # In the second hop 0 draws both of its neighbours, so they are reached whenever 0 is; 2 draws two of its
    # three if the first hop has reached it.
    by_2 = 0.25 * 2 / 3
    twice = [0.5, 0.5, 0.5, 1 - (1 - by_2) * 0.75, by_2, by_2]
    np.testing.assert_allclose(access_probabilities(tree, drawn, [1, 2]), twice)
    # Of two draws of one neighbour each, one finds 1 with probability 3 / 4.
    np.testing.assert_allclose(access_probabilities(tree, drawn, [1, 1])[1:3], [0.375, 0.375])
    np.testing.assert_allclose(access_probabilities(tree, np.ones(6), [-1]), np.ones(6))


@pytest.mark.parametrize("strategy", [HomeStrategy(), ModelCentricStrategy()])
def test_expected_reads_are_the_mean_over_many_epochs(strategy: Strategy) -> None:
    graph, ranks, rank, batch, fanouts = random_graph(seed=4), 3, 1, 30, [3, 2]
    rng = np.random.default_rng(5)
    homes = rng.integers(0, ranks, graph.num_vertices)
    targets = graph.split("train")
    reads = remote_reads(graph.topology, targets, homes, rank, ranks, strategy, batch, fanouts)
    epochs = 300
    counted = np.zeros(graph.num_vertices)
    sampler = NeighborSampler(graph, targets, fanouts, batch, 0)
    for step in range(epochs * sampler.steps_per_epoch()):
        units = sampler.units(step)
        mine = strategy.place(Seeds(homes[units], ranks)).positions_of_rank(rank)
        minibatch = sampler.sample(step, units[mine], ALONE, in_place=False)
        counted[minibatch.blocks[0].sources] += 1 / epochs
        minibatch.release()
    counted[homes == rank] = 0
    assert np.all(np.diff(reads.accesses) <= 0)
    assert set(np.flatnonzero(counted)) <= set(reads.vertices)
    of_vertices = np.zeros(graph.num_vertices)
    of_vertices[reads.vertices] = reads.accesses
    assert of_vertices.sum() == pytest.approx(counted.sum(), rel=0.03)
    assert np.corrcoef(of_vertices, counted)[0, 1] > 0.99
    few = len(reads.vertices) // 5
    share = counted[reads.vertices[:few]].sum() / counted.sum()
    assert reads.covered_accesses(few) / reads.covered_accesses(len(reads.accesses)) == pytest.approx(
        share, abs=0.03
    )


def test_a_short_last_step_counts_with_its_own_size() -> None:
    tree = graph_of([np.array([1]), np.array([])]).topology
    reads = expected_accesses(tree, np.array([0.1, 0.0]), [4, 4, 2], [1])
    np.testing.assert_allclose(reads, [1.0, 1.0])


@pytest.mark.parametrize(("sparse", "cache"), [(False, "30%"), (True, "30%"), (False, "1MiB")])
def test_a_cache_changes_no_weight(sparse: bool, cache: str) -> None:
    graph, size = random_graph(seed=1, sparse=sparse), 3
    homes = np.random.default_rng(2).integers(0, size, graph.num_vertices).astype(np.uint8)

    def trained(ranks: DistributedContext, given: dict[str, Any]) -> tuple[torch.Tensor, dict[str, int], Any]:
        result, _ = trained_on(ranks, graph, homes, settings("graphsage", distributed=given))
        return weights(result), ranks.counts.sent(), result.summary.get("row_cache")

    without, with_cache = (
        results_of(size, lambda ranks, given=given: trained(ranks, given)) for given in ({}, {"cache": cache})
    )
    for (before, sent_before, none), (after, sent, told) in zip(without, with_cache, strict=True):
        assert torch.equal(before, after)
        assert none is None
        assert told == with_cache[0][2]
        assert "cache" not in sent_before
        assert sent["cache"] > 0
    rows_before, rows = (sum(sent["rows"] for _, sent, _ in found) for found in (without, with_cache))
    if cache == "1MiB":
        # Everything fits.
        assert (told["hit_rate"], told["predicted_hit_rate"], rows) == (1.0, pytest.approx(1.0), 0)
        return
    assert told["rows"] == size * int(0.3 * graph.num_vertices)
    assert told["hit_rate"] == pytest.approx(told["predicted_hit_rate"], abs=0.05)
    if not sparse:
        assert rows == round(rows_before * (1 - told["hit_rate"]))


def test_a_cache_needs_a_sampler_whose_visits_are_known() -> None:
    graph = random_graph(seed=1)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    given = settings("graphsage", distributed={"cache": "20%", "strategy": "model-centric"})
    given["sampler"] = {"kind": "saint"}
    with pytest.raises(ConfigError, match=r"sampler\.kind is saint: remove distributed\.cache"):
        results_of(2, lambda ranks: trained_on(ranks, graph, homes, given))


def test_rounded_rows_change_training_a_bit_and_the_run_says_so() -> None:
    graph = random_graph(seed=1)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    epochs = {"epochs": 2, "lr": 0.01, "weight_decay": 0.0}
    given = [
        settings("graphsage", train=epochs, distributed={"comm_dtype": wire})
        for wire in ("float32", "float16")
    ]

    def trained(ranks: DistributedContext, given: dict[str, Any]) -> tuple[torch.Tensor, int, list[str]]:
        result, heard = trained_on(ranks, graph, homes, given)
        said = [event.text for event in heard if isinstance(event, Notice)]
        return weights(result), ranks.counts.sent()["rows"], said

    exact, rounded = (results_of(2, lambda ranks, each=each: trained(ranks, each)) for each in given)
    difference = (exact[0][0] - rounded[0][0]).norm() / exact[0][0].norm()
    assert 0 < difference < 1e-2
    assert torch.equal(rounded[0][0], rounded[1][0])
    assert [sent for _, sent, _ in exact] == [2 * sent for _, sent, _ in rounded]
    assert all(ROUNDED in said for _, _, said in rounded)
    assert not any(ROUNDED in said for _, _, said in exact)


def test_rows_that_are_read_where_they_lie_are_not_kept() -> None:
    graph = random_graph(seed=1)
    homes = np.random.default_rng(3).integers(0, 4, graph.num_vertices)

    def found(beside: Sequence[int]) -> dict[int, float]:
        given = graph.topology, graph.split("train"), homes, 1, 4, ModelCentricStrategy(), 30, [3, 2], beside
        reads = remote_reads(*given)
        return dict(zip(reads.vertices.tolist(), reads.accesses.tolist(), strict=True))

    of_all, of_others = found(()), found((0, 3))
    assert {int(homes[v]) for v in of_all} == {0, 2, 3}
    assert of_others == {v: visits for v, visits in of_all.items() if homes[v] == 2}


@pytest.mark.parametrize("machines", [(0, 0, 0), (0, 1, 0)])
def test_only_rows_that_are_sent_are_cached_and_rounded(machines: tuple[int, ...]) -> None:
    graph = random_graph(seed=1)
    homes = (np.arange(graph.num_vertices) % 3).astype(np.uint8)
    given = settings("graphsage", distributed={"comm_dtype": "float16", "cache": "1MiB"})

    def trained(ranks: DistributedContext) -> tuple[dict[str, int], Any, bool]:
        result, heard = trained_on(ranks, graph, homes, given, machines=machines)
        says = any(isinstance(event, Notice) and event.text == ROUNDED for event in heard)
        return ranks.counts.sent(), result.summary.get("row_cache"), says

    for sent, told, says in results_of(3, trained):
        if machines == (0, 0, 0):
            assert (told, says) == (None, False)
            assert not {"rows", "cache"} & sent.keys()
        else:
            # Everything fits.
            assert (told["hit_rate"], sent["rows"], says) == (1.0, 0, True)
            assert sent["cache"] > 0


def test_what_does_not_travel_is_not_rounded() -> None:
    graph = random_graph(seed=1, sparse=True)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    given = settings("graphsage", distributed={"comm_dtype": "float16"})
    with pytest.raises(
        ConfigError, match=r"distributed\.comm_dtype=float16 has no effect on the sparse rows"
    ):
        results_of(2, lambda ranks: trained_on(ranks, graph, homes, given))
    for setting in ("cache=20%", "comm_dtype=bfloat16"):
        name, _, value = setting.partition("=")
        config = build_config({"distributed": {"strategy": "p3", name: value}})
        assert f"strategy=p3 does not support distributed.{name}" in find_rank_problem(config)
