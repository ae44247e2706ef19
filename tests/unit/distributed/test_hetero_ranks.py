"""Ranks that train a heterogeneous graph together: the losses and weights of one process, and
what is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import small_typed
from unit.distributed.ranks_in_threads import results_of
from unit.distributed.test_distributed_training import ONE_GENERATOR

from hyrt.config import build_config
from hyrt.distributed.context import DistributedContext
from hyrt.distributed.gradient_allreduce import SparseGradientAllReduce
from hyrt.distributed.rank_setup import convert_to_one_step, set_up_hetero
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.nn.hetero.inputs import NodeEmbedding, SparseGradient
from hyrt.telemetry.events import Event, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.open_graph import link_graph
from hyrt.training.setup import PreparedRun
from hyrt.training.train import Training

GRAPH = small_typed()
GIVEN: dict[str, Any] = {
    "model": {"kind": "rgcn", "hidden": 8, "layers": 2},
    "sampler": {"fanout": [4, 3]},
    # The last step of an epoch has one target.
    "data": {"batch_size": 59},
    "train": {"epochs": 2, "lr": 0.01},
    "balance": {"policy": "static", "predict": False},
    "devices": ["cpu:0"],
    "seed": 5,
}


def trained_on(
    ranks: DistributedContext | None, given: dict[str, Any], graph: Graph = GRAPH
) -> tuple[list[float], dict[str, torch.Tensor]]:
    config, heard = build_config(given), list[Event]()
    if ranks is not None and config.sampler.is_full_graph:
        config, _ = convert_to_one_step(config, graph)
    prepared = PreparedRun(config, graph)
    shared: dict[str, Any] = {}
    with ONE_GENERATOR:
        assert prepared.model
    if ranks is not None:
        # Nobody seeds the generator for the run while another still draws.
        ranks.control.all_reduce(torch.zeros(1), "control")
        mine = set_up_hetero(config, graph, ranks, prepared)
        shared = {"shared": mine.shared}
    parts = build_run(config, graph, prepared=prepared, emit=heard.append, **shared)
    model = Training(parts).run().model
    losses = [loss for event in heard if isinstance(event, StepMetrics) for loss in event.losses]
    return losses, model.state_dict()


@pytest.mark.parametrize(
    ("kind", "size", "more"),
    [("rgcn", 3, {}), ("hgt", 2, {}), ("rgcn", 2, {"sampler": {"kind": "full"}, "data": {}})],
)
def test_ranks_train_what_one_process_does(kind: str, size: int, more: dict[str, Any]) -> None:
    given = {**GIVEN, "model": {"kind": kind, "hidden": 8, "layers": 2, "dropout": 0.3}, **more}
    losses, weights = trained_on(None, given)
    assert len(losses) == (2 if more else 4)
    found = results_of(size, lambda ranks: trained_on(ranks, given))
    for theirs, state in found:
        np.testing.assert_allclose(theirs, losses, rtol=1e-5)
        for name, value in state.items():
            torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-5)
            assert torch.equal(value, found[0][1][name])


def test_ranks_train_the_links_of_a_relation() -> None:
    given = {
        **GIVEN,
        "data": {"batch_size": 150},
        "train": {"objective": "links", "epochs": 1, "lr": 0.01},
        "links": {"relation": "writes", "decoder": "mlp"},
    }
    graph = link_graph(build_config(given), small_typed(weights=True))
    losses, weights = trained_on(None, given, graph)
    for theirs, state in results_of(2, lambda ranks: trained_on(ranks, given, graph)):
        np.testing.assert_allclose(theirs, losses, rtol=1e-5)
        for name, value in state.items():
            torch.testing.assert_close(value, weights[name], rtol=1e-3, atol=1e-5)


def test_rows_of_ranks_are_added_row_by_row() -> None:
    table, draw = NodeEmbedding(20, 3), np.random.default_rng(0)
    rows = [draw.choice(20, count, replace=False) for count in (7, 0, 11)]
    values = [torch.from_numpy(draw.standard_normal((len(each), 3)).astype(np.float32)) for each in rows]
    wanted = np.zeros((20, 3))
    for at, each in zip(rows, values, strict=True):
        wanted[at] += each.numpy()

    def add(ranks: DistributedContext) -> list[SparseGradient]:
        mine = [SparseGradient(0, rows[ranks.rank], values[ranks.rank])] if len(rows[ranks.rank]) else []
        return SparseGradientAllReduce(ranks.gradients, [table])(mine)

    for (found,) in results_of(3, add):
        assert np.array_equal(found.rows, np.unique(np.concatenate(rows)))
        np.testing.assert_allclose(found.values.numpy(), wanted[found.rows], rtol=1e-5, atol=1e-6)


def test_what_is_of_graphs_in_parts_is_refused() -> None:
    for given, words in (
        ({"distributed": {"strategy": "p3"}}, r"does not support distributed\.strategy=p3"),
        (
            {"distributed": {"comm_dtype": "float16"}},
            r"does not support distributed\.comm_dtype=float16",
        ),
        (
            {"distributed": {"shared_memory_features": False}},
            r"does not support distributed\.shared_memory_features=False",
        ),
    ):
        config = build_config({**GIVEN, **given})
        prepared = PreparedRun(config, GRAPH)
        with pytest.raises(ConfigError, match=words):
            set_up_hetero(config, GRAPH, None, prepared)  # type: ignore[arg-type]
