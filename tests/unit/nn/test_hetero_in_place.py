"""Tables of types that are read where they lie give what gathered rows give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import shape_of_small, small_typed

from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures, HeteroRows
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.hetero.inputs import (
    HeteroInPlaceInput,
    HeteroInput,
    add_sparse_gradients,
    append_sources,
    take_sparse_gradients,
)
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan, plan_input
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.neighbor_sampler import RelationSampler

GRAPH = small_typed(edges=250)


def with_halves(graph: Graph) -> Graph:
    """The same with rows of float16."""
    rows: Any = graph.features
    tables = [
        None if table is None else DenseFeatures(table.values.astype(np.float16)) for table in rows.tables
    ]
    return graph.with_features(HeteroRows(rows.types, tuple(tables)))


def model_of(graph: Graph, kind: str, **settings: Any) -> HeteroGNN:
    torch.manual_seed(1)
    sizes = {"in_features": 8, "hidden": 8, "num_classes": 4, "shape": shape_of_small(graph)}
    return HeteroGNN(Architecture(kind=kind, **{**sizes, **settings}))


def step(graph: Graph, model: HeteroGNN, plan: InputPlan) -> tuple[Any, list[Any], list[Any]]:
    """Scores, gradients, and those of learned rows."""
    fanouts = [[4] * 5, [3] * 5][: model.architecture.layers]
    sampler = RelationSampler(graph, graph.split("train"), fanouts, 20, 3)
    model.zero_grad()
    with Workers(2, "test") as workers, use_workers(workers):
        batch = sampler.sample(1, sampler.units(1), workers, in_place=plan.in_place)
        Loader(graph.features).load(batch, plan, workers)
        assert isinstance(batch.inputs, HeteroInPlaceInput if plan.leaves_tables else HeteroInput)
        scores = model(batch.blocks, batch.inputs)
        (scores * torch.arange(scores.numel()).view_as(scores)).sum().backward()
    learned = add_sparse_gradients(take_sparse_gradients(model))
    return scores.detach(), [p.grad.clone() for p in model.parameters()], learned  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["rgcn", "rsage"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("graph", [GRAPH, with_halves(GRAPH)], ids=["float32", "float16"])
def test_scores_and_gradients_are_those_of_gathered_rows(kind: str, layers: int, graph: Graph) -> None:
    """With one layer, there are types without destinations, and relations without edges."""
    model = model_of(graph, kind, layers=layers)
    plan = plan_input(model, graph, ("rows", "in_place", "hetero"), fuse=True)
    assert plan.leaves_tables
    found, wanted = (step(graph, model, each) for each in (plan, InputPlan("hetero")))
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1], wanted[1], rtol=1e-4, atol=1e-3)
    assert len(found[2]) == len(wanted[2]) == 1
    for mine, theirs in zip(found[2], wanted[2], strict=True):
        np.testing.assert_array_equal(mine.rows, theirs.rows)
        torch.testing.assert_close(mine.values, theirs.values, rtol=1e-4, atol=1e-3)


def test_rows_are_gathered_where_something_needs_them() -> None:
    forms = ("rows", "in_place", "hetero")
    plain = model_of(GRAPH, "rgcn")
    assert plan_input(plain, GRAPH, forms, fuse=True).leaves_tables
    weighted = small_typed(weights=True)
    rows: Any = GRAPH.features

    class Elsewhere(DenseFeatures):
        matrix = None  # type: ignore[assignment]

    apart = GRAPH.with_features(HeteroRows(rows.types, (Elsewhere(rows.tables[0].values), *rows.tables[1:])))
    for model, graph, more in (
        (plain, GRAPH, {"fuse": False}),
        (plain, GRAPH, {"fuse": True, "whole": True}),
        (plain, weighted, {"fuse": True}),
        (plain, apart, {"fuse": True}),
        (model_of(GRAPH, "rgat", heads=2), GRAPH, {"fuse": True}),
        (model_of(GRAPH, "rgcn", input_dropout=0.1), GRAPH, {"fuse": True}),
        (model_of(GRAPH, "rgcn", residual=True), GRAPH, {"fuse": True}),
    ):
        plan = plan_input(model, graph, forms, **more)
        assert plan.form == "hetero"
        assert not plan.in_place
    assert not plan_input(plain, GRAPH, ("rows", "hetero"), fuse=True).in_place


def test_vertices_of_a_type_are_listed_once_after_those_that_are_given() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        own = draw.choice(30, 6, replace=False).astype(np.int32)
        ids = draw.integers(0, 100, 80).astype(np.int32)
        found = append_sources(own, ids, 40, 70).tolist()
        others = {v - 40 for v in ids.tolist() if 40 <= v < 70} - set(own.tolist())
        assert found == [*own.tolist(), *sorted(others)]
