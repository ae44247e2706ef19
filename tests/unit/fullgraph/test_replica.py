"""Steps over a whole graph in chunks of rows, beside autograd over the same mini-batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from hyrt.fullgraph.forward import FullGraphForward
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.plan import DestinationSubset, is_decomposable, plan_full_graph
from hyrt.fullgraph.replica import FullGraphReplica, FullGraphStepTotals
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective.classification import Classification
from hyrt.runtime.workers import Workers
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.minibatch import MiniBatch

ALONE = Workers(1, "test")
OBJECTIVE = Classification(label_smoothing=0.1)
# Beside hidden rows that are wider, as wide or narrower, and all in vectors of eight numbers, full or not:
# loops are compiled for each size of a vector, and those of attention for each width of a head.
SIZES: dict[str, Any] = {"features": 6, "classes": 6}
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn, narrow": {"kind": "gcn", "hidden": 5},
    "gcn, all masks": {"kind": "gcn", "dropout": 0.5, "input_dropout": 0.3, "layers": 3},
    "gcn, one layer": {"kind": "gcn", "layers": 1},
    "deepgcn": {"kind": "deepgcn", "norm": "layer", "residual": True, "dropout": 0.2, "layers": 4},
    "graphsage": {"kind": "graphsage", "dropout": 0.3},
    "graphsage, sum": {"kind": "graphsage", "aggregate": "sum", "hidden": 5, "layers": 3},
    "graphsage, one layer": {"kind": "graphsage", "layers": 1, "input_dropout": 0.2},
    "graphsage, norm": {"kind": "graphsage", "norm": "layer", "residual": True, "layers": 3},
    "graphsage, max": {"kind": "graphsage", "aggregate": "max", "hidden": 6},
    "graphsage, max, masks": {"kind": "graphsage", "aggregate": "max", "input_dropout": 0.2, "layers": 3},
    "gin": {"kind": "gin"},
    "gin, norm": {"kind": "gin", "norm": "layer", "residual": True, "dropout": 0.2, "layers": 3},
    **{
        name: {"kind": "gat", "hidden": 12, "heads": 2, **more}
        for name, more in {
            "gat": {},
            "gat, masks": {"attention_dropout": 0.6, "dropout": 0.3},
            "gat, one head at last": {"options": {"out_heads": 1}},
            "gat, all": {"dropout": 0.4, "residual": True, "norm": "layer", "layers": 3},
        }.items()
    },
}


def model_of(graph: Graph, **settings: Any) -> GNN:
    chosen = {"hidden": 8, "layers": 2, **settings}
    torch.manual_seed(5)
    model = GNN(
        Architecture(in_features=graph.num_features, num_classes=graph.num_classes, **chosen)
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, dtype=torch.float64))
    return model


def inputs_of(graph: Graph) -> torch.Tensor | SparseRows:
    features = graph.features
    if isinstance(features, SparseFeatures):
        return SparseRows.from_features(features)
    return torch.from_numpy(features.values.astype(np.float64))


def batch_of(graph: Graph, layers: int, targets: int | None = None) -> MiniBatch:
    """The whole graph, of whose training vertices some may be the targets."""
    weights = np.linspace(0.5, 2, graph.num_classes).astype(np.float32)
    chosen = graph.split("train")[:targets]
    sampler = FullSampler(graph, chosen, layers, seed=3, class_weights=weights)
    return sampler.sample(4, sampler.units(4), ALONE)


def replica_of(
    model: GNN, graph: Graph, batch: MiniBatch, rows: int, kept: int, *, keeps_rows: bool | None = None
) -> FullGraphReplica:
    """One that computes `rows` rows at a time; again, unless told otherwise, where `kept` bytes are none."""
    assert batch.full_graph is not None
    inputs = inputs_of(graph)
    is_sparse = isinstance(inputs, SparseRows)
    plan = plan_full_graph(model, graph.num_vertices, graph.num_edges, is_sparse=is_sparse, memory_bytes=kept)
    features = InputRows(inputs, plan.dtype)
    plan = replace(plan, chunk_rows=rows, saves_activations=kept > 0 if keeps_rows is None else keeps_rows)
    return FullGraphReplica(batch.full_graph, FullGraphForward(plan, batch.full_graph, features))


def by_autograd(model: GNN, graph: Graph, batch: MiniBatch) -> FullGraphStepTotals:
    assert batch.target_rows is not None
    assert batch.target_weights is not None
    scores = model.train()(batch.blocks, inputs_of(graph))[torch.from_numpy(batch.target_rows)]
    labels, weights = torch.from_numpy(batch.labels), torch.from_numpy(batch.target_weights)
    loss = OBJECTIVE.loss_sum(scores, labels, weights)
    gradients = list(torch.autograd.grad(loss, list(model.parameters())))
    return FullGraphStepTotals(
        float(loss.detach()), {"correct": float((scores.argmax(1) == labels).sum())}, gradients
    )


def assert_equal_steps(ours: FullGraphStepTotals, theirs: FullGraphStepTotals) -> None:
    assert ours.loss_sum == pytest.approx(theirs.loss_sum, rel=1e-9)
    assert ours.counts["correct"] == theirs.counts["correct"]
    for mine, other in zip(ours.gradients, theirs.gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-7)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


EACH_KIND = ["gcn, all masks", "graphsage, sum", "graphsage, max, masks", "gin, norm", "gat, all"]
# Directed graphs, below, are sparse; dense ones are those of the steps over all vertices.
CASES = [
    *((name, True) for name in MODELS),
    *((name, False) for name in (*EACH_KIND, "gcn, narrow", "gcn, one layer", "graphsage, one layer")),
]


@pytest.mark.parametrize(("name", "symmetric"), CASES)
def test_a_step_is_that_of_autograd(name: str, symmetric: bool) -> None:
    # Sparse rows become dense before a maximum, in float32.
    graph = random_graph(300, sparse=not symmetric and "max" not in name, symmetric=symmetric, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers))
    expected = by_autograd(model, graph, batch)
    for rows, kept in ((110, 0), (1000, 1 << 30)):
        replica = replica_of(model, graph, batch, rows, kept)
        for _ in range(2):  # The second step has the memory of the first.
            assert_equal_steps(replica.step(batch, OBJECTIVE, ALONE), expected)


@pytest.mark.parametrize(
    ("name", "symmetric"), [*((name, False) for name in MODELS), *((name, True) for name in EACH_KIND)]
)
def test_a_step_with_few_targets_is_that_of_autograd(name: str, symmetric: bool) -> None:
    """Their edges are kept by source, where they are few beside all."""
    graph = random_graph(300, symmetric=symmetric, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers), targets=30)
    at = DestinationSubset.from_vertices(batch.targets, graph.topology, transpose=True)
    assert at is not None
    assert at.transposed is not None
    replica = replica_of(model, graph, batch, rows=110, kept=0)
    assert_equal_steps(replica.step(batch, OBJECTIVE, ALONE), by_autograd(model, graph, batch))


@pytest.mark.parametrize("name", MODELS)
def test_a_step_over_all_vertices_is_that_of_autograd(name: str) -> None:
    graph = random_graph(200, symmetric=False, **SIZES)
    graph.masks["train"][:] = True
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers))
    assert DestinationSubset.from_vertices(batch.targets, graph.topology, transpose=True) is None
    expected = by_autograd(model, graph, batch)
    for rows, kept in ((70, 0), (1000, 1 << 30)):
        replica = replica_of(model, graph, batch, rows, kept)
        for _ in range(2):
            assert_equal_steps(replica.step(batch, OBJECTIVE, ALONE), expected)
        scores = replica.compute_scores(batch.targets, ALONE)
        with torch.no_grad():
            wanted = model.eval()(batch.blocks, inputs_of(graph)).numpy()
        np.testing.assert_allclose(scores, wanted, rtol=1e-5, atol=1e-5)


# Those of all vertices are looked at for each model above.
@pytest.mark.parametrize("name", [*EACH_KIND, "gcn, one layer"])
def test_scores_are_those_of_the_model(name: str) -> None:
    graph = random_graph(300, symmetric=False, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers))
    replica = replica_of(model, graph, batch, rows=70, kept=1 << 30)
    replica.step(batch, OBJECTIVE, ALONE)
    with torch.no_grad():
        expected = model.eval()(batch.blocks, inputs_of(graph)).numpy()
    chosen = np.random.default_rng(0).permutation(300)[:120].astype(np.int32)
    np.testing.assert_allclose(replica.compute_scores(chosen, ALONE), expected[chosen], rtol=1e-5, atol=1e-5)


@given(rows=st.integers(30, 310), threads=st.integers(1, 3), name=st.sampled_from(sorted(MODELS)))
@settings(max_examples=10, deadline=None)
def test_neither_chunks_nor_threads_matter(rows: int, threads: int, name: str) -> None:
    graph = random_graph(300, symmetric=False, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers))
    expected = replica_of(model, graph, batch, 300, 0).step(batch, OBJECTIVE, ALONE)
    in_chunks = replica_of(model, graph, batch, rows, 0)
    alone = in_chunks.step(batch, OBJECTIVE, ALONE)
    assert_equal_steps(alone, expected)
    with Workers(threads, "team") as team:
        shared = in_chunks.step(batch, OBJECTIVE, team)
    assert shared.loss_sum == alone.loss_sum
    assert all(torch.equal(a, b) for a, b in zip(shared.gradients, alone.gradients, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("gcn", np.float16), ("gcn, narrow", np.float32), ("graphsage", np.float32), ("graphsage", np.float16)],
)
def test_features_in_a_file_are_read_there(tmp_path: Path, name: str, dtype: type) -> None:
    graph = random_graph(300, features=70)
    assert isinstance(graph.features, DenseFeatures)
    values = graph.features.values.astype(dtype)
    np.save(tmp_path / "x.npy", values)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    model = model_of(graph, **MODELS[name]).float()
    batch = batch_of(graph, 2)
    assert batch.full_graph is not None
    steps = []
    for matrix in (values, mapped):
        place = InPlaceFeatures(matrix.view(np.uint16) if dtype is np.float16 else matrix)
        replica = FullGraphReplica.build(model, batch.full_graph, place, memory_bytes=1 << 30)
        steps.append(replica.step(batch, OBJECTIVE, ALONE))
    torch.testing.assert_close(steps[0].gradients, steps[1].gradients)
    np.testing.assert_array_equal(mapped, values)


def test_no_matrix_of_scores_is_kept() -> None:
    graph = random_graph(2000, degree=3, classes=40)
    model = model_of(graph, kind="gcn", hidden=4).float()
    batch = batch_of(graph, 2)
    assert batch.full_graph is not None
    place = InPlaceFeatures(graph.features.matrix)
    replica = FullGraphReplica.build(model, batch.full_graph, place, memory_bytes=0)
    replica.step(batch, OBJECTIVE, ALONE)
    # Two matrices of the hidden width, in turn messages, what was gathered and their gradients, and that
    # of the targets.
    assert replica.matrix_bytes <= 4 * 4 * (2 * 2000 + len(batch.targets))


@pytest.mark.parametrize("name", [*EACH_KIND, "deepgcn", "gat, masks"])
def test_matrices_beyond_a_budget_live_in_files_with_the_same_bits(tmp_path: Path, name: str) -> None:
    graph = random_graph(300, symmetric=False, **SIZES)
    model = model_of(graph, **MODELS[name])
    batch = batch_of(graph, len(model.layers))
    assert batch.full_graph is not None
    steps = []
    for limit in (None, 8_000, 0):
        budget = HostMemoryBudget(limit, tmp_path)
        place = InPlaceFeatures(graph.features.matrix.astype(np.float64))
        plan = plan_full_graph(
            model, graph.num_vertices, graph.num_edges, is_sparse=False, memory_bytes=2**30
        )
        chain = FullGraphForward(
            replace(plan, chunk_rows=110), batch.full_graph, InputRows(place, plan.dtype), budget
        )
        replica = FullGraphReplica(batch.full_graph, chain)
        for _ in range(2):
            steps.append(replica.step(batch, OBJECTIVE, ALONE))
        held = chain.memory
        assert held.memory_bytes <= (2**40 if limit is None else limit)
        assert (held.file_bytes > 0) if limit == 0 else (held.file_bytes == 0 or limit is not None)
    for other in steps[1:]:
        assert other.loss_sum == steps[0].loss_sum
        assert all(torch.equal(a, b) for a, b in zip(other.gradients, steps[0].gradients, strict=True))


def test_a_model_with_a_forward_of_its_own_is_not_taken_apart() -> None:
    class Own(GNN):
        def forward(self, blocks: Any, x: Any) -> torch.Tensor:
            return 2 * super().forward(blocks, x)

    graph = random_graph(50)
    architecture = Architecture(in_features=graph.num_features, num_classes=3, hidden=8, layers=2)
    assert is_decomposable(GNN(architecture))
    assert not is_decomposable(Own(architecture))
    assert not is_decomposable(torch.nn.Linear(2, 2))


def test_rows_are_kept_only_where_memory_has_no_limit() -> None:
    graph = random_graph(120, **SIZES)
    model, given = model_of(graph, kind="gcn", dropout=0.5), inputs_of(graph)
    batch = batch_of(graph, 2)
    assert batch.full_graph is not None
    found = []
    for budget in (None, HostMemoryBudget(1 << 30)):
        replica = FullGraphReplica.build(model, batch.full_graph, given, memory_bytes=1 << 30, budget=budget)
        assert replica._chain.plan.saves_activations == (budget is None)
        found.append(replica.step(batch, OBJECTIVE, ALONE))
    for one, other in zip(found[0].gradients, found[1].gradients, strict=True):
        assert torch.equal(one, other)
