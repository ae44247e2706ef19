"""What is said to stay on the host is what the chunks of a step take there: the engine counts it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import adjacency, random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_perfmodel.platform import Accelerator, Host, Platform

from hyrt.config import build_config
from hyrt.device import DeviceOptions
from hyrt.fullgraph.chunked_trainer import ChunkedTrainer
from hyrt.fullgraph.intervals import ChunkOptions, ChunkOrder
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.graph.graph import Graph
from hyrt.nn.description import ModelDescription, describe
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.predict.chunk_prediction import predict_chunks
from hyrt.predict.chunked_work import ChunkedEdges, EdgeArrays, host_arrays
from hyrt.predict.workload import sampled_workload
from hyrt.testing.cases import full_graph_batches
from hyrt.training.setup import build_model

IN_PLACE = InputPlan("in_place")


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def counted(
    graph: Graph, model: torch.nn.Module, options: ChunkOptions, targets: np.ndarray
) -> tuple[int, ModelDescription]:
    """Bytes on the host after two steps."""
    device = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions(threads=1))
    device.load(model, list(model.parameters()))
    described = describe(model, "cpu:0")
    runs = ChunkedTrainer(described, [device.chunk_memory(0)], options, HostMemoryBudget())
    for batch in full_graph_batches(graph, len(described.layers), targets, IN_PLACE, steps=[0, 1]):
        runs.run(batch, None)
    found = runs.step_stats().host_bytes
    device.close()
    return found, described


def cut(num_rows: int, num: int) -> list[np.ndarray]:
    return [np.arange(i * num_rows // num, (i + 1) * num_rows // num) for i in range(num)]


def by_hand(
    edges: np.ndarray, own: np.ndarray, rows: list[np.ndarray], columns: list[np.ndarray], limit: float
) -> ChunkedEdges:
    """Chunks of a matrix of edges, counted chunk by chunk; `own` marks those of vertices with themselves."""
    filled = total = most = 0
    for i in rows:
        for j in columns:
            chunk, beside = edges[np.ix_(i, j)], own[np.ix_(i, j)]
            filled += int(chunk.any(1).sum())
            used = int((chunk.any(0) | beside.any(0)).sum())
            if 0 < used < limit * len(j):
                total, most = total + used, max(most, used)
    return ChunkedEdges(
        edges=int(edges.sum()), rows=filled, chunks=len(rows) * len(columns), useful=total, max_useful=most
    )


@pytest.mark.parametrize("order", ["column-row", "row-column"])
@pytest.mark.parametrize(
    ("model", "symmetric"),
    [
        ({"kind": "gcn", "layers": 1}, True),
        ({"kind": "gcn", "layers": 2}, True),
        ({"kind": "graphsage", "layers": 2}, False),
        ({"kind": "gcn", "layers": 3}, True),
        ({"kind": "gin", "layers": 4, "norm": "none", "input_dropout": 0.2}, False),
    ],
    ids=lambda each: "".join(map(str, each.values())) if isinstance(each, dict) else str(each),
)
def test_what_is_said_is_what_the_chunks_take(
    model: dict[str, Any], symmetric: bool, order: ChunkOrder
) -> None:
    graph = random_graph(140, degree=3, features=12, symmetric=symmetric)
    config = build_config({"model": {"hidden": 20, **model}, "sampler": {"kind": "full"}})
    targets = np.sort(graph.split("train")[:50])
    edges = adjacency(graph).astype(bool)
    for num, limit in ((1, 0.0), (2, 1.0), (5, 0.6), (9, 1.0)):
        module = build_model(config, graph)
        options = ChunkOptions(num, order, filter_below=limit)
        found, described = counted(graph, module, options, targets)
        filters = limit if order == "column-row" else 0.0
        all_rows = cut(140, num)
        of_targets = cut(50, -(-50 // max(map(len, all_rows))))
        own = np.eye(140, dtype=bool)
        into, mine = edges[targets], own[targets]
        wanted = host_arrays(
            described,
            EdgeArrays(
                into_targets=by_hand(into, mine, of_targets, all_rows, filters),
                from_targets=by_hand(into.T, mine.T, all_rows, of_targets, filters),
                into_all=by_hand(edges, own, all_rows, all_rows, filters),
                from_all=by_hand(edges.T, own, all_rows, all_rows, filters),
            ),
            vertices=140,
            targets=50,
            is_symmetric=symmetric,
            order=order,
        )
        assert sum(wanted.values()) == found, (num, wanted)


# With a limit near what chunks use, chance says which of them are filtered.
@pytest.mark.parametrize(("limit", "cuts"), [(0.0, (2, 5, 12)), (0.95, (12, 16))])
def test_the_prediction_of_a_graph_is_near_what_its_run_takes(limit: float, cuts: tuple[int, ...]) -> None:
    graph = random_graph(2000, degree=8, features=24)
    settings: dict[str, Any] = {
        "model": {"kind": "gcn", "hidden": 32, "layers": 3},
        "sampler": {"kind": "full"},
    }
    platform = Platform(
        name="made up",
        source="made up",
        host=Host(memory_gb_s=20.0, macs_per_s=1e11),
        accelerators=(Accelerator(kind="gpu", memory_gb_s=40.0, macs_per_s=1e12, link_gb_s=2.0),),
    )
    for num in cuts:
        config = build_config({**settings, "fullgraph": {"chunks": num, "filter_below": limit}})
        said = predict_chunks(platform, sampled_workload(config, graph), config)
        assert said is not None
        options = ChunkOptions(num, filter_below=limit)
        found, _ = counted(graph, build_model(config, graph), options, graph.split("train"))
        assert sum(said.swapped.values()) == pytest.approx(found, rel=0.06 if limit else 0.03)
