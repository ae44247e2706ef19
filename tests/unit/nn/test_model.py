"""Whole models, every layer at every depth, against dense float64 matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import dense_reference as dense
import numpy as np
import pytest
import torch
from block_cases import awkward_graph, graph_from, sampled, values
from closeness import assert_close
from model_cases import KINDS, model_of, ours, reference

from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.layers import GatLayer, GinLayer, SageLayer
from hyrt.nn.model import GNN
from hyrt.nn.operators import aggregate as aggregate_module
from hyrt.nn.operators import attention as attention_module
from hyrt.nn.operators.dropout import dropout
from hyrt.nn.operators.linear import linear
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.minibatch import MiniBatch

VARIANTS = {
    "plain": {},
    "residual": {"residual": True},
    "norm": {"norm": "layer"},
    "residual and norm": {"residual": True, "norm": "layer"},
}
# An isolated vertex (3, 11, 40), the hub (5), self loops (0..19), one nothing points from (12).
SOME = [5, 3, 70, 11, 12, 0, 41, 40, 88, 19]


def rows_of(graph: Graph, batch: MiniBatch, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.from_numpy(values(graph)[batch.blocks[0].sources]).to(dtype).requires_grad_()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("fanout", [-1, 3], ids=["all neighbours", "sampled"])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_gradients_equal_the_dense_reference(
    kind: str, fanout: int, depth: int, variant: str
) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [fanout] * depth)
    x = rows_of(graph, batch)
    model = model_of(kind, graph.num_features, depth, **VARIANTS[variant])
    assert_close(ours(model, batch.blocks, x), reference(kind, model, batch.blocks, x), 1e-12)


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_close_to_float64(kind: str, depth: int) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4] * depth)
    x = rows_of(graph, batch, torch.float32)
    model = model_of(kind, graph.num_features, depth, torch.float32, residual=True, norm="layer")
    assert_close(ours(model, batch.blocks, x), reference(kind, model, batch.blocks, x), 1e-5)


@pytest.mark.parametrize(
    "targets", [[5], [3], [3, 11, 40], []], ids=["the hub", "an isolated one", "only isolated ones", "none"]
)
@pytest.mark.parametrize("kind", KINDS)
def test_small_and_empty_mini_batches(kind: str, targets: Sequence[int]) -> None:
    graph = awkward_graph()
    batch = sampled(graph, targets, [3, 3])
    x = rows_of(graph, batch)
    model = model_of(kind, graph.num_features, 2, residual=True, norm="layer")
    found = ours(model, batch.blocks, x)
    assert found["scores"].shape == (len(targets), 5)
    if targets:
        assert_close(found, reference(kind, model, batch.blocks, x), 1e-12)
    else:
        assert all(not v.any() for name, v in found.items() if name != "x")


@pytest.mark.parametrize("kind", KINDS)
def test_a_graph_without_edges_trains_on_own_rows(kind: str) -> None:
    graph = graph_from(
        np.zeros((6, 6), bool), np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    )
    batch = sampled(graph, range(6), [5, 5])
    assert all(block.num_edges == 0 for block in batch.blocks)
    x = rows_of(graph, batch)
    model = model_of(kind, 4, 2)
    assert_close(ours(model, batch.blocks, x), reference(kind, model, batch.blocks, x), 1e-12)


@pytest.mark.parametrize("average", [False, True], ids=["concatenated", "averaged"])
@pytest.mark.parametrize("heads", [1, 2, 5])
def test_heads_are_concatenated_or_averaged(heads: int, average: bool) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4])
    layer = GatLayer(graph.num_features, 6, heads, average=average).double()
    x = rows_of(graph, batch)
    out = layer(batch.blocks[0], x)
    assert out.shape == (len(SOME), 6 if average else 6 * heads)
    expected = dense.gat(batch.blocks[0], x, dense.parameters_of(layer), average)
    assert_close({"out": out}, {"out": expected}, 1e-13)


def test_epsilon_of_gin_weighs_the_own_row() -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4])
    layer = GinLayer(graph.num_features, 6, epsilon=0.7).double()
    x = rows_of(graph, batch)
    expected = dense.gin(batch.blocks[0], x, dense.parameters_of(layer), 0.7)
    assert_close({"out": layer(batch.blocks[0], x)}, {"out": expected}, 1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_masks_stand_where_they_are_documented(kind: str) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [3, 3, 3], step=4)
    x = rows_of(graph, batch)
    model = model_of(kind, graph.num_features, 3, dropout=0.4, input_dropout=0.2)

    def mask(vertices: np.ndarray, width: int, rate: float, layer: int) -> torch.Tensor:
        ones = torch.ones(len(vertices), width, dtype=torch.float64)
        out = dropout(ones, vertices, rate=rate, seed=7, step=4, layer=layer)  # type: ignore[arg-type]
        assert isinstance(out, torch.Tensor)
        return out

    first = batch.blocks[0].sources
    assert first is not None
    masks = {
        "input_mask": mask(first, graph.num_features, 0.2, 0),
        "masks": [mask(block.destinations, 12, 0.4, i + 1) for i, block in enumerate(batch.blocks[:-1])],
    }
    assert_close(ours(model, batch.blocks, x), reference(kind, model, batch.blocks, x, **masks), 1e-12)
    model.eval()
    assert_close(ours(model, batch.blocks, x), reference(kind, model, batch.blocks, x), 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_workers_gives_equal_bits(kind: str) -> None:
    graph = awkward_graph(3000, 5.0, 24)
    batch = sampled(graph, range(0, 3000, 2), [4, 4])
    assert batch.blocks[0].num_dst > 2048
    results = []
    for count in (1, 2, 4):
        model = model_of(
            kind, 24, 2, torch.float32, dropout=0.3, input_dropout=0.1, residual=True, norm="layer"
        )
        team = Workers(count, "hyrt.test")
        with use_workers(team):
            results.append(ours(model, batch.blocks, rows_of(graph, batch, torch.float32)))
        team.close()
    for other in results[1:]:
        for name, tensor in results[0].items():
            assert torch.equal(tensor, other[name]), name


def spoiled_pool() -> BufferPool:
    """A pool whose free memory is full of NaN."""
    pool = BufferPool()
    pieces = [pool.take(size, np.float64) for size in (64, 256, 1024, 4096, 16384) for _ in range(12)]
    for piece in pieces:
        piece.fill(np.nan)
        pool.release(piece)
    return pool


@pytest.mark.parametrize("kind", KINDS)
def test_recycled_memory_changes_no_bit_and_overwrites_nothing_in_use(kind: str) -> None:
    graph = awkward_graph()
    model = model_of(kind, 10, 3, torch.float32, dropout=0.3, input_dropout=0.1, residual=True, norm="layer")
    batches = [sampled(graph, range(step, 90, 4), [4, 3, 2], step=step) for step in range(4)]
    team = Workers(2, "hyrt.test", pool=spoiled_pool())
    with use_workers(team):
        recycled = [ours(model, b.blocks, rows_of(graph, b, torch.float32)) for b in batches]
    team.close()
    for batch, found in zip(batches, recycled, strict=True):
        fresh = ours(model, batch.blocks, rows_of(graph, batch, torch.float32))
        for name, tensor in fresh.items():
            assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("kind", KINDS)
def test_backward_twice_and_no_gradient_at_all(kind: str) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4, 3])
    model = model_of(kind, 10, 2)
    x = rows_of(graph, batch)
    out = model(batch.blocks, x)
    inputs = [x, *model.parameters()]
    first = torch.autograd.grad(out.square().sum(), inputs, retain_graph=True)
    second = torch.autograd.grad(out.square().sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with torch.no_grad():
        assert torch.equal(model(batch.blocks, x), out)
    with torch.inference_mode():
        assert torch.equal(model(batch.blocks, x.detach()), out)


@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_keeps_float32_weights_and_gradients(kind: str) -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4, 4])
    x = rows_of(graph, batch, torch.float32)
    exact = model_of(kind, graph.num_features, 2, torch.float32)
    narrow = model_of(kind, graph.num_features, 2, torch.float32, low_precision=True)
    a, b = ours(exact, batch.blocks, x), ours(narrow, batch.blocks, x)
    assert all(tensor.dtype == torch.float32 for tensor in b.values())
    assert all(parameter.dtype == torch.float32 for parameter in narrow.parameters())
    # Roundings of 2^-9 add up over the products; a ReLU that opens differently shifts a gradient by more.
    size = a["scores"].abs().max()
    off = (a["scores"] - b["scores"]).abs().max()
    assert 0 < off <= 2.0**-5 * size
    for name in a:
        assert (a[name] - b[name]).norm() <= 0.1 * a[name].norm() + 1e-6, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("low_precision", [False, True])
def test_every_product_has_the_models_precision(
    kind: str, low_precision: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    def heard(*given: Any, low_precision: bool = False, **more: Any) -> torch.Tensor:
        told.append(low_precision)
        return linear(*given, low_precision=low_precision, **more)

    monkeypatch.setattr("hyrt.nn.layers.linear", heard)
    graph = awkward_graph()
    batch = sampled(graph, SOME, [4, 4])
    model = model_of(kind, graph.num_features, 2, torch.float32, low_precision=low_precision)
    model(batch.blocks, rows_of(graph, batch, torch.float32))
    assert len(told) >= 2
    assert set(told) == {low_precision}


@pytest.mark.parametrize("kind", KINDS)
def test_a_footprint_counts_what_is_kept_for_edges_and_rows(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = awkward_graph()
    block = sampled(graph, SOME, [4, 4]).blocks[0]
    assert block.num_edges not in (block.num_dst, block.num_src)
    taken: list[tuple[int, ...]] = []

    def recorded(shape: Any, dtype: Any) -> Any:
        taken.append(tuple(shape))
        return np.empty(shape, dtype)

    def recorded_like(shape: Any, like: torch.Tensor) -> torch.Tensor:
        taken.append(tuple(shape))
        return torch.empty(shape, dtype=like.dtype)

    monkeypatch.setattr(aggregate_module, "empty_array", recorded)
    monkeypatch.setattr(attention_module, "empty_array", recorded)
    monkeypatch.setattr("hyrt.nn.operators.linear.empty", recorded_like)
    model = model_of(kind, graph.num_features, 2, torch.float32)
    with torch.no_grad():
        model.layer(0, block, torch.from_numpy(values(graph)[block.sources]).float())
    footprint = model.footprint(0)
    on_edges = sum(math.prod(shape) for shape in taken if block.num_edges in shape)
    on_rows = sum(math.prod(shape) for shape in taken if block.num_dst in shape)
    assert on_edges == footprint.edge * block.num_edges
    assert 0 < on_rows <= footprint.row * block.num_dst


def test_mistakes_are_named() -> None:
    graph = awkward_graph()
    batch = sampled(graph, SOME, [3, 3])
    model = model_of("gcn", graph.num_features, 2)
    x = rows_of(graph, batch)
    with pytest.raises(ValueError, match="2 layers, but the mini-batch has 1 blocks"):
        model(batch.blocks[:1], x)
    with pytest.raises(ValueError, match="sources: pass one row"):
        model(batch.blocks, x[:-1])
    with pytest.raises(ValueError, match="the weight"):
        model(batch.blocks, x[:, :-1])
    with pytest.raises(ValueError, match="heads of width"):
        model_of("gat", graph.num_features, 2)(batch.blocks, x[:, :-1])
    with pytest.raises(ValueError, match=r"not a multiple of model.heads=4"):
        GNN(Architecture(kind="gat", in_features=3, hidden=10, num_classes=2, heads=4))
    with pytest.raises(ValueError, match="at least 1 layer"):
        GNN(Architecture(in_features=3, num_classes=2, layers=0))
    with pytest.raises(ValueError, match="reduce is 'gcn': choose mean, sum or max"):
        SageLayer(3, 3, reduce="gcn")
