"""What a step over a whole graph is said to take, beside what the engine takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from recorded_steps import ALONE, LARGE, Recorded, model_of, scored, sizes_of, without_loops

from hyrt.fullgraph.plan import CACHE_DIVISOR, DestinationSubset
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective.classification import Classification
from hyrt.predict.step_dry_run import StepDryRun, full_graph_step
from hyrt.sampling.full_sampler import FullSampler

MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn, narrow": {"kind": "gcn", "hidden": 2},
    "gcn, masks": {"kind": "gcn", "dropout": 0.5, "input_dropout": 0.3, "layers": 3},
    "gcn, one layer": {"kind": "gcn", "layers": 1},
    "graphsage": {"kind": "graphsage"},
    "graphsage, residual": {"kind": "graphsage", "norm": "layer", "residual": True, "layers": 3},
    "graphsage, narrow": {"kind": "graphsage", "hidden": 2, "aggregate": "sum"},
    "graphsage, max": {"kind": "graphsage", "aggregate": "max", "layers": 3},
    "gin": {"kind": "gin"},
    "gin, residual": {"kind": "gin", "residual": True, "layers": 3, "input_dropout": 0.2},
    "gat": {"kind": "gat", "heads": 2},
    "gat, residual": {"kind": "gat", "heads": 4, "residual": True, "layers": 3},
}


@pytest.fixture(autouse=True)
def no_loops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    without_loops(monkeypatch)
    with torch_threads(1):
        yield


def mapped_features(graph: Graph, folder: Path) -> InPlaceFeatures:
    np.save(folder / "x.npy", graph.features.values)  # type: ignore[attr-defined]
    return InPlaceFeatures(np.load(folder / "x.npy", mmap_mode="r"))


@pytest.mark.parametrize("memory_bytes", [0, LARGE], ids=["not kept", "kept"])
@pytest.mark.parametrize("features", ["dense", "sparse", "mapped"])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_what_was_said(name: str, features: str, memory_bytes: int, tmp_path: Path) -> None:
    graph = random_graph(200, features=40, sparse=features == "sparse")
    model, targets = model_of(graph, **MODELS[name]), graph.split("train")[:20]
    sampler = FullSampler(graph, targets, len(model.layers), seed=3)
    batch = sampler.sample(0, sampler.units(0), ALONE)
    assert batch.full_graph is not None
    inputs: Any = torch.from_numpy(graph.features.values) if features == "dense" else None  # type: ignore
    if features == "mapped":
        inputs = mapped_features(graph, tmp_path)
    elif features == "sparse":
        assert isinstance(graph.features, SparseFeatures)
        inputs = SparseRows.from_features(graph.features)
    replica = FullGraphReplica.build(model, batch.full_graph, inputs, memory_bytes=memory_bytes)
    chain = replica._chain
    chain.memory = recorded = Recorded(chain.memory)  # type: ignore[assignment]
    walk = StepDryRun(chain.plan, sizes_of(graph, targets, mapped=features == "mapped"))
    walk.step()
    replica.step(batch, Classification(), ALONE)
    assert recorded.events == walk.pool.events
    assert replica.matrix_bytes == sum(walk.pool.arrays.values())
    walk.scores()
    replica.compute_scores(scored(graph), ALONE)
    assert recorded.events == walk.pool.events
    for _ in range(2):  # The memory of the first step and evaluation is enough for all later ones.
        replica.step(batch, Classification(), ALONE)
        replica.compute_scores(scored(graph), ALONE)
    assert replica.matrix_bytes == sum(walk.pool.arrays.values())


@pytest.mark.parametrize("targets", [20, 90, None])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_arrays_are_those_that_the_engine_keeps(name: str, sparse: bool, targets: int | None) -> None:
    graph = random_graph(200, features=40, sparse=sparse)
    model = model_of(graph, **MODELS[name])
    chosen = np.arange(200) if targets is None else graph.split("train")[:targets]
    inputs: Any = (
        SparseRows.from_features(graph.features)
        if isinstance(graph.features, SparseFeatures)
        else torch.from_numpy(graph.features.values)  # type: ignore[attr-defined]
    )
    sampler = FullSampler(graph, chosen, len(model.layers), seed=3)
    batch = sampler.sample(0, sampler.units(0), ALONE)
    assert batch.full_graph is not None
    replica = FullGraphReplica.build(model, batch.full_graph, inputs, memory_bytes=LARGE)
    replica.step(batch, Classification(), ALONE)
    replica.compute_scores(scored(graph), ALONE)
    found = dict(
        full_graph_step(model, sizes_of(graph, chosen), memory_bytes=LARGE * CACHE_DIVISOR, threads=1).arrays
    )
    chain = replica._chain
    factors = {
        id(each): each.nbytes
        for gathering in chain.gatherings
        for each in (getattr(gathering, s, None) for s in ("row_scale", "source_scale", "self_scale"))
        if each is not None
    }
    at = DestinationSubset.from_vertices(batch.targets, graph.topology, transpose=True)
    numbers = [batch.full_graph.vertices, chain.vertices, graph.topology.in_degrees]
    numbers += [] if at is None else [at.positions]
    of_vertices = sum(each.nbytes for each in numbers) + sum(factors.values())
    assert found.pop("vertices, degrees, their factors") == of_vertices
    turned = 0 if at is None else sum(each.nbytes for each in at.transposed or ())
    assert found.pop("edges into targets, by source", 0) == turned
    for beside in ("rows of the targets", "scores of an evaluation"):
        found.pop(beside, None)
    found.pop("chunks of rows, at most")
    weights = sum(each.numel() * each.element_size() for each in model.parameters())
    assert found.pop("parameters, gradients, optimizer") == 6 * weights
    assert sum(found.values()) == replica.matrix_bytes
