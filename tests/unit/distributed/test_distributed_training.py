"""A step on several ranks is the step of one process: any placement, any number of ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from unit.distributed.ranks_in_threads import results_of

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.local_rows import LocalRows, build_global_graph
from hyrt.distributed.rank_setup import set_up_run
from hyrt.distributed.sampling import with_global_degrees
from hyrt.distributed.strategies.local import LocalOrder
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.graph.topology import Topology
from hyrt.runtime.workers import Workers
from hyrt.telemetry.events import EvaluationFinished, Event, StepMetrics
from hyrt.telemetry.hooks import Hook
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training, TrainResult

ALONE = Workers(1, "test")
# Ranks that are threads share torch's generator, from which initial weights are drawn.
ONE_GENERATOR = threading.Lock()


def settings(model: str, /, **sections: Any) -> dict[str, Any]:
    return {
        "model": {"kind": model, "hidden": 8, "layers": 2, "dropout": 0.5, "heads": 2}
        if model == "gat"
        else {"kind": model, "hidden": 8, "layers": 2, "dropout": 0.5},
        "data": {"batch_size": 32},
        "sampler": {"fanout": [4, 3]},
        "train": {"epochs": 4, "lr": 0.01, "weight_decay": 0.0},
        "runtime": {
            **{"sample_threads": 1, "load_threads": 1, "train_threads": 1},
            **sections.pop("runtime", {}),
        },
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        **sections,
    }


def deep(kind: str, layers: int) -> dict[str, Any]:
    """Settings of a model with residuals and norms, which its kind has by default."""
    return {"model": {"kind": kind, "hidden": 8, "layers": layers}, "sampler": {"fanout": [3] * layers}}


def trained_alone(
    graph: Graph,
    given: dict[str, Any],
    order: LocalOrder | None = None,
    module: torch.nn.Module | None = None,
) -> tuple[TrainResult, list[Event]]:
    """What one process trains, with batches in another order or a copy of a module if one is given."""
    heard: list[Event] = []
    config = build_config(given)
    prepared = PreparedRun(config, graph, deepcopy(module))
    if order is not None:
        prepared.sampler.units = order.batch  # type: ignore[method-assign]
    parts = build_run(config, graph, emit=heard.append, prepared=prepared)
    return Training(parts).run(), heard


def own_rows(graph: Graph, homes: np.ndarray, rank: int, machines: Sequence[int] = ()) -> LocalRows:
    """The rows of one rank and, where it is said which machine each rank is on, of the others on its own."""
    places = np.zeros(len(homes), np.int32)
    for each in range(int(homes.max()) + 1):
        places[homes == each] = np.arange((homes == each).sum())
    mine = np.flatnonzero(homes == rank)
    features = graph.features
    if isinstance(features, DenseFeatures):
        beside = {
            other: DenseFeatures(features.values[homes == other])
            for other, machine in enumerate(machines)
            if other != rank and machine == machines[rank]
        }
        return LocalRows(DenseFeatures(features.values[mine]), homes, places, beside)
    return LocalRows(features.take(mine, ALONE), homes, places)


def own_edges(graph: Graph, homes: np.ndarray, rank: int) -> Graph:
    """The graph with the edges into one rank's vertices, as `open_part` gives it."""
    topology = graph.topology
    mine = np.repeat(homes == rank, np.diff(topology.indptr))
    counts = np.where(homes == rank, np.diff(topology.indptr), 0)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    held = (topology.edge_types, topology.edge_weights, topology.edge_features)
    of_edges = [None if each is None else each[mine] for each in held]
    return replace(graph, topology=Topology(indptr, topology.indices[mine], *of_edges))


def trained_on(
    ranks: DistributedContext,
    graph: Graph,
    homes: np.ndarray,
    given: dict[str, Any],
    *,
    split: bool = False,
    hooks: Sequence[Hook] = (),
    machines: Sequence[int] = (),
    checkpoints: Path | None = None,
) -> tuple[TrainResult, list[Event]]:
    config = build_config(given)
    own = own_rows(graph, homes, ranks.rank, machines)
    if split:
        graph = with_global_degrees(own_edges(graph, homes, ranks.rank), ranks.control)
    shared_graph = build_global_graph(config, graph, own, ranks)
    prepared = PreparedRun(config, shared_graph)
    with ONE_GENERATOR:
        assert prepared.model
    # Nobody seeds the generator for the run while another still draws.
    ranks.control.all_reduce(torch.zeros(1), "control")
    mine = set_up_run(config, graph, own, ranks, prepared, has_partitioned_topology=split)
    heard: list[Event] = []
    parts = build_run(
        config,
        mine.graph,
        prepared=prepared,
        shared=mine.shared,
        hooks=[*hooks, *mine.hooks],
        emit=heard.append,
        checkpoints=None if ranks.rank else checkpoints,
        should_stop=lambda: mine.reduction.agreed_signal != 0,
    )
    training = Training(parts)
    if checkpoints is not None and any(checkpoints.glob("step-*")):
        training.resume(load_newest_checkpoint(checkpoints, pytest.fail))
    return training.run(), heard


def weights(result: TrainResult) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1).double() for p in result.model.parameters()])


def losses(heard: list[Event]) -> list[float]:
    return [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]


# The last step of an epoch has one target.
ONE_LEFT: dict[str, Any] = {
    "data": {"batch_size": 53},
    "train": {"epochs": 5, "lr": 0.01, "weight_decay": 0.0},
}
CASES = {
    "graphsage, home, uneven": ("graphsage", 2, "home", False, {"evaluate": {"mode": "sampled"}}),
    "gcn, model-centric": ("gcn", 3, "model-centric", True, {}),
    "gat, hopgnn": ("gat", 3, "hopgnn", False, {}),
    "graphsage, hopgnn, fetching in each of two time steps": (
        *("graphsage", 4, "hopgnn", True),
        {"distributed": {"time_steps": 2, "pre_gather": False}, "runtime": {"pipelined": False}},
    ),
    "gcn, local": ("gcn", 2, "local", False, {}),
    "graphsage, p3": ("graphsage", 3, "p3", False, ONE_LEFT),
    "gin, p3": ("gin", 2, "p3", True, {}),
    "gat, p3": ("gat", 4, "p3", False, ONE_LEFT),
    "gcn, naive-migration": ("gcn", 3, "naive-migration", False, ONE_LEFT),
    "gat, naive-migration": ("gat", 3, "naive-migration", False, {}),
    "gcn with weights, p3": ("gcn", 2, "p3", False, {"weighted": True}),
    "graphsage with weights, naive-migration": (
        *("graphsage", 4, "naive-migration", True),
        {"weighted": True},
    ),
    "gnn-film, hopgnn": ("gnn-film", 2, "hopgnn", False, deep("gnn-film", 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_the_model_of_one_process(case: str) -> None:
    model, size, strategy, sparse, more = CASES[case]
    graph = random_graph(seed=1, sparse=sparse)
    if more.get("weighted"):
        graph, more = with_values(graph), {}
    # The first rank has half of the vertices, and the last none of the training targets.
    rng = np.random.default_rng(2)
    homes = np.where(rng.random(graph.num_vertices) < 0.5, 0, rng.integers(0, size, graph.num_vertices))
    homes[graph.split("train")[homes[graph.split("train")] == size - 1]] = 0
    homes = homes.astype(np.uint8)
    given = settings(model, **more)
    given["distributed"] = {"strategy": strategy, **given.get("distributed", {})}
    order = LocalOrder(graph.split("train"), homes, size, 32, 0) if strategy == "local" else None
    alone, heard_alone = trained_alone(graph, given, order)
    found = results_of(size, lambda ranks: trained_on(ranks, graph, homes, given))
    wanted = weights(alone)
    for result, heard in found:
        assert result.status == "finished"
        assert torch.equal(weights(result), weights(found[0][0]))
        difference = (weights(result) - wanted).norm() / wanted.norm()
        assert difference < 1e-5
        np.testing.assert_allclose(losses(heard), losses(heard_alone), rtol=1e-5)
        assert len(losses(heard)) >= 20
        mine, theirs = (
            [event.metrics for event in events if isinstance(event, EvaluationFinished)]
            for events in (heard, heard_alone)
        )
        assert [list(each) for each in mine] == [list(each) for each in theirs]
        for own, other in zip(mine, theirs, strict=True):
            for split in own:
                assert own[split] == pytest.approx(other[split], rel=1e-4)
        assert result.summary["steps"] == alone.summary["steps"]
