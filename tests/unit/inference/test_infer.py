from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import adjacency, dense_features, random_graph

from hyrt.device import HOST_FORMS
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.features import QuantizedFeatures, quantize_graph
from hyrt.graph.row_source import DenseFeatures, SparseFeatures
from hyrt.inference.infer import compact_sources, full_block, infer_layerwise, infer_sampled
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import plan_input
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler


def reference(model: GNN, graph) -> np.ndarray:
    """Dense float64 forward over the whole graph, written from the papers' formulas."""
    a = model.architecture
    A, h = adjacency(graph), dense_features(graph)
    degree = A.sum(1)
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    for i in range(a.layers):
        layer = f"layers.{i}"
        own = h
        if a.kind == "graphsage":
            if a.aggregate == "mean":
                combined = A @ h / np.maximum(degree, 1)[:, None]
            else:
                combined = np.stack([h[row > 0].max(0) if row.any() else np.zeros(h.shape[1]) for row in A])
            h = np.concatenate([h, combined], 1) @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        elif a.kind == "gcn":
            scale = 1 / np.sqrt(degree + 1)
            full = (A + np.eye(len(A))) * scale[:, None] * scale[None, :]
            h = full @ h @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        elif a.kind == "gin":
            hidden = (h + A @ h) @ weights[f"{layer}.inner.weight"].T + weights[f"{layer}.inner.bias"]
            if a.norm == "layer":
                hidden = normed(hidden)
            h = np.maximum(hidden, 0) @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
        else:
            heads = []
            linked = (A + np.eye(len(A))) > 0
            for k in range(a.heads):
                z = h @ weights[f"{layer}.weight"][k].T
                scores = (z @ weights[f"{layer}.destination"][k])[:, None] + (
                    z @ weights[f"{layer}.source"][k]
                )[None]
                scores = np.where(scores > 0, scores, 0.2 * scores)
                scores = np.where(linked, scores, -np.inf)
                alpha = np.exp(scores - scores.max(1, keepdims=True))
                heads.append(alpha / alpha.sum(1, keepdims=True) @ z)
            last = i == a.layers - 1
            h = (np.mean(heads, 0) if last else np.concatenate(heads, 1)) + weights[f"{layer}.bias"]
        if i < a.layers - 1:
            if a.residual:
                shortcut = weights.get(f"shortcuts.{i}.weight")
                h = h + (own if shortcut is None else own @ shortcut.T)
            if a.norm == "layer":
                h = normed(h)
            h = np.maximum(h, 0)
    return h


def normed(rows: np.ndarray) -> np.ndarray:
    """LayerNorm as it begins, with weights of 1 and biases of 0."""
    return (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("kind", ["graphsage", "max", "gcn", "gin", "gat"])
def test_layerwise_inference_is_the_full_graph_model(kind, layers, residual, sparse) -> None:
    graph = random_graph(vertices=120, sparse=sparse)
    torch.manual_seed(1)
    model = GNN(
        Architecture(
            kind="graphsage" if kind == "max" else kind,
            aggregate="max" if kind == "max" else "mean",
            in_features=12,
            hidden=8,
            num_classes=3,
            layers=layers,
            residual=residual,
            norm="layer" if residual else "none",
            dropout=0.5,
            heads=2,
        )
    )
    wanted = np.random.default_rng(0).permutation(120)[:50]
    wanted[7] = wanted[3]
    expected = reference(model, graph)[wanted]
    scale = np.abs(expected).max()
    for budget in (
        1,
        1 << 30,
    ):  # A budget of one byte cuts every vertex into a chunk of its own, and uses files.
        out = infer_layerwise(model, graph, wanted, Workers(2, "t"), memory_bytes=budget)
        np.testing.assert_allclose(out, expected, atol=2e-5 * scale)
    assert model.training
    plan = plan_input(model, graph, HOST_FORMS, fuse=True)
    full = infer_sampled(
        model, graph, wanted, Workers(2, "t"), fanouts=[-1] * layers, batch_size=16, seed=0, plan=plan
    )
    np.testing.assert_allclose(full, expected, atol=2e-5 * scale)


@pytest.mark.parametrize("row_format", ["int8", "bfloat16"])
@pytest.mark.parametrize("kind", ["graphsage", "max", "residual", "gat"])
def test_narrow_rows_are_inferred_from_where_they_are(kind: str, row_format: str, monkeypatch) -> None:
    graph = quantize_graph(random_graph(vertices=120), row_format)
    numbers = np.empty((120, 12), np.float32)
    graph.features.rows(np.arange(120), numbers, Workers(1, "t"))
    torch.manual_seed(1)
    shape = {"in_features": 12, "hidden": 8, "num_classes": 3, "layers": 2}
    aggregate = "max" if kind == "max" else "mean"
    name, residual = "gat" if kind == "gat" else "graphsage", kind == "residual"
    model = GNN(Architecture(kind=name, aggregate=aggregate, residual=residual, input_dropout=0.2, **shape))
    wanted = np.arange(0, 120, 3)
    expected = reference(model, graph.with_features(DenseFeatures(numbers)))[wanted]
    if row_format != "int8" or kind in ("graphsage", "max"):
        # Nothing makes numbers of all rows, or of those of a chunk.
        monkeypatch.setattr(QuantizedFeatures, "rows", lambda *given: pytest.fail("rows were widened"))
    for budget in (1, 1 << 30):
        out = infer_layerwise(model, graph, wanted, Workers(2, "t"), memory_bytes=budget)
        np.testing.assert_allclose(out, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", ["graphsage", "max", "gcn", "gin", "gat"])
def test_sparse_rows_as_wide_as_hidden_ones_take_the_plain_shortcut(kind) -> None:
    graph = random_graph(vertices=80, sparse=True)
    model = GNN(
        Architecture(
            kind="graphsage" if kind == "max" else kind,
            aggregate="max" if kind == "max" else "mean",
            in_features=12,
            hidden=12,
            num_classes=3,
            residual=True,
        )
    )
    expected = reference(model, graph)
    out = infer_layerwise(model, graph, np.arange(80), Workers(1, "t"), memory_bytes=1 << 20)
    np.testing.assert_allclose(out, expected, atol=2e-5 * np.abs(expected).max())


def crowded_graph(sparse: bool, vertices: int = 4000, degree: int = 100, features: int = 300) -> Graph:
    """Every vertex has many neighbours, so that chunks are bound by edges."""
    rng = np.random.default_rng(0)
    indices = np.sort(rng.integers(0, vertices, (vertices, degree), np.int32), 1).ravel()
    store: DenseFeatures | SparseFeatures = DenseFeatures(
        rng.standard_normal((vertices, features)).astype(np.float16)
    )
    if sparse:
        step = 10
        count = features // step
        columns = np.arange(0, features, step) + rng.integers(0, step, (vertices, count))
        store = SparseFeatures(
            np.arange(vertices + 1) * count,
            columns.astype(np.int32).ravel(),
            np.ones(vertices * count, np.float32),
            features,
        )
    everywhere = np.ones(vertices, np.bool_)
    masks = {"train": everywhere, "val": everywhere, "test": everywhere}
    pointer = np.arange(vertices + 1, dtype=np.int64) * degree
    return Graph.from_arrays("crowded", pointer, indices, store, np.zeros(vertices, np.int16), masks)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("kind", ["graphsage", "max", "gcn", "gin", "gat"])
@pytest.mark.parametrize(("budget", "in_file"), [(4 << 20, True), (16 << 20, False)])
def test_arrays_stay_within_the_budget(kind, sparse, budget, in_file, tmp_path: Path) -> None:
    """Hidden matrices of 4 MiB: above a third of the smaller budget, below one of the larger."""
    graph = crowded_graph(sparse, vertices=1000 if sparse and kind == "max" else 4000)
    hidden = 256 * 4000 // graph.num_vertices
    model = GNN(
        Architecture(
            kind="graphsage" if kind == "max" else kind,
            aggregate="max" if kind == "max" else "mean",
            in_features=graph.num_features,
            hidden=hidden,
            num_classes=16,
            residual=True,
            heads=4,
        )
    )
    vertices = np.random.default_rng(0).permutation(graph.num_vertices)
    workers = Workers(1, "t")
    one = np.arange(1)
    infer_layerwise(model, graph, one, workers, memory_bytes=budget)  # Compiles; fills the graph's caches.
    folders = []
    tracemalloc.start()
    try:
        out = infer_layerwise(
            model,
            graph,
            vertices,
            workers,
            memory_bytes=budget,
            scratch=tmp_path,
            between_chunks=lambda: folders.append(len(list(tmp_path.iterdir()))),
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.shape == (graph.num_vertices, 16)
    assert peak < budget
    # A matrix in memory is seen, one in a file is not: the bound is no accident of what is measured.
    assert (peak > hidden * graph.num_vertices * 4) != in_file
    assert not any(folders), "the file's name is gone while it is in use"
    with pytest.raises(FileNotFoundError):
        infer_layerwise(model, graph, one, workers, memory_bytes=1, scratch=tmp_path / "missing")


def test_each_sparse_row_is_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = crowded_graph(sparse=True)
    model = GNN(Architecture(kind="gcn", in_features=graph.num_features, hidden=64, num_classes=3))
    rows = []
    from hyrt.inference import infer

    multiply = infer.sparse_linear
    monkeypatch.setattr(
        infer, "sparse_linear", lambda x, weight: (rows.append(len(x)), multiply(x, weight))[1]
    )
    infer_layerwise(model, graph, np.arange(50), Workers(1, "t"), memory_bytes=1 << 20)
    reached = np.zeros(graph.num_vertices, np.bool_)
    reached[:50] = True
    for _ in range(2):
        edges = graph.topology.indices.reshape(graph.num_vertices, -1)[reached]
        reached[edges.ravel()] = True
    assert len(rows) > 1
    assert sum(rows) == reached.sum()


def test_sources_of_their_own_keep_their_degrees() -> None:
    graph = random_graph(vertices=120)
    topology = graph.topology
    local = np.full(graph.num_vertices, -1, np.int32)
    whole = full_block(graph, np.array([70, 3, 119, 40]), 0, Workers(1, "t"))
    block, sources = compact_sources(graph, whole, local)
    np.testing.assert_array_equal(sources[: block.num_dst], [70, 3, 119, 40])
    assert len(np.unique(sources)) == len(sources) == block.num_src < graph.num_vertices
    np.testing.assert_array_equal(sources[block.columns], whole.columns)
    degrees = np.array([topology.indptr[v + 1] - topology.indptr[v] for v in sources])
    assert len(set(degrees.tolist())) > 1
    np.testing.assert_array_equal(block.source_degrees, degrees)
    assert (local == -1).all()


def test_hidden_rows_and_no_vertices() -> None:
    graph = random_graph(vertices=120)
    model = GNN(Architecture(in_features=12, hidden=8, num_classes=3))
    rows = infer_layerwise(model, graph, np.arange(10), Workers(1, "t"), memory_bytes=1 << 20, layers=1)
    assert rows.shape == (10, 8)
    assert (rows >= 0).all()
    empty = infer_layerwise(model, graph, np.arange(0), Workers(1, "t"), memory_bytes=1 << 20)
    assert empty.shape == (0, 3)


def test_sampled_inference_draws_from_a_stream_that_no_step_uses() -> None:
    graph = random_graph(vertices=240)
    vertices = np.arange(20, 45)
    model = GNN(Architecture(in_features=12, hidden=8, num_classes=3))
    model.eval()
    plan = plan_input(model, graph, HOST_FORMS, fuse=True)
    workers = Workers(1, "t")

    def scores(step: int) -> np.ndarray:
        sampler = NeighborSampler(graph, vertices, [3, 2], 10, 5)
        parts = []
        for start in range(0, len(vertices), 10):
            units = vertices[start : start + 10].astype(sampler.ids)
            batch = sampler.sample(step, units, workers, in_place=plan.in_place)
            Loader(graph.features).load(batch, plan, workers)
            with torch.no_grad():
                parts.append(model(batch.blocks, batch.inputs).numpy())
        return np.concatenate(parts)

    found = infer_sampled(model, graph, vertices, workers, fanouts=[3, 2], batch_size=10, seed=5, plan=plan)
    np.testing.assert_array_equal(found, scores(-1))
    for step in range(4):
        assert not np.array_equal(found, scores(step))
