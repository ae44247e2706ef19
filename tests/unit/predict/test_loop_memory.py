"""What layers whose edges are loops are said to keep, beside what the engine takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from graphs import random_graph
from hyrt_perfmodel.measured_costs import FullGraphRates
from recorded_steps import ALONE, LARGE, Recorded, model_of, scored, sizes_of, without_loops
from saga_layers import layer_of

from hyrt.config.command_line import new_config
from hyrt.fullgraph.loop_gather_ops import SagaGatherOp
from hyrt.fullgraph.plan import CACHE_DIVISOR
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import SparseFeatures
from hyrt.nn import stack
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.objective.classification import Classification
from hyrt.predict.memory_needs import memory_facts
from hyrt.predict.step_dry_run import StepDryRun, full_graph_step
from hyrt.predict.workload import sampled_workload
from hyrt.sampling.full_sampler import FullSampler


def _own(name: str, **between: Any) -> Callable[[Graph], GNN]:
    def make(graph: Graph) -> GNN:
        last = layer_of(name, 8, graph.num_classes + graph.num_classes % 2)
        return stack(layer_of(name, graph.num_features, 8), last, **between)

    return make


def _kind(kind: str, **settings: Any) -> Callable[[Graph], GNN]:
    return lambda graph: model_of(graph, kind=kind, **settings)


MODELS: dict[str, Callable[[Graph], GNN]] = {
    "commnet": _kind("commnet", norm="layer", residual=True),
    "ggcn": _kind("ggcn", norm="layer", residual=True, layers=3),
    "ggnn": _kind("ggnn", norm="layer"),
    "gnn-film": _kind("gnn-film", dropout=0.5),
    "deepgcn": _kind("deepgcn", norm="layer", residual=True, layers=3),
    "attention, own": _own("GAT", residual=True),
    "max, own": _own("EdgeConv"),
    "degrees, own": _own("GCN", input_dropout=0.5),
    "by torch, own": _own("perceptron"),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_takes_what_was_said(name: str, sparse: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    without_loops(monkeypatch)
    graph = random_graph(60, features=10, sparse=sparse)
    model, targets = MODELS[name](graph), graph.split("train")[:12]
    sampler = FullSampler(graph, targets, len(model.layers), seed=3)
    batch = sampler.sample(0, sampler.units(0), ALONE)
    assert batch.full_graph is not None
    features = graph.features
    inputs: Any = torch.from_numpy(features.values) if not sparse else SparseRows.from_features(features)  # type: ignore
    assert isinstance(features, SparseFeatures) == sparse
    replica = FullGraphReplica.build(model, batch.full_graph, inputs, memory_bytes=LARGE)
    chain = replica._chain
    chain.memory = recorded = Recorded(chain.memory)  # type: ignore[assignment]
    walk = StepDryRun(chain.plan, sizes_of(graph, targets))
    walk.step()
    walk.scores()
    replica.step(batch, Classification(), ALONE)
    replica.compute_scores(scored(graph), ALONE)
    assert recorded.events == walk.pool.events
    said = dict(
        full_graph_step(model, sizes_of(graph, targets), memory_bytes=LARGE * CACHE_DIVISOR, threads=1).arrays
    )
    loops = [each for each in chain.gatherings if isinstance(each, SagaGatherOp)]
    read = sum(array.nbytes for each in loops for array in each._fixed)
    assert sum(said.pop(key) for key in list(said) if key.startswith("what layer")) == read
    assert bool(read) == (name in ("degrees, own", "by torch, own"))
    assert bool(said.pop("chunks of edges, at most", 0)) == (name == "by torch, own")
    for beside in ("rows of the targets", "scores of an evaluation", "edges into targets, by source"):
        said.pop(beside, None)
    scales = sum(each._scale.nbytes for each in loops if each._scale is not None)
    fixed = 4 * 4 * graph.num_vertices  # Numbers twice, degrees, places among the targets.
    of_vertices = said.pop("vertices, degrees, their factors") - fixed
    others = [each for each in chain.gatherings if not isinstance(each, SagaGatherOp)]
    assert of_vertices == scales if not others else of_vertices >= scales
    said.pop("chunks of rows, at most")
    said.pop("parameters, gradients, optimizer")
    assert sum(said.values()) == replica.matrix_bytes


@pytest.mark.parametrize("kind", ["ggcn", "gnn-film", "ggnn", "commnet", "deepgcn"])
def test_every_kind_is_told_for_an_open_graph(kind: str) -> None:
    facts = memory_facts(random_graph(60, 5), kind)
    assert not facts["at_most"]
    assert facts["arrays"]["gathered by layer 2"] > 0


def test_layers_of_known_costs_that_have_to_be_read_are_predicted() -> None:
    config = new_config(None, ["model.kind=gnn-film", "sampler.kind=full"])
    work = sampled_workload(config, random_graph(60, 5))
    # Its loops over edges have not been measured: GCN's rates stand for it.
    assert work.model == "gcn"
    assert work.full_graph_step is not None
    rates = FullGraphRates(threads=1, reads=(), mask_s=0, call_s=0, macs_per_s=1e9, values_per_s=1e9)
    assert not rates.covers(work.full_graph_step(1e9, 1), work.model)


@pytest.mark.parametrize(("kind", "own"), [("gat", True), ("gcn", True), ("gin", True), ("graphsage", False)])
def test_vertices_read_their_own_rows_where_sums_have_them(kind: str, own: bool) -> None:
    graph = random_graph(60, 5)
    settings = [f"model.kind={kind}", "model.input_dropout=0.1", "model.hidden=8", "sampler.kind=full"]
    work = sampled_workload(new_config(None, settings), graph)
    assert work.full_graph_step is not None
    found = [each for each in work.full_graph_step(0, 1).reads if not each.is_backward]
    targets = graph.split("train")
    into_targets = int(graph.topology.in_degrees[targets].sum())
    assert [each.rows for each in found] == [
        graph.num_edges + own * graph.num_vertices,
        into_targets + own * len(targets),
    ]


def test_loops_read_every_edge_forward_and_back() -> None:
    """G-GCN of three layers: all forward, and back wherever gradients go on; the last for targets alone."""
    graph = random_graph(60, 5)
    config = new_config(None, ["model.kind=ggcn", "model.layers=3", "model.hidden=7", "sampler.kind=full"])
    work = sampled_workload(config, graph)
    assert work.model == "ggcn"
    assert work.full_graph_step is not None
    step = work.full_graph_step(1e9, 1)
    into_targets = int(graph.topology.in_degrees[graph.split("train")].sum())
    edges = {
        False: [graph.num_edges, graph.num_edges, into_targets],
        True: [into_targets, graph.num_edges, graph.num_edges],
    }
    for back, counts in edges.items():
        found = [each for each in step.reads if each.is_backward == back]
        assert [each.rows for each in found] == counts
        assert {each.kind for each in found} == {"loops"}
        widths = [7, 7, graph.num_outputs]
        assert [each.width for each in found] == (widths[::-1] if back else widths)
