"""Full-graph training on several ranks is that of one process: any algorithm, any number of ranks."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph, with_values
from hyrt_perfmodel.distributed_epoch import FullGraphWork, algorithm_epoch
from hyrt_perfmodel.network import find_network
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import (
    ONE_GENERATOR,
    losses,
    own_edges,
    own_rows,
    trained_alone,
    weights,
)

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.halo_exchange import broadcast_rows
from hyrt.distributed.local_edges import SpmmTimings
from hyrt.distributed.rank_setup import set_up_full_graph
from hyrt.distributed.sampling import with_global_degrees
from hyrt.graph.graph import Graph
from hyrt.graph.partition.block_volumes import count_block_volumes
from hyrt.nn.message_passing.layer import SagaLayer
from hyrt.nn.model import stack
from hyrt.telemetry.events import EvaluationFinished, Event
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training, TrainResult

EPOCHS = 3


def settings(model: dict[str, Any], **sections: Any) -> dict[str, Any]:
    return {
        "model": {"hidden": 8, "layers": 2, "dropout": 0.5, **model},
        "sampler": {"kind": "full"},
        "train": {"epochs": EPOCHS, "lr": 0.01, "weight_decay": 0.0},
        "runtime": {"sample_threads": 1, "load_threads": 1, "train_threads": 1},
        "evaluate": {"every": 2},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        **sections,
    }


def trained_on(
    ranks: DistributedContext,
    graph: Graph,
    blocks: np.ndarray,
    given: dict[str, Any],
    *,
    split: bool = False,
    module: torch.nn.Module | None = None,
    checkpoints: Path | None = None,
) -> tuple[TrainResult, list[Event], dict[str, int]]:
    config = build_config(given)
    own = own_rows(graph, blocks, ranks.rank // config.distributed.num_replicas)
    if split:
        graph = with_global_degrees(own_edges(graph, blocks, ranks.rank), ranks.control)
    prepared = PreparedRun(config, graph, deepcopy(module))
    with ONE_GENERATOR:
        assert prepared.model
    ranks.control.all_reduce(torch.zeros(1), "control")
    mine = set_up_full_graph(config, graph, own, ranks, prepared, has_partitioned_topology=split)
    heard: list[Event] = []
    parts = build_run(
        config,
        mine.graph,
        prepared=prepared,
        shared=mine.shared,
        emit=heard.append,
        checkpoints=None if ranks.rank else checkpoints,
        should_stop=lambda: mine.reduction.agreed_signal != 0,
    )
    training = Training(parts)
    if checkpoints is not None and any(checkpoints.glob("step-*")):
        training.resume(load_newest_checkpoint(checkpoints, pytest.fail))
    return training.run(), heard, ranks.counts.received()


def blocks_of(graph: Graph, num: int, seed: int = 0) -> np.ndarray:
    """Unequal blocks."""
    generator = np.random.default_rng(seed)
    return generator.choice(num, graph.num_vertices, p=np.arange(1, num + 1) / (num * (num + 1) / 2))


def check(found: list[Any], alone: tuple[TrainResult, list[Event]]) -> None:
    """Losses within 1e-5, weights within 1e-4, and metrics equal to those of one process."""
    expected, heard = alone
    for result, events, _ in found:
        assert losses(events) == pytest.approx(losses(heard), rel=1e-5)
        assert (weights(result) - weights(expected)).abs().max() < 1e-4
        assert torch.equal(weights(result), weights(found[0][0]))
    told = [event.metrics for event in found[0][1] if isinstance(event, EvaluationFinished)]
    wanted = [event.metrics for event in heard if isinstance(event, EvaluationFinished)]
    assert len(told) == len(wanted) == 2
    for mine, theirs in zip(told, wanted, strict=True):
        for name, metrics in theirs.items():
            assert mine[name] == pytest.approx(metrics, abs=0.02)


MODELS = {
    "gcn, 3 layers": {"kind": "gcn", "layers": 3},
    "graphsage": {"kind": "graphsage"},
    "gin": {"kind": "gin"},
    "gat with attention dropout": {"kind": "gat", "heads": 2, "attention_dropout": 0.3},
    "g-gcn": {"kind": "ggcn"},
    "commnet": {"kind": "commnet"},
    # The rows of the second layer are sent as they are.
    "graphsage of maxima": {"kind": "graphsage", "aggregate": "max", "layers": 3},
    "deepgcn": {"kind": "deepgcn"},
}


@pytest.mark.parametrize("name", MODELS)
def test_ranks_train_what_one_process_trains(name: str) -> None:
    graph = random_graph(300, symmetric=False)
    given = settings(MODELS[name])
    blocks = blocks_of(graph, 3)
    alone = trained_alone(graph, given)  # First: ranks that are threads would compile one file at once.
    check(results_of(3, lambda ranks: trained_on(ranks, graph, blocks, given)), alone)


WEIGHTED = {
    "gcn, own edges": ("gcn", 3, {"algorithm": "1d"}),
    "edge-gat": ("edge-gat", 2, {"algorithm": "1d"}),
    "gine, copies": ("gine", 4, {"algorithm": "1.5d", "replication": 2}),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_ranks_read_weights_and_features_of_edges(name: str) -> None:
    kind, size, distributed = WEIGHTED[name]
    graph = with_values(random_graph(300, symmetric=False), columns=2 if kind in ("edge-gat", "gine") else 0)
    given = settings({"kind": kind}, distributed=distributed)
    blocks = blocks_of(graph, size // build_config(given).distributed.num_replicas)
    alone = trained_alone(graph, given)
    split = kind == "gcn"
    check(results_of(size, lambda ranks: trained_on(ranks, graph, blocks, given, split=split)), alone)


ALGORITHMS = {
    "1d at 5, where a rank has no targets": (5, {"algorithm": "1d"}),
    "1d-oblivious at 4": (4, {"algorithm": "1d-oblivious"}),
    "1.5d, 2 copies at 6": (6, {"algorithm": "1.5d"}),
    "1.5d, 4 copies at 8": (8, {"algorithm": "1.5d", "replication": 4}),
    "1.5d, one block": (2, {"algorithm": "1.5d", "replication": 2}),
    "1.5d-oblivious, 2 copies at 4": (4, {"algorithm": "1.5d-oblivious", "replication": 2}),
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains_the_same(name: str) -> None:
    size, distributed = ALGORITHMS[name]
    graph = random_graph(300, symmetric=size == 4)
    given = settings({"kind": "graphsage", "layers": 3, "residual": True}, distributed=distributed)
    num_blocks = size // build_config(given).distributed.num_replicas
    blocks = blocks_of(graph, num_blocks)
    if size in (5, 8):
        # Rows that others need, but nothing to train.
        blocks[np.isin(np.arange(300), graph.split("train")) & (blocks == 0)] = num_blocks - 1
    found = results_of(size, lambda ranks: trained_on(ranks, graph, blocks, given))
    check(found, trained_alone(graph, given))


def test_columns_add_up_what_edges_make_of_both_ends() -> None:
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "ggcn"}, distributed={"algorithm": "1.5d", "replication": 2})
    blocks = blocks_of(graph, 3)
    alone = trained_alone(graph, given)
    check(results_of(6, lambda ranks: trained_on(ranks, graph, blocks, given)), alone)


class Scaled(SagaLayer):
    """What an edge makes of both ends depends on a vector that is trained."""

    accumulate = "sum"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.scale = torch.nn.Parameter(torch.linspace(-0.5, 0.5, in_features))
        self.update = torch.nn.Linear(in_features, out_features)

    def apply_edge(self, edge: Any) -> torch.Tensor:
        return torch.tanh(self.scale * (edge.src + edge.dst))

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return self.update(gathered)


def test_columns_add_up_the_gradients_of_what_edges_are_multiplied_with() -> None:
    graph = random_graph(300, symmetric=False)
    given = settings({}, distributed={"algorithm": "1.5d", "replication": 2})
    module = stack(
        Scaled(graph.num_features, graph.num_features), Scaled(graph.num_features, graph.num_classes)
    )
    blocks = blocks_of(graph, 3)
    alone = trained_alone(graph, given, module=module)
    check(results_of(6, lambda ranks: trained_on(ranks, graph, blocks, given, module=module)), alone)


def needed(graph: Graph, blocks: np.ndarray, to: int) -> int:
    """Distinct vertices of other blocks with an edge into one, by brute force."""
    topology = graph.topology
    into = np.repeat(blocks, np.diff(topology.indptr)) == to
    sources = np.unique(topology.indices[into])
    return int((blocks[sources] != to).sum())


@pytest.mark.parametrize("split", [False, True], ids=["all edges", "own edges"])
def test_what_travels_is_what_the_partition_says(split: bool) -> None:
    graph = random_graph(300, symmetric=False)
    # Raw features are gathered once, and every step and the evaluation gather 8 columns and the classes'.
    given = settings({"kind": "gcn", "layers": 3}, evaluate={"every": 1000})
    blocks = blocks_of(graph, 3)
    found = results_of(3, lambda ranks: trained_on(ranks, graph, blocks, given, split=split))
    columns = 8 + graph.num_classes
    for rank, (_, _, received) in enumerate(found):
        rows = needed(graph, blocks, rank)
        assert received["rows"] == 4 * rows * (graph.num_features + (EPOCHS + 1) * columns)
    # Each needed row's gradient goes back to where the row is.
    assert sum(each["row gradients"] for _, _, each in found) == 4 * EPOCHS * columns * sum(
        needed(graph, blocks, rank) for rank in range(3)
    )


@pytest.mark.parametrize(
    ("algorithm", "copies"), [("1d", 1), ("1d-oblivious", 1), ("1.5d", 2), ("1.5d-oblivious", 2)]
)
def test_an_epoch_sends_what_the_cost_model_says(algorithm: str, copies: int) -> None:
    graph, num = random_graph(300, symmetric=False), 4 // copies
    blocks = blocks_of(graph, num)

    def received(epochs: int) -> int:
        given = settings({"kind": "gcn", "layers": 3}, evaluate={"every": 1000})
        given |= {"distributed": {"algorithm": algorithm}, "train": {"epochs": epochs}}
        found = results_of(num * copies, lambda ranks: trained_on(ranks, graph, blocks, given))
        purposes = ("rows", "row gradients", "partial sums")
        return sum(each.get(purpose, 0) for _, _, each in found for purpose in purposes)

    columns = (8, graph.num_classes)
    work = FullGraphWork(
        forward_widths=columns,
        backward_widths=columns,
        has_only_sums=True,
        target_fraction=len(graph.split("train")) / graph.num_vertices,
        **dict.fromkeys(("edges_s", "rows_s", "gradient_bytes"), 0.0),
        **dict.fromkeys(("matrix_bytes", "feature_bytes", "graph_bytes"), 0.0),
    )
    volumes = count_block_volumes(graph.topology.indptr, graph.topology.indices, blocks, num)
    expected = algorithm_epoch(algorithm, volumes, num * copies, work, find_network("1gbit"))
    # What is exchanged once, and the evaluation at the end, are the same in both; pieces of a sum are rounded
    # to whole bytes.
    assert (received(3) - received(1)) / 2 == pytest.approx(expected.epoch_bytes, rel=1e-4)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_sum_at_one_rank_goes_around_a_ring_and_is_gathered(size: int) -> None:
    """Counted in a network namespace on the loopback interface: 1.50, 2.67, 3.82 and 7.93 times the bytes of
    the tensor with 2, 3, 4 and 8 ranks.
    """

    def work(ranks: DistributedContext) -> tuple[int, int]:
        ranks.rows.start_reduce(torch.ones(1200), 1, "sums").wait()
        return ranks.counts.sent()["sums"], ranks.counts.received()["sums"]

    found = results_of(size, work)
    piece = 4800 // size
    sent = [4800] * size
    sent[1] = (size - 1) * piece
    received = [(size - 1) * piece] * size
    received[1] *= 2
    assert found == list(zip(sent, received, strict=True))


def test_no_less_than_nothing_of_a_product_is_hidden() -> None:
    # A thread is woken later than its rows have arrived.
    late = SpmmTimings(compute_s=1.0, communicate_s=0.02, wait_s=0.024)
    assert (late.hidden_s, late.hidden_fraction) == (0.0, 0.0)
    assert SpmmTimings(compute_s=1.0, communicate_s=0.5, wait_s=0.1).hidden_s == pytest.approx(0.4)


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("num", [0, 3, 17])
def test_rows_of_one_rank_are_handed_out_to_all(size: int, num: int) -> None:
    root = size - 1
    wanted = np.random.default_rng(num).random((num, 3)).astype(np.float32)

    def take(ranks: DistributedContext) -> tuple[np.ndarray, int, int]:
        rows = wanted.copy() if ranks.rank == root else np.full_like(wanted, np.nan)
        broadcast_rows(rows, root, ranks.group("products"), "sums")
        return rows, ranks.counts.sent().get("sums", 0), ranks.counts.received().get("sums", 0)

    found = results_of(size, take)
    for rank, (rows, _, received) in enumerate(found):
        np.testing.assert_array_equal(rows, wanted)
        assert received == (0 if rank == root else wanted.nbytes)
    # Its link carries what two parts less one of the rows are, with as many parts as ranks.
    assert found[root][1] <= 2 * (size - 1) * (-(-num // size)) * 12


def test_equal_runs_have_equal_bits() -> None:
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3})
    blocks = blocks_of(graph, 4)
    first, second = (results_of(4, lambda ranks: trained_on(ranks, graph, blocks, given)) for _ in range(2))
    assert losses(first[0][1]) == losses(second[0][1])
    assert torch.equal(weights(first[0][0]), weights(second[0][0]))
