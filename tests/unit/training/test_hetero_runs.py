"""Runs on heterogeneous graphs: the split changes nothing, a resumed run goes on bit-equal, and
what is refused.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hetero_cases import shape_of_small, small_typed

import hyrt
from hyrt.config import build_config
from hyrt.errors import ConfigError, DataError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.inference.infer import infer_layerwise, infer_sampled
from hyrt.nn.hetero.hetero_gnn import HeteroGNN
from hyrt.nn.hetero.inputs import find_embeddings
from hyrt.nn.message_passing.layer import Edge, SagaLayer
from hyrt.pipeline.trainer import InputPlan
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import RelationSampler
from hyrt.telemetry.events import StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.open_graph import opened_graph
from hyrt.training.prechecks import host_shortage
from hyrt.training.setup import architecture
from hyrt.training.train import Training

GRAPH = small_typed()
WEIGHTED = small_typed(weights=True)


def settings(kind: str = "rgcn", **sections: Any) -> dict[str, Any]:
    model = {"kind": kind, "hidden": 8, "layers": 2}
    is_full = sections.get("sampler", {}).get("kind") == "full"
    return {
        "model": {**model, "heads": 2} if kind in ("rgat", "hgt") else model,
        "sampler": {"fanout": [4, 3], "relation_fanout": {"cites": 2}},
        **({} if is_full else {"data": {"batch_size": 16}}),
        "train": {"epochs": 2},
        "balance": {"policy": "static", "predict": False},
        "devices": ["cpu:0"],
        "evaluate": {"every": 0},
        "seed": 5,
        **sections,
    }


def run(graph: Graph = GRAPH, kind: str = "rgcn", **sections: Any) -> tuple[list[float], torch.nn.Module]:
    """The losses of all steps, and the model after the last."""
    losses: list[float] = []

    def hear(event: object) -> None:
        if isinstance(event, StepMetrics):
            losses.extend(event.losses)

    config = build_config(settings(kind, **sections))
    return losses, Training(build_run(config, graph, emit=hear)).run().model


@pytest.mark.parametrize(
    ("kind", "graph"),
    [("rgcn", WEIGHTED), ("rsage", GRAPH), ("rgat", GRAPH), ("hgt", GRAPH), ("ggnn", GRAPH)],
)
def test_the_split_changes_nothing(kind: str, graph: Graph) -> None:
    alone, model = run(graph, kind)
    shared, other = run(graph, kind, devices=["cpu:0=3", "cpu:1=1"])
    assert len(alone) == 8
    np.testing.assert_allclose(shared, alone, rtol=1e-5)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "graph"), [("rgcn", WEIGHTED), ("hgt", GRAPH), ("ggnn", GRAPH)])
def test_a_whole_graph_is_all_targets_with_all_neighbours(kind: str, graph: Graph) -> None:
    steps = {"train": {"epochs": 3, "optimizer": "SGD", "lr": 0.1}}
    whole, model = run(graph, kind, **steps, sampler={"kind": "full"})
    sampled, other = run(graph, kind, **steps, sampler={"fanout": [-1, -1]}, data={"batch_size": 60})
    np.testing.assert_allclose(whole, sampled, rtol=1e-5)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("kind", "graph"), [("rgcn", WEIGHTED), ("rgat", GRAPH), ("hgt", GRAPH)])
def test_scores_layer_by_layer_are_those_of_mini_batches_with_all_neighbours(kind: str, graph: Graph) -> None:
    _, model = run(graph, kind)
    assert isinstance(model, HeteroGNN)
    vertices = np.array([100, 7, 130, 8, 9, 200, 3])
    with Workers(2, "test") as workers:
        # Little memory: many chunks.
        found = infer_layerwise(model, graph, vertices, workers, memory_bytes=1 << 16)
        wanted = infer_sampled(
            *(model, graph, vertices, workers),
            fanouts=[-1, -1],
            batch_size=3,
            seed=0,
            plan=InputPlan("hetero"),
        )
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_a_resumed_run_goes_on_bit_equal(tmp_path: Path) -> None:
    for optimizer in ("Adam", "Adagrad"):
        folder = tmp_path / optimizer
        sections: dict[str, Any] = {"train": {"epochs": 3, "optimizer": optimizer, "weight_decay": 0.0}}
        config = build_config(settings(**sections, checkpoint={"keep": 9}))
        whole = Training(build_run(config, GRAPH, checkpoints=folder))
        wanted = whole.run().model.state_dict()
        # What the run knew after its first epoch of four steps.
        for path in sorted(folder.iterdir())[1:]:
            path.unlink()
        again = Training(build_run(config, GRAPH))
        again.resume(load_newest_checkpoint(folder, pytest.fail))
        assert again.state.step == 4
        for name, value in again.run().model.state_dict().items():
            assert torch.equal(value, wanted[name]), name


@pytest.mark.parametrize("optimizer", ["SGD", "Adagrad", "Adam"])
def test_learned_rows_change_as_in_float64(optimizer: str) -> None:
    """Steps of the rows that were read equal a dense rule in float64, and no other row changes."""
    sections: dict[str, Any] = {
        "train": {"epochs": 1, "optimizer": optimizer, "lr": 0.05, "weight_decay": 0.0},
        "data": {"batch_size": 12},
        "sampler": {"fanout": [2, 1]},
    }
    training = Training(build_run(build_config(settings(**sections)), GRAPH))
    (table,) = find_embeddings(training.parts.learner.model)
    start = table.values.clone()
    taken: list[tuple[np.ndarray, torch.Tensor]] = []
    tables = training.parts.learner.tables
    assert tables is not None
    step = tables.step

    def watched(gradients: Any, lr: float) -> None:
        for each in gradients:
            taken.append((each.rows, each.values.clone()))
        step(gradients, lr)

    tables.step = watched  # type: ignore[method-assign]
    training.run()
    assert len(taken) == 5
    value = start.double()
    first, second = torch.zeros_like(value), torch.zeros_like(value)
    for number, (rows, gradient) in enumerate(taken, 1):
        g, at = gradient.double(), torch.from_numpy(rows)
        if optimizer == "SGD":
            value[at] -= 0.05 * g
        elif optimizer == "Adagrad":
            second[at] += g**2
            value[at] -= 0.05 * g / (second[at].sqrt() + 1e-10)
        else:
            first[at] = 0.9 * first[at] + 0.1 * g
            second[at] = 0.999 * second[at] + 0.001 * g**2
            size = 0.05 * (1 - 0.999**number) ** 0.5 / (1 - 0.9**number)
            value[at] -= size * first[at] / (second[at].sqrt() + 1e-8)
    torch.testing.assert_close(table.values.double(), value, rtol=1e-4, atol=1e-6)
    untouched = np.setdiff1d(np.arange(len(start)), np.concatenate([rows for rows, _ in taken]))
    assert torch.equal(table.values[untouched], start[untouched])


def test_gradients_of_rows_are_clipped_with_the_others() -> None:
    steps = {"train": {"epochs": 1, "optimizer": "SGD", "lr": 0.1, "clip_norm": 0.05}}
    alone, model = run(**steps)
    shared, other = run(**steps, devices=["cpu:0", "cpu:1"])
    unclipped, _ = run(train={"epochs": 1, "optimizer": "SGD", "lr": 0.1})
    np.testing.assert_allclose(shared, alone, rtol=1e-5)
    assert not np.allclose(unclipped, alone, rtol=1e-4)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_what_does_not_go_together_is_refused() -> None:
    plain = random_graph()
    for graph, kind, sections, words in (
        (
            GRAPH,
            "gcn",
            {},
            "model.kind=gcn does not support .*: set model.kind to ggnn, gnn-film, hgt, rgat, rgcn or rsage",
        ),
        (
            plain,
            "rgcn",
            {"sampler": {"fanout": [3, 2]}},
            "kind=rgcn does not support homogeneous graphs",
        ),
        (
            GRAPH,
            "rgcn",
            {"sampler": {"kind": "labor", "fanout": [3, 2]}},
            "sampler.kind=labor does not support",
        ),
        (GRAPH, "rgcn", {"train": {"optimizer": "RMSprop"}}, "RMSprop is not supported for learned rows"),
        (GRAPH, "rgcn", {"train": {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}}, "momentum"),
    ):
        with pytest.raises(ConfigError, match=words):
            run(graph, kind, **sections)
    for kind in ("hgt", "ggnn"):
        with pytest.raises(
            DataError,
            match=r"no layer .* uses the edge weights .* choose model\.kind=rgcn, rsage or rgat, or",
        ):
            run(WEIGHTED, kind)
    rows = np.ones((GRAPH.num_edges, 2), np.float32)
    featured = replace(GRAPH, topology=replace(GRAPH.topology, edge_features=rows))
    with pytest.raises(
        DataError, match=r"no layer .* uses the edge features .* custom layers that read edge\.data, or"
    ):
        run(featured)
    rounded = build_config(
        {"data": {"source": "synthetic:hetero,vertices=400,edges=2000", "feature_dtype": "float16"}}
    )
    with pytest.raises(
        ConfigError,
        match=r"data\.feature_dtype=float16 does not support heterogeneous graphs, .*: remove data",
    ):
        opened_graph(rounded)
    with pytest.raises(
        UnsupportedModelError, match="null:0 does not support heterogeneous graphs, such as small: use cpu"
    ):
        run(devices=["null:0"])
    with pytest.raises(ConfigError, match=r"Linear does not support .*: use a kind such as"):
        hyrt.train(GRAPH, torch.nn.Linear(3, 2), sampler={"fanout": [2]})


class ByRelation(SagaLayer):
    """A matrix a relation, and the own row."""

    accumulate = "sum"

    def __init__(self, in_features: int, out_features: int, edge_types: int) -> None:
        super().__init__(in_features, out_features)
        self.edge_types = edge_types
        self.by_relation = torch.nn.ModuleList(
            torch.nn.Linear(in_features, out_features) for _ in range(edge_types)
        )
        self.own = torch.nn.Linear(in_features, out_features)

    def apply_edge(self, edge: Edge) -> torch.Tensor:
        chosen = [torch.where(edge.type == t, each(edge.src), 0) for t, each in enumerate(self.by_relation)]
        return reduce(torch.add, chosen)

    def apply_vertex(self, vertex: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        return self.own(vertex) + gathered


def test_layers_of_ones_own_have_a_function_a_relation() -> None:
    found = []
    for sampler in ({"fanout": [-1, -1]}, {"kind": "full"}):
        torch.manual_seed(4)
        # Of equal widths, so that the loops of both layers are the same.
        model = hyrt.nn.hetero_stack(GRAPH, ByRelation(4, 4, 5), ByRelation(4, 4, 5))
        losses: list[float] = []

        def hear(event: object, losses: list[float] = losses) -> None:
            if isinstance(event, StepMetrics):
                losses.extend(event.losses)

        data = {} if "kind" in sampler else {"data": {"batch_size": 60}}
        train = {"epochs": 3, "optimizer": "SGD", "lr": 0.01}
        hyrt.train(GRAPH, model, sampler=sampler, train=train, emit=hear, **data)
        found.append(losses)
    assert found[0][0] > found[0][-1]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    with pytest.raises(ValueError, match="only one vertex type: build the model with"):
        hyrt.nn.hetero_stack(random_graph(), ByRelation(6, 4, 5))


def test_memory_for_learned_rows_is_counted() -> None:
    config = build_config(settings())
    without = architecture(config, small_typed(learned=False))
    sampler = RelationSampler(GRAPH, GRAPH.split("train"), [[2] * 5] * 2, 8, 0)
    for num in (10**6, 10):
        shape = replace(shape_of_small(GRAPH), counts=(120, 70, num))
        # 8 columns of 4 bytes, with two moments.
        short = host_shortage(config, GRAPH, replace(without, shape=shape), lambda: sampler, 50 * 10**6)
        assert bool(short) == (96 * num > 50 * 10**6)


def test_without_learned_rows_there_is_no_table() -> None:
    graph = small_typed(learned=False)
    training = Training(build_run(build_config(settings()), graph))
    assert training.parts.learner.tables is None
    training.run()
