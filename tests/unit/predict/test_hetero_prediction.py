"""What is predicted of runs on heterogeneous graphs: sizes beside sampled ones, products beside
counted ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hetero_cases import shape_of_small, small_batch, small_typed
from hyrt_perfmodel import model_workload
from hyrt_perfmodel.model_workload import AGGREGATE_FIRST_KINDS, RelationSizes, hetero_workload
from hyrt_perfmodel.prediction.stages import aggregate_s, update_s
from hyrt_perfmodel.workload import Workload
from in_process import refused, run_here

import hyrt
from hyrt.config import Config, build_config
from hyrt.device import DeviceOptions
from hyrt.device.calls import opened
from hyrt.device.discovery import find_device
from hyrt.errors import ConfigError
from hyrt.graph.graph import Graph
from hyrt.graph.source import open_graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.hetero import relation_sums
from hyrt.nn.hetero.hetero_gnn import HeteroGNN, get_graph_metadata
from hyrt.nn.operators import linear
from hyrt.predict.calibrate.trainers import Probe, ProbeGraphs, measure_probe
from hyrt.predict.hetero_workload import (
    expected_hetero_sizes,
    generated_hetero_sizes,
    hetero_graph_sizes,
    relation_sizes,
    sampled_hetero_sizes,
)
from hyrt.predict.workload import configured_workload, sampled_workload
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch
from hyrt.training.setup import build_sampler

SOURCE = "synthetic:hetero,vertices=20k,edges=200k"
GRAPH = small_typed()


def config_of(**sections: Any) -> Config:
    model = {"kind": "rgcn", "hidden": 16, "layers": 2, **sections.pop("model", {})}
    return build_config({"model": model, "data": {"source": SOURCE, "batch_size": 512}, **sections})


def test_a_mini_batch_is_counted_by_type_and_relation() -> None:
    batch = small_batch(GRAPH, (3, 2))
    assert GRAPH.types is not None
    found = relation_sizes(batch, GRAPH.types)
    ids = [batch.blocks[0].sources, *(block.destinations for block in batch.blocks)]
    for of_types, vertices in zip(found.vertices, ids, strict=True):
        kinds = GRAPH.types.vertex_type_indices(np.asarray(vertices)).tolist()
        assert of_types == tuple(float(kinds.count(t)) for t in range(3))
    for layer, block in enumerate(batch.blocks):
        assert block.edge_types is not None
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr)).tolist()
        pairs = list(zip(rows, block.edge_types.tolist(), strict=True))
        assert found.edges[layer] == tuple(float(sum(r == k for _, k in pairs)) for r in range(5))
        assert found.segments[layer] == tuple(float(sum(r == k for _, k in set(pairs))) for r in range(5))


@pytest.mark.parametrize("fanout", [[10, 5], [5, 5, 3]])
def test_sizes_of_a_generated_graph_follow_from_its_law(fanout: list[int]) -> None:
    config = config_of(sampler={"fanout": fanout}, model={"layers": len(fanout)})
    graph = open_graph(SOURCE)
    expected = expected_hetero_sizes(config, generated_hetero_sizes(SOURCE))
    with Workers(1, "test") as workers:
        sampler = build_sampler(config, graph, graph.split("train"))
        sampled = sampled_hetero_sizes(config, graph, sampler, workers)
    for targets in (32, 512):
        mine, theirs = expected(targets), sampled(targets)
        for name in ("vertices", "edges"):
            of_layers = [np.sum(getattr(each, name), axis=1) for each in (mine, theirs)]
            np.testing.assert_allclose(*of_layers, rtol=0.1)


def test_bytes_of_a_generated_graph_are_those_that_it_has() -> None:
    graph = open_graph(SOURCE)
    mine, theirs = generated_hetero_sizes(SOURCE), hetero_graph_sizes(graph, graph.split("train"))
    assert mine.widths == theirs.widths
    assert (mine.counts, mine.classes, mine.targets) == (theirs.counts, theirs.classes, theirs.targets)
    assert mine.feature_bytes == theirs.feature_bytes
    assert mine.graph_bytes == pytest.approx(theirs.graph_bytes, rel=0.01)


HIDDEN, CLASSES, HEADS = 16, 4, 2
MATRICES = {"weight", "own", "key", "query", "value", "result", "attention", "message"}
"""The parameters that rows are multiplied by; of all others there are few numbers."""


def small_model(kind: str, graph: Graph) -> tuple[HeteroGNN, MiniBatch, RelationSizes, Workload]:
    """A model, a mini-batch, its sizes, and the work expected of it; R-GAT looks at weights of edges."""
    options = {"edge_features": 1} if graph.topology.edge_weights is not None else {}
    model = HeteroGNN(
        Architecture(
            kind=kind,
            in_features=HIDDEN,
            hidden=HIDDEN,
            num_classes=CLASSES,
            heads=HEADS,
            options=options,
            shape=shape_of_small(graph),
        )
    ).eval()
    batch = small_batch(graph, (3, 2))
    assert graph.types is not None
    sizes = relation_sizes(batch, graph.types)
    widths = hetero_graph_sizes(graph, np.zeros(1)).widths
    work = hetero_workload(kind, sizes, widths, hidden=HIDDEN, classes=CLASSES, heads=HEADS)
    return model, batch, sizes, work


@pytest.mark.parametrize(
    ("kind", "graph", "read"),
    [
        ("rgcn", GRAPH, 4),
        ("rsage", GRAPH, 4),
        # As if reading a row took long: the last layer multiplies all sources before it combines them.
        ("rgcn", GRAPH, 10**6),
        ("rgat", GRAPH, 4),
        ("rgat", small_typed(weights=True), 4),
        ("hgt", GRAPH, 4),
    ],
    ids=["rgcn", "rsage", "rgcn, sources first", "rgat", "rgat of edges", "hgt"],
)
def test_multiply_accumulates_are_those_that_a_step_makes(
    kind: str, graph: Graph, read: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[int] = []

    def watched(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, **given: Any) -> None:
        counted.append(a.shape[0] * a.shape[1] * b.shape[1])
        out.copy_(a @ b if given.get("bias") is None else a @ b + given["bias"])

    def joined(weight: torch.Tensor, before: torch.Tensor | None, bias: Any) -> Any:
        # The maps of types times the matrices of relations are torch's own products.
        if before is not None:
            counted.append(weight.shape[0] * weight.shape[1] * before.shape[1])
        return through(weight, before, bias)

    assert model_workload._READ == relation_sums._READ
    for module in (model_workload, relation_sums):
        monkeypatch.setattr(module, "_READ", read)
    monkeypatch.setattr(linear, "matmul", watched)
    through = relation_sums._compose
    monkeypatch.setattr(relation_sums, "_compose", joined)
    model, batch, _, work = small_model(kind, graph)
    with torch.no_grad():
        model(batch.blocks, batch.inputs)
    assert sum(counted) == pytest.approx(sum(update_s(work, 1 + at, 1.0) for at in range(work.layers)))
    read_by = [len(block.columns) for block in batch.blocks]
    if kind not in AGGREGATE_FIRST_KINDS:
        # The maps of types are a layer of their own.
        assert list(work.edges) == [0, *read_by]
        return
    assert list(work.edges) == read_by
    # A row that an edge reads in the second layer has as many columns as the narrower side of the product.
    assert aggregate_s(work, 2, 1.0) <= read_by[1] * HIDDEN * 4
    shape = model.shape
    columns = [shape.widths[shape.relations[r][0]] or 2 * HIDDEN for r in batch.blocks[0].edge_types]
    assert aggregate_s(work, 1, 1.0) == pytest.approx(4 * sum(columns))


@pytest.mark.parametrize("kind", ["rgcn", "rsage", "rgat", "hgt"])
def test_weights_are_those_of_the_models_matrices_and_of_the_learned_rows_that_a_step_reads(
    kind: str,
) -> None:
    model, _, sizes, work = small_model(kind, GRAPH)
    names = [(name.rpartition(".")[2], parameter.numel()) for name, parameter in model.named_parameters()]
    learned = sizes.vertices[0][2] * HIDDEN
    assert learned > 0
    assert work.num_weights == sum(count for name, count in names if name in MATRICES) + learned


@pytest.mark.parametrize("kind", ["rgcn", "rsage", "rgat", "hgt", "gnn-film"])
def test_generated_and_open_graphs_are_predicted_alike(kind: str) -> None:
    config = config_of(model={"kind": kind, "heads": 2}, sampler={"fanout": [5, 5]})
    mine, theirs = configured_workload(config), sampled_workload(config, open_graph(SOURCE))
    assert mine.model == theirs.model
    for targets in (64.0, 512.0):
        one, other = mine.at(targets), theirs.at(targets)
        assert one.num_edges == pytest.approx(other.num_edges, rel=0.1)
        assert one.dense_row_bytes == pytest.approx(other.dense_row_bytes, rel=0.1)
        assert update_s(one, 1, 1.0) == pytest.approx(update_s(other, 1, 1.0), rel=0.1)
        assert one.num_weights == pytest.approx(other.num_weights, rel=0.1)
    assert mine.learned_bytes == 2000 * 16 * 4 * 3


def test_a_whole_typed_graph_has_one_step_of_all_of_it() -> None:
    config = config_of(sampler={"kind": "full"}, data={"source": SOURCE})
    mine, theirs = configured_workload(config), sampled_workload(config, open_graph(SOURCE))
    for each in (mine, theirs):
        assert each.resident
        assert (each.targets_per_epoch, each.batch_size) == (1, 1)
        assert each.at(1).vertices == pytest.approx((20_000, 20_000, 20_000))
    assert mine.at(1).num_edges == pytest.approx(theirs.at(1).num_edges, rel=0.01)
    assert (mine.at(1).calls, theirs.at(1).calls) == pytest.approx((12, 12))


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            {"sampler": {"kind": "labor"}},
            "sampler.kind=labor does not support .*: set sampler.kind to full or neighbor",
        ),
        (
            {"data": {"source": SOURCE, "feature_dtype": "float16"}},
            "data.feature_dtype=float16 does not support heterogeneous graphs",
        ),
    ],
)
def test_settings_for_other_graphs_are_refused(sections: dict[str, Any], words: str) -> None:
    config = config_of(**sections)
    with pytest.raises(ConfigError, match=words):
        configured_workload(config)
    with pytest.raises(ConfigError, match=words):
        sampled_workload(config, GRAPH)


def printed(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> dict[str, Any]:
    run_here("predict", "--platform", "h200", "--model", "rgcn", "--json", *words, cwd=folder)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_predictions_of_typed_graphs_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = printed(capsys, tmp_path, "--data", "ogbn-mag")
    assert facts["epoch_s"] > 0
    assert facts["iterations"] == -(-629_571 // 1024)
    assert "ogbn-mag has log-normal degrees" in " ".join(facts["assumptions"])
    assert not any("data.feature_dtype" in line["change"] for line in facts["advice"])
    for words, given in (
        (
            "model.kind=gcn does not support heterogeneous graphs, such as ogbn-mag: set model.kind to ggnn",
            ("ogbn-mag", "gcn"),
        ),
        ("model.kind=rgcn does not support homogeneous graphs, such as ogbn-arxiv", ("ogbn-arxiv", "rgcn")),
    ):
        told = refused("predict", "--platform", "h200", "--data", given[0], "--model", given[1], cwd=tmp_path)
        assert words in " ".join(told.split())
    told = refused(
        *("predict", "--platform", "2x-epyc7763-4x-u250", "--data", "ogbn-mag", "--model", "rgcn"),
        cwd=tmp_path,
    )
    assert "supports only one vertex type" in " ".join(told.split())


def test_learned_rows_and_their_moments_count_in_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hyrt.save(GRAPH, tmp_path / "g.npz")
    given = ("--data", "g.npz", "model.hidden=8")
    need = [
        printed(capsys, tmp_path, *given, *more)["memory_bytes"]["host"]["need"]
        for more in ((), ("train.optimizer=SGD",))
    ]
    # Two moments of the rows of 15 venues.
    assert need[0] - need[1] == pytest.approx(2 * 15 * 8 * 4)


@pytest.mark.parametrize("kind", ["rgcn", "rgat"])
def test_models_are_measured_on_mini_batches_of_a_typed_graph(kind: str) -> None:
    probe = Probe(features=8, hidden=8, classes=4, targets=32, fanouts=(3, 2), graph=SOURCE)
    graph = ProbeGraphs({SOURCE: open_graph(SOURCE)}).graph(probe)
    shape = get_graph_metadata(graph)
    assert shape is not None
    assert shape.widths == (8, 4, None)
    assert graph.num_classes == 4
    backend, info = find_device("cpu:0")
    with opened(backend, info, DeviceOptions(threads=1)) as device:
        found = measure_probe(device, kind, probe, graph)
    assert found.propagate.seconds > 0
    # R-GCN reads the tables where they lie; others have a layer of maps, and rows that are loaded.
    assert (found.moved_bytes == 0, found.workload.layers) == ((True, 2) if kind == "rgcn" else (False, 3))
    assert found.workload.num_edges > 32
