"""The sampler of the whole graph: the arrays of its mini-batches, and that a step equals a sampled one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice

from hyrt.device import DeviceOptions
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan, plan_input
from hyrt.sampling.full_sampler import FullSampler
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.testing.cases import (
    ROWS,
    SINGLE_WORKER,
    EdgeListModule,
    full_graph_batches,
    make_graph,
    randomize_parameters,
    reference_step,
    sample_targets,
)
from hyrt.testing.trial import check_agreement, compute_reference, load_model, run_step, trainable_parameters


def whole_batches(graph: Graph, layers: int = 2, *, in_place: bool = False) -> list[MiniBatch]:
    sampler = FullSampler(graph, graph.split("train"), layers, seed=1)
    return [sampler.sample(i, sampler.units(i), SINGLE_WORKER, in_place=in_place) for i in range(2)]


@pytest.mark.parametrize("symmetric", [True, False])
def test_blocks_share_one_set_of_arrays(symmetric: bool) -> None:
    graph = random_graph(60, symmetric=symmetric)
    topology = graph.topology
    first, second = whole_batches(graph)
    assert first.full_graph is second.full_graph
    assert first.full_graph is not None
    for batch in (first, second):
        for block in batch.blocks:
            assert block.columns is topology.indices
            assert block.indptr is topology.indptr
            assert block.degrees is block.source_degrees is topology.in_degrees
            assert block.sources is block.destinations is first.full_graph.vertices
            assert block.transposed() is first.full_graph.transposed
    turned = first.full_graph.transposed
    assert (turned.rows is topology.indices) == (turned.indptr is topology.indptr) == symmetric


def test_the_transpose_has_every_edge_once_by_source() -> None:
    graph = make_graph(2, 2)
    rows = np.repeat(np.arange(graph.num_vertices), np.diff(graph.topology.indptr))
    turned = whole_batches(graph)[0].blocks[0].transposed()
    sources = np.repeat(np.arange(graph.num_vertices), np.diff(turned.indptr))
    np.testing.assert_array_equal(graph.topology.indices[turned.edges], sources)
    np.testing.assert_array_equal(rows[turned.edges], turned.rows)
    np.testing.assert_array_equal(np.sort(turned.edges), np.arange(graph.num_edges))


def test_a_step_trains_every_target_and_an_epoch_has_one_step() -> None:
    graph = random_graph(60)
    targets = graph.split("train")
    sampler = FullSampler(graph, targets, 3, seed=1, class_weights=np.array([1, 2, 3], np.float32))
    assert sampler.steps_per_epoch() == 1
    assert [len(sampler.units(i)) for i in (0, 7)] == [1, 1]
    batch = sampler.sample(7, sampler.units(7), SINGLE_WORKER, in_place=True)
    assert [block.layer for block in batch.blocks] == [1, 2, 3]
    assert {(block.step, block.seed) for block in batch.blocks} == {(7, 1)}
    assert [block.in_place for block in batch.blocks] == [True, False, False]
    np.testing.assert_array_equal(batch.targets, targets)
    np.testing.assert_array_equal(batch.target_rows, targets)
    np.testing.assert_array_equal(batch.labels, graph.labels[targets])
    np.testing.assert_array_equal(batch.target_weights, graph.labels[targets] + 1.0)
    assert batch.normalizer == len(targets)
    assert batch.num_edges == 3 * graph.num_edges


def test_inputs_are_the_graphs_own_arrays() -> None:
    dense, sparse = random_graph(60), random_graph(60, sparse=True)
    half = dense.with_features(DenseFeatures(dense.features.values.astype(np.float16)))

    def loaded(graph: Graph, plan: InputPlan) -> Any:
        first, second = whole_batches(graph, in_place=plan.in_place)
        loader = Loader(graph.features)
        for batch in (first, second):
            loader.load(batch, plan, SINGLE_WORKER)
        assert first.inputs is second.inputs
        return first.inputs

    rows = loaded(dense, ROWS)
    assert rows.data_ptr() == dense.features.values.ctypes.data
    np.testing.assert_array_equal(loaded(half, ROWS), half.features.values.astype(np.float32))
    read = loaded(half, InputPlan("in_place"))
    assert isinstance(read, InPlaceFeatures)
    assert np.shares_memory(read.values, half.features.values)
    kept = loaded(sparse, InputPlan("sparse"))
    assert isinstance(kept, SparseRows)
    assert kept.values is sparse.features.values


BESIDE: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.4, "input_dropout": 0.2},
    "norm and residual": {"norm": "layer", "residual": True, "dropout": 0.3},
}


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("kind", ["gcn", "graphsage", "gin", "gat"])
def test_a_step_equals_that_of_all_neighbours_of_all_targets(kind: str, beside: str, sparse: bool) -> None:
    graph = make_graph(6, 3, sparse=sparse)
    targets = np.sort(sample_targets(90))
    settings: dict[str, Any] = {"in_features": 6, "hidden": 12, "num_classes": 3, "layers": 2, "heads": 3}
    model: GNN = randomize_parameters(GNN(Architecture(kind=kind, **settings, **BESIDE[beside])))
    [device_info, *_] = CpuDevice.probe()
    device = CpuDevice.open(device_info, DeviceOptions(threads=2))
    load_model(device, model)
    plan = plan_input(model, graph, device_info.forms, fuse=True, whole=True)
    [whole] = full_graph_batches(graph, 2, targets, plan, steps=[5])
    [with_rows] = full_graph_batches(graph, 2, targets, ROWS, steps=[5])
    sampler = NeighborSampler(graph, targets, [-1, -1], len(targets), whole.blocks[0].seed)
    sampled = sampler.sample(5, targets.astype(np.int32), SINGLE_WORKER, in_place=False)
    result = run_step(device, whole)
    device.close()
    check_agreement(
        result, compute_reference(model, with_rows, graph), "a dense reference over the whole graph"
    )
    check_agreement(result, compute_reference(model, sampled, graph), "a dense reference over sampled blocks")


def test_a_module_of_the_users_gets_blocks_of_all_vertices() -> None:
    graph = make_graph(13, 2)
    model = randomize_parameters(EdgeListModule())
    device = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions(threads=2))
    load_model(device, model)
    [batch] = full_graph_batches(graph, 2, sample_targets(), ROWS)
    result = run_step(device, batch)
    device.close()
    rows = graph.features.values.astype(np.float64)
    alone = dataclasses.replace(batch, target_rows=None, labels=graph.labels.astype(np.int64))
    check_agreement(result, reference_step(model, trainable_parameters(model), batch, rows))
    every = reference_step(model, trainable_parameters(model), alone, rows)
    assert every.loss_sum != pytest.approx(result.loss_sum, rel=0.1)
    assert torch.isfinite(every.gradients[0]).all()
