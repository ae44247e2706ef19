"""Ranks that compute their blocks of a graph in chunks train what one process trains."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import HostChunkMemory
from hyrt_devices.opencl import OpenclDevice
from unit.distributed.ranks_in_threads import on_ranks, results_of
from unit.distributed.test_distributed_training import losses, trained_alone, weights
from unit.distributed.test_full_graph_on_ranks import EPOCHS, blocks_of, check, settings, trained_on

from hyrt.errors import DeviceOutOfMemoryError, HyrtError, RankFailureError
from hyrt.graph.graph import Graph
from hyrt.telemetry.events import Event, StepMetrics

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
# As whole graphs in ranks have it: one loop is compiled for all.
GAT: dict[str, Any] = {"kind": "gat", "heads": 2, "attention_dropout": 0.3}
GCN: dict[str, Any] = {"kind": "gcn", "layers": 3, "input_dropout": 0.3}


def told_chunks(events: list[Event]) -> list[dict[str, float]]:
    """What each device says of the chunks of the last step."""
    return list([event for event in events if isinstance(event, StepMetrics)][-1].chunks.values())


CASES: dict[str, tuple[int, dict[str, Any], list[str], dict[str, Any]]] = {
    "gcn, 4 ranks": (4, GCN, ["cpu:0"], {"chunks": 2}),
    "graphsage, 3 ranks": (3, {"kind": "graphsage", "layers": 3}, ["cpu:0"], {"chunks": 4}),
    "one layer, 2 ranks": (2, {"kind": "gcn", "layers": 1}, ["cpu:0"], {"chunks": 2}),
    "two devices a rank, rows filtered": (
        *(2, {"kind": "graphsage"}, ["cpu:0", "cpu:1"]),
        {"chunks": 4, "filter_below": 0.9},
    ),
    "sums under norms and residual connections": (2, {"kind": "deepgcn"}, ["cpu:0"], {"chunks": 3}),
    "attention on two devices a rank": (2, GAT, ["cpu:0", "cpu:1"], {"chunks": 4}),
    "sums come and go": (2, {"kind": "graphsage"}, ["cpu:0"], {"chunks": 3, "order": "row-column"}),
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_on_ranks_train_what_one_process_trains(name: str) -> None:
    size, model, devices, chunks = CASES[name]
    graph = random_graph(300, symmetric=size == 3, sparse=size == 4)
    given = settings(model)
    alone = trained_alone(graph, given)
    blocks = blocks_of(graph, size)
    given |= {"fullgraph": chunks, "devices": devices}
    found = results_of(size, lambda ranks: trained_on(ranks, graph, blocks, given))
    check(found, alone)
    for _, events, _ in found:
        [told] = told_chunks(events)
        assert told["intervals"] == chunks["chunks"]
        assert bool(told["filtered"]) == ("filter_below" in chunks)


@needs_opencl
@pytest.mark.parametrize(
    "model",
    [
        GAT,
        {"kind": "graphsage", "aggregate": "max"},
        {"kind": "ggcn"},
        {"kind": "deepgcn"},
    ],
    ids=lambda model: model["kind"],
)
def test_layers_on_ranks_loop_on_their_devices(model: dict[str, Any]) -> None:
    graph = random_graph(300, symmetric=False)
    given = settings(model)
    alone, blocks = trained_alone(graph, given), blocks_of(graph, 2)
    given |= {"devices": ["opencl:0"], "fullgraph": {"chunks": 3, "in_flight": 2}}
    found = results_of(2, lambda ranks: trained_on(ranks, graph, blocks, given))
    check(found, alone)
    for _, events, _ in found:
        [told] = told_chunks(events)
        assert told["intervals"] == 3
        assert told["out_bytes"] > 0


def without_targets(graph: Graph, size: int) -> np.ndarray:
    """Blocks of which the first has rows that others need, but nothing to train."""
    blocks = blocks_of(graph, size)
    blocks[np.isin(np.arange(graph.num_vertices), graph.split("train")) & (blocks == 0)] = size - 1
    return blocks


@needs_opencl
@pytest.mark.parametrize(
    "model",
    [
        GAT,
        {"kind": "gcn", "norm": "layer"},
    ],
    ids=lambda model: model["kind"],
)
def test_one_rank_loops_on_its_device_and_the_other_on_its_cores(model: dict[str, Any]) -> None:
    graph = random_graph(300, symmetric=False)
    given = settings(model)
    alone, blocks = trained_alone(graph, given), blocks_of(graph, 2)
    asked = [given, given | {"devices": ["opencl:0"], "fullgraph": {"chunks": 3}}]
    check(results_of(2, lambda ranks: trained_on(ranks, graph, blocks, asked[ranks.rank])), alone)


@needs_opencl
def test_a_rank_without_targets_loops_over_the_edges_of_others() -> None:
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "ggcn"})
    alone, blocks = trained_alone(graph, given), without_targets(graph, 2)
    given |= {"devices": ["opencl:0"], "fullgraph": {"chunks": 3}}
    check(results_of(2, lambda ranks: trained_on(ranks, graph, blocks, given)), alone)


@pytest.mark.parametrize("algorithm", ["1d", "1d-oblivious"])
def test_a_rank_without_targets_computes_for_the_others(algorithm: str) -> None:
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3}, distributed={"algorithm": algorithm})
    alone, blocks = trained_alone(graph, given), without_targets(graph, 3)
    given |= {"fullgraph": {"chunks": 2}}
    check(results_of(3, lambda ranks: trained_on(ranks, graph, blocks, given)), alone)


def test_ranks_cut_their_blocks_as_their_own_devices_ask() -> None:
    """One that asks for chunks makes all train in them; equal runs have equal bits."""
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3})
    alone, blocks = trained_alone(graph, given), blocks_of(graph, 3)
    asked = [given, given | {"fullgraph": {"chunks": 2}}, given | {"fullgraph": {"chunks": 5}}]

    def train() -> list[Any]:
        return results_of(3, lambda ranks: trained_on(ranks, graph, blocks, asked[ranks.rank]))

    first, second = train(), train()
    check(first, alone)
    assert [told_chunks(events)[0]["intervals"] for _, events, _ in first] == [1, 2, 5]
    assert losses(first[0][1]) == losses(second[0][1])
    assert torch.equal(weights(first[0][0]), weights(second[0][0]))


def test_rows_travel_as_often_as_layers_need_them() -> None:
    """Features once, and no row of which a rank has no edge."""
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3}, evaluate={"every": 1000})
    given |= {"fullgraph": {"chunks": 2}}
    blocks = blocks_of(graph, 2)
    found = results_of(2, lambda ranks: trained_on(ranks, graph, blocks, given))
    columns = 8 + 8
    topology = graph.topology
    destinations = np.repeat(np.arange(300), np.diff(topology.indptr))
    remote = []
    for rank, (_, _, received) in enumerate(found):
        sources = np.unique(topology.indices[blocks[destinations] == rank])
        remote.append(int((blocks[sources] != rank).sum()))
        assert received["rows"] == 4 * remote[-1] * (graph.num_features + EPOCHS * columns)
    gradients = sum(received["row gradients"] for _, _, received in found)
    assert gradients == 4 * EPOCHS * columns * sum(remote)


# Model, ranks, algorithm, and how each rank cuts its block.
COPIES: dict[str, tuple[dict[str, Any], int, dict[str, Any], list[dict[str, Any]]]] = {
    "gcn, 2 copies at 6, a block without targets": (
        GCN,
        6,
        {"algorithm": "1.5d"},
        [{"chunks": 2}, {"chunks": 3}],
    ),
    "graphsage, 4 copies at 8, oblivious": (
        *({"kind": "graphsage", "layers": 3}, 8, {"algorithm": "1.5d-oblivious", "replication": 4}),
        [{"chunks": 2}],
    ),
    "gin, one block, sums come and go": (
        *({"kind": "gin", "norm": "none"}, 2, {"algorithm": "1.5d"}),
        [{"chunks": 3, "order": "row-column"}],
    ),
    "graphsage, filtered": (
        *({"kind": "graphsage"}, 4, {"algorithm": "1.5d"}),
        [{"chunks": 3, "filter_below": 0.9}],
    ),
    "what edges make of both ends": ({"kind": "ggcn"}, 4, {"algorithm": "1.5d"}, [{"chunks": 2}]),
}


@pytest.mark.parametrize("name", COPIES)
def test_ranks_of_one_block_add_up_what_chunks_have_gathered(name: str) -> None:
    model, size, distributed, asked = COPIES[name]
    graph = random_graph(300, symmetric=False)
    given = settings(model)
    alone = trained_alone(graph, given)
    copies = distributed.get("replication", 2)
    blocks = (without_targets if model is GCN else blocks_of)(graph, size // copies)
    chosen = [given | {"distributed": distributed, "fullgraph": each} for each in asked]
    found = results_of(size, lambda ranks: trained_on(ranks, graph, blocks, chosen[ranks.rank % len(asked)]))
    check(found, alone)
    for rank, (_, events, _) in enumerate(found):
        [told] = told_chunks(events)
        assert told["intervals"] == asked[rank % len(asked)]["chunks"]


def test_what_travels_in_chunks_of_copies_is_what_the_grid_says() -> None:
    """Rows in a column, and for each block what its ranks add up and share."""
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3}, evaluate={"every": 1000})
    given |= {"fullgraph": {"chunks": 2}, "distributed": {"algorithm": "1.5d"}}
    blocks = blocks_of(graph, 2)
    found = results_of(4, lambda ranks: trained_on(ranks, graph, blocks, given))
    targets = np.isin(np.arange(300), graph.split("train"))
    for block in range(2):
        received = [found[2 * block + column][2] for column in range(2)]
        num, num_targets = int((blocks == block).sum()), int((targets & (blocks == block)).sum())
        # Two ranks add up, each getting as many bytes as there are: features once, then 8 columns at all
        # vertices and 8 at the targets. Gradients come to the rank that has not multiplied with these rows.
        summed = 4 * (num * graph.num_features + EPOCHS * 8 * (num + num_targets))
        shared = 4 * EPOCHS * num * (8 + 8)
        assert [each["partial sums"] for each in received] == [
            summed + shared * (column != block) for column in range(2)
        ]


def test_a_device_that_fails_on_ranks_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns cannot be computed by the other one: ranks have gone on."""
    graph = random_graph(100, symmetric=False)
    given = settings({"kind": "gcn"}, fullgraph={"chunks": 2}, devices=["cpu:0", "cpu:1"])
    given["runtime"] = {**given["runtime"], "on_device_loss": "continue"}
    blocks, take = blocks_of(graph, 2), HostChunkMemory.allocate

    def takes(room: HostChunkMemory, chunks: Any) -> Any:
        kernels = take(room, chunks)
        if room.name == "cpu:1":

            def gather(*args: Any, **named: Any) -> None:
                raise RuntimeError("it has burnt")

            kernels.gather = gather
        return kernels

    monkeypatch.setattr(HostChunkMemory, "allocate", takes)
    errors = on_ranks(2, lambda ranks: trained_on(ranks, graph, blocks, given))
    assert all(isinstance(error, HyrtError) for error in errors), errors
    assert any("cpu:1" in str(error) and "it has burnt" in str(error) for error in errors)


def test_memory_that_ends_before_the_first_step_costs_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver with less memory than it says; after ranks have begun a step, they end with the remedy."""
    graph = random_graph(300, symmetric=False)
    given = settings({"kind": "gcn", "layers": 3})
    alone, blocks = trained_alone(graph, given), blocks_of(graph, 2)
    asked = given | {"fullgraph": {"in_flight": 1}}
    take, failed = HostChunkMemory.allocate, threading.Event()

    def takes_once(room: HostChunkMemory, chunks: Any) -> Any:
        if not failed.is_set():
            failed.set()
            raise DeviceOutOfMemoryError("no room")
        return take(room, chunks)

    monkeypatch.setattr(HostChunkMemory, "allocate", takes_once)
    found = results_of(2, lambda ranks: trained_on(ranks, graph, blocks, asked))
    check(found, alone)
    assert sorted(told_chunks(events)[0]["intervals"] for _, events, _ in found) == [1, 2]
    failed.clear()

    def takes_too_much(room: HostChunkMemory, chunks: Any) -> Any:
        kernels = take(room, chunks)

        def gather(*args: Any, **named: Any) -> None:
            raise DeviceOutOfMemoryError("no room")

        kernels.gather = gather
        return kernels

    monkeypatch.setattr(HostChunkMemory, "allocate", takes_too_much)
    errors = on_ranks(2, lambda ranks: trained_on(ranks, graph, blocks, asked))
    told = [error for error in errors if not isinstance(error, RankFailureError)]
    assert any("a rank cannot repeat a step by itself" in str(error) for error in told), errors
    assert all("fullgraph.chunks=2" in str(error) for error in told)
