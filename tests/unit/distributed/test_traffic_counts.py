"""What ranks send in a run is what the strategies count, and time steps are merged as the paper says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hyrt_perfmodel.distributed_epoch import predict_distributed
from hyrt_perfmodel.network import find_network
from hyrt_perfmodel.platform_file import load_platform
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import ALONE, settings, trained_on, weights

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.monitoring import AdaptiveTimeSteps
from hyrt.distributed.strategies.home import HomeStrategy
from hyrt.distributed.strategies.hopgnn import HopGnnStrategy
from hyrt.distributed.strategies.load_balancing import expected_remote_rows
from hyrt.distributed.strategies.model_centric import ModelCentricStrategy
from hyrt.distributed.strategies.naive_migration import NaiveMigrationStrategy
from hyrt.distributed.strategies.p3 import P3Strategy
from hyrt.distributed.strategies.strategy import Seeds, Strategy, Traffic
from hyrt.nn.layer import get_model_inputs
from hyrt.predict.counted_traffic import configured_steps, multiplies_sources
from hyrt.predict.workload import sampled_workload
from hyrt.telemetry.events import EpochEnded
from hyrt.training.setup import PreparedRun

RANKS = 3
CASES: dict[str, tuple[Strategy, dict[str, Any]]] = {
    "model-centric": (ModelCentricStrategy(), {}),
    "home": (HomeStrategy(), {}),
    "hopgnn": (HopGnnStrategy(), {"time_steps": 3}),
    "hopgnn, merged": (HopGnnStrategy(num_times=2), {"time_steps": 2}),
    "p3": (P3Strategy(), {}),
    "naive-migration": (NaiveMigrationStrategy(), {}),
    "p3, gat": (P3Strategy(multiplies_sources=True), {}),
    "naive-migration, gat": (NaiveMigrationStrategy(carries_sources=True), {}),
    "hopgnn, fetching each time": (HopGnnStrategy(pre_gather=False), {"time_steps": 3, "pre_gather": False}),
}

# Whose first layer multiplies the rows of all sources.
MODELS = {"p3, gat": "gat", "naive-migration, gat": "gat"}


@pytest.mark.parametrize("case", CASES)
def test_as_much_travels_as_is_counted(case: str) -> None:
    chosen, given = CASES[case]
    graph = random_graph(seed=1)
    homes = (np.random.default_rng(3).permutation(graph.num_vertices) % RANKS).astype(np.uint8)
    told = settings(MODELS.get(case, "graphsage"), distributed={"strategy": case.partition(",")[0], **given})
    of_sources = case in MODELS
    told["train"]["epochs"] = 1
    prepared = PreparedRun(build_config(told), graph)
    steps = prepared.sampler.steps_per_epoch()

    def sent(ranks: DistributedContext) -> dict[str, int]:
        trained_on(ranks, graph, homes, told)
        return ranks.counts.sent()

    found = results_of(RANKS, sent)
    counted = Traffic.zero(RANKS)
    for step in range(steps):
        units = prepared.sampler.units(step)

        def sampled(positions: Any, step: int = step, units: Any = units) -> Any:
            return prepared.sampler.sample(step, units[positions], ALONE, in_place=False).blocks[0]

        expected = expected_remote_rows(graph.topology, units, homes, RANKS, 4)
        placement = chosen.place(Seeds(homes[units], RANKS, lambda expected=expected: expected))
        counted += chosen.traffic(placement, homes, sampled)
    row_bytes = 4 * graph.num_features
    model_bytes = 2 * sum(parameter.nbytes for parameter in prepared.model.parameters())
    for name, traffic, size in (
        ("rows", counted.rows, row_bytes),
        ("hidden", counted.hidden, 4 * 8),
        ("partials", counted.partials, row_bytes if of_sources else 2 * row_bytes),
        ("models", counted.models, model_bytes),
    ):
        assert [each.get(name, 0) for each in found] == (traffic.sum(axis=1) * size).tolist(), name


@pytest.mark.parametrize("case", ["home", "hopgnn, merged"])
def test_predicted_gradients_and_models_are_those_that_a_run_sends(case: str) -> None:
    """In all steps of an epoch, of which the last has few targets."""
    chosen, given = CASES[case]
    graph = random_graph(seed=1)
    homes = (np.random.default_rng(3).permutation(graph.num_vertices) % RANKS).astype(np.uint8)
    told = settings("graphsage", distributed={"strategy": case.partition(",")[0], **given})
    told["train"]["epochs"] = 1
    told["data"]["batch_size"] = 48
    config = build_config(told)
    prepared = PreparedRun(config, graph)
    training = sampled_workload(config, graph, prepared.sampler)
    steps = prepared.sampler.steps_per_epoch()
    assert 1 < training.targets_per_epoch / training.batch_size < steps

    def sent(ranks: DistributedContext) -> dict[str, int]:
        trained_on(ranks, graph, homes, told)
        return ranks.counts.sent()

    found = results_of(RANKS, sent)
    counted = configured_steps(config, graph, homes, RANKS, prepared.sampler)
    traffic = counted.traffic(chosen, training.at(1.0))
    expected = predict_distributed(
        chosen.name, load_platform("h200"), training, traffic, find_network("1gbit")
    )
    # The model of performance knows the matrices, but not the biases.
    parameters = sum(parameter.nbytes for parameter in prepared.model.parameters())
    biased = parameters / (4 * training.at(1.0).num_weights)
    assert 1 <= biased < 1.1
    models, gradients = (biased * expected.epoch_bytes[name] for name in ("models", "gradients"))
    assert sum(each.get("models", 0) for each in found) == pytest.approx(models)
    # The loss, the counts and the signals of a step are sent with its gradients: up to 25 numbers.
    most_more = 2 * (RANKS - 1) * steps * 25 * 8
    assert gradients < sum(each["gradients"] for each in found) < gradients + most_more


@pytest.mark.parametrize("kind", ["gcn", "graphsage", "gin", "gat", "deepgcn", "gnn-film", "commnet"])
def test_what_carries_sources_is_known_without_the_model(kind: str) -> None:
    graph = random_graph(seed=1)
    for more in ({}, {"residual": True}, {"input_dropout": 0.2}, {"aggregate": "max"}):
        told = settings(kind)
        if more.keys() == {"aggregate"} and kind != "graphsage":
            continue
        told["model"] = {"kind": kind, "hidden": 8, "layers": 2, **more}
        config = build_config(told)
        aggregation = get_model_inputs(PreparedRun(config, graph).model).aggregation
        assert multiplies_sources(config) == (aggregation is None or aggregation.reduce == "max"), (
            kind,
            more,
        )


def test_two_trainers_of_a_rank_share_each_time_step() -> None:
    graph = random_graph(seed=1)
    homes = (np.arange(graph.num_vertices) % 2).astype(np.uint8)
    one = settings("graphsage", distributed={"strategy": "hopgnn"})
    two = {**one, "devices": ["cpu:0", "cpu:1"]}
    (first, _), (second, _) = (
        results_of(2, lambda ranks, given=given: trained_on(ranks, graph, homes, given))[0]
        for given in (one, two)
    )
    assert len(second.summary["split"]) == 2
    difference = (weights(first) - weights(second)).norm() / weights(first).norm()
    assert difference < 1e-5


def epoch(number: int, seconds: float) -> EpochEnded:
    return EpochEnded(epoch=number, step=10 * number, seconds=seconds, loss=0.0, mteps=0.0, predicted_s=None)


def test_ranks_merge_by_the_times_of_rank_0() -> None:
    # Epochs of 10 steps; 4 more may have been prepared when one ends, so each number has two epochs, of which
    # the first counts. The second merge makes epochs slower.
    seconds = [9.0, 9.5, 8.0, 7.5, 8.5, 8.2, 7.0]

    def numbers(ranks: DistributedContext) -> list[int]:
        steps = AdaptiveTimeSteps(ranks.control, 10, steps_ahead=4)
        for number, each in enumerate(seconds, start=1):
            steps.on_event(epoch(number, each + 100 * ranks.rank * number))
        resumed = AdaptiveTimeSteps(ranks.control, 10, steps_ahead=4)
        resumed.restore(seconds)
        assert [resumed.num_times(step) for step in range(80)] == [
            steps.num_times(step) for step in range(80)
        ]
        return [steps.num_times(step) for step in (0, 19, 20, 39, 40, 59, 60, 79)]

    by_rank = results_of(5, numbers)
    assert by_rank == [[5, 5, 4, 4, 3, 3, 4, 4]] * 5


def test_a_given_number_of_time_steps_stays() -> None:
    def number(ranks: DistributedContext) -> int:
        steps = AdaptiveTimeSteps(ranks.control, 10, steps_ahead=4, fixed=7)
        steps.on_event(epoch(1, 1.0))
        return steps.num_times(20)

    assert results_of(2, number) == [2, 2]
