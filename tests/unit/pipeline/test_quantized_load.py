"""Narrow rows on their way to a trainer: in place, gathered, or in their format."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph

from hyrt.config import build_config
from hyrt.errors import ConfigError
from hyrt.graph.quantized.features import quantize_graph
from hyrt.graph.quantized.row_format import ROW_FORMATS
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Aggregation, Architecture
from hyrt.nn.layer import AggregatedFeatures, InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.aggregate import aggregate_into, aggregate_quantized_into
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan, plan_input
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.train import Training

ALONE = Workers(1, "test")
NARROW = [name for name, row_format in ROW_FORMATS.items() if row_format.is_quantized]


def widened(graph: Any) -> np.ndarray:
    out = np.empty((graph.num_vertices, graph.num_features), np.float32)
    graph.features.rows(np.arange(graph.num_vertices), out, ALONE)
    return out


def sampled(graph: Any, plan: InputPlan, fanout: int = 6) -> Any:
    sampler = NeighborSampler(graph, graph.split("train"), [fanout], 500, 3)
    batch = sampler.sample(2, graph.split("train").astype(sampler.ids), ALONE, in_place=plan.in_place)
    Loader(graph.features).load(batch, plan, ALONE)
    return batch


@pytest.mark.parametrize(
    ("name", "reduce", "self_path"),
    [
        # Each way to reduce, and each self path, with each scale. A mean and a sum differ in factors alone.
        ("int8", "mean", "none"),
        ("int8", "gcn", "add"),
        ("int8", "max", "concat"),
        ("int8-columns", "mean", "add"),
        ("int8-columns", "gcn", "concat"),
        ("int8-columns", "max", "none"),
        ("bfloat16", "mean", "concat"),
    ],
)
def test_an_aggregate_of_codes_is_that_of_the_numbers(name: str, reduce: Any, self_path: Any) -> None:
    graph = quantize_graph(random_graph(features=13, seed=4), name)
    what = Aggregation(reduce, self_path, 0.25)
    plan = InputPlan("aggregated", what)
    batch = sampled(graph, plan)
    block = batch.blocks[0]
    wanted = np.empty(batch.inputs.values.shape, np.float64)
    aggregate_into(what, block, widened(graph).astype(np.float64), wanted)
    assert np.abs(batch.inputs.values.numpy() - wanted).max() < 2e-6 * np.abs(wanted).max()


def test_edge_weights_count_for_codes() -> None:
    graph = random_graph(features=5)
    plan = InputPlan("aggregated", Aggregation("gcn", "add"))
    batch = sampled(graph, plan)
    block = batch.blocks[0]
    block.weights = np.random.default_rng(0).random(block.num_edges).astype(np.float32)
    for name in ("int8", "int8-columns"):
        narrow = quantize_graph(graph, name)
        out = np.empty((block.num_dst, 5), np.float32)
        aggregate_quantized_into(plan.aggregation, block, narrow.features.all_rows, out, ALONE)
        wanted = np.empty(out.shape, np.float64)
        aggregate_into(plan.aggregation, block, widened(narrow).astype(np.float64), wanted)
        assert np.abs(out - wanted).max() < 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("name", NARROW)
def test_rows_travel_in_their_format_to_who_takes_it(name: str) -> None:
    graph = quantize_graph(random_graph(features=7), name)
    batch = sampled(graph, InputPlan("quantized"))
    rows = batch.inputs
    assert isinstance(rows, QuantizedRows)
    assert rows.format.name == name
    assert (rows.to_float32() == widened(graph)[batch.blocks[0].sources]).all()
    gathered = sampled(graph, InputPlan("rows")).inputs
    assert torch.equal(gathered, torch.from_numpy(rows.to_float32()))


@pytest.mark.parametrize(
    ("kind", "rows", "forms", "wanted"),
    [
        ("gcn", "int8", ("rows", "quantized"), "quantized"),
        ("gcn", "int8", ("rows",), "rows"),
        ("gcn", "int8", ("rows", "quantized", "aggregated"), "aggregated"),
        ("gcn", "float32", ("rows", "quantized"), "rows"),
        ("gcn", "float16", ("rows", "quantized"), "quantized"),
        ("gcn", "float16", ("rows", "quantized", "ids"), "ids"),
        ("gcn", "int8", ("rows", "quantized", "ids"), "quantized"),
        ("gat", "int8", ("rows", "in_place", "aggregated"), "rows"),
        ("gat", "bfloat16", ("rows", "in_place"), "in_place"),
    ],
)
def test_the_form_of_narrow_rows(kind: str, rows: str, forms: Any, wanted: str) -> None:
    graph = quantize_graph(random_graph(features=12), rows)
    model = GNN(Architecture(kind=kind, in_features=12, hidden=8, num_classes=3, layers=2))
    assert plan_input(model, graph, forms, fuse=True).form == wanted


def test_rows_of_a_whole_graph_are_numbers() -> None:
    graph = quantize_graph(random_graph(features=12), "int8")
    model = GNN(Architecture(kind="gat", in_features=12, hidden=8, num_classes=3, layers=2))
    assert plan_input(model, graph, ("rows", "quantized"), fuse=True, whole=True).form == "rows"


def test_bfloat16_is_read_in_place_by_every_layer() -> None:
    graph = quantize_graph(random_graph(features=12), "bfloat16")
    model = GNN(Architecture(kind="gat", in_features=12, hidden=8, num_classes=3, layers=1, heads=2))
    batch = sampled(graph, InputPlan("in_place"))
    assert isinstance(batch.inputs, InPlaceFeatures)
    rows = sampled(graph, InputPlan("rows"))
    assert torch.allclose(model(batch.blocks, batch.inputs), model(rows.blocks, rows.inputs), atol=1e-6)


def losses(graph: Any, devices: list[str], **sections: Any) -> list[float]:
    settings = {
        "data": {"batch_size": 30},
        "sampler": {"fanout": [4, 3]},
        "model": {"hidden": 16},
        "train": {"epochs": 2},
        "devices": devices,
        **sections,
    }
    found: list[float] = []

    def emit(event: Any) -> None:
        if isinstance(event, StepMetrics):
            found.extend(event.losses)

    Training(build_run(build_config(settings), graph, emit=emit)).run()
    return found


@pytest.mark.parametrize("whole", [False, True], ids=["mini-batches", "full graph"])
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_training_on_codes_is_training_on_their_numbers(name: str, whole: bool) -> None:
    graph = quantize_graph(random_graph(vertices=200), name)
    numbers = graph.with_features(DenseFeatures(widened(graph)))
    sections: dict[str, Any] = {"sampler": {"kind": "full"}, "data": {}} if whole else {}
    wanted = losses(numbers, ["cpu"], **sections)
    assert np.allclose(losses(graph, ["cpu"], **sections), wanted, rtol=1e-5)
    if not whole:
        split = {"split": [11, 19]}
        assert np.allclose(losses(graph, ["cpu:0", "cpu:1"], **split), wanted, rtol=1e-5)


def test_aggregated_input_of_the_whole_graph() -> None:
    graph = quantize_graph(random_graph(features=7), "int8")
    batch = sampled(graph, InputPlan("aggregated", Aggregation("mean", "concat")))
    assert isinstance(batch.inputs, AggregatedFeatures)


def test_stochastic_rounding_without_codes_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"data.feature_dtype=float16, which has no int8 codes: set data.feature_dtype=int8"
    ):
        build_config({"data": {"feature_dtype": "float16", "rounding": "stochastic"}})
