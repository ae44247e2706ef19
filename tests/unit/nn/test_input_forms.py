"""One mini-batch in every form the load stage may hand it over: equal scores, equal gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from block_cases import awkward_graph, sampled, sparse_of, values
from closeness import assert_close
from model_cases import KINDS, model_of, ours, reference

from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.operators.aggregate import aggregate_into

TARGETS = list(range(0, 90, 4))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("variant", [{}, {"residual": True, "norm": "layer"}], ids=["plain", "residual"])
@pytest.mark.parametrize("kind", KINDS)
def test_sparse_rows(kind: str, variant: dict[str, Any], depth: int) -> None:
    graph = awkward_graph()
    batch = sampled(graph, TARGETS, [4] * depth)
    rows = values(graph)[batch.blocks[0].sources]
    model = model_of(kind, graph.num_features, depth, torch.float32, **variant)
    expected = reference(kind, model, batch.blocks, torch.from_numpy(rows))
    del expected["x"]
    assert_close(ours(model, batch.blocks, sparse_of(rows)), expected, 1e-5)
    assert_close(ours(model, batch.blocks, torch.from_numpy(rows)), expected, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_rows_with_input_dropout_have_the_dense_masks(kind: str) -> None:
    graph = awkward_graph()
    batch = sampled(graph, TARGETS, [4, 4])
    rows = values(graph)[batch.blocks[0].sources]
    model = model_of(kind, graph.num_features, 2, torch.float32, dropout=0.3, input_dropout=0.5)
    sparse, dense = sparse_of(rows), torch.from_numpy(rows)
    assert_close(ours(model, batch.blocks, sparse), ours(model, batch.blocks, dense), 1e-5)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_read_in_place(kind: str, depth: int, half: bool) -> None:
    graph = awkward_graph()
    stored = values(graph).astype(np.float16) if half else values(graph)
    stored = stored.copy()
    stored[::7, ::2] *= 2.0**-16  # subnormal as halves
    gathered = sampled(graph, TARGETS, [4] * depth)
    there = sampled(graph, TARGETS, [4] * depth, in_place=True)
    model = model_of(kind, graph.num_features, depth, torch.float32)
    rows = torch.from_numpy(stored.astype(np.float32)[gathered.blocks[0].sources])
    expected = ours(model, gathered.blocks, rows)
    whole = stored.view(np.uint16) if half else stored
    assert_close(ours(model, there.blocks, InPlaceFeatures(whole)), expected, 5e-6)

    aggregation = model.inputs().aggregation
    assert (aggregation is None) == (kind == "gat")
    assert model.inputs().in_place
    if aggregation is not None:
        block = there.blocks[0]
        out = np.empty((block.num_dst, aggregation.width(graph.num_features)), np.float32)
        aggregate_into(aggregation, block, whole, out)
        assert_close(ours(model, there.blocks, AggregatedFeatures(torch.from_numpy(out))), expected, 5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_place_feed_a_residual(kind: str) -> None:
    graph = awkward_graph()
    half = values(graph).astype(np.float16)
    gathered = sampled(graph, TARGETS, [4, 4])
    there = sampled(graph, TARGETS, [4, 4], in_place=True)
    model = model_of(kind, graph.num_features, 2, torch.float32, residual=True)
    rows = torch.from_numpy(half.astype(np.float32)[gathered.blocks[0].sources])
    found = ours(model, there.blocks, InPlaceFeatures(half.view(np.uint16)))
    assert_close(found, ours(model, gathered.blocks, rows), 5e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_is_asked_for_no_aggregate_that_the_model_could_not_use(kind: str) -> None:
    for more in ({"input_dropout": 0.1}, {"residual": True}):
        model = model_of(kind, 10, 2, **more)
        assert model.inputs().aggregation is None
    assert not model_of("gat", 10, 2, input_dropout=0.1).inputs().in_place


def test_attention_refuses_an_aggregate() -> None:
    batch = sampled(awkward_graph(), TARGETS, [4])
    with pytest.raises(TypeError, match="source rows are needed"):
        model_of("gat", 10, 1)(batch.blocks, AggregatedFeatures(torch.zeros(len(TARGETS), 10)))
