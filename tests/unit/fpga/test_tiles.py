"""Mini-batches as tasks: what they compute, whole and in tiles, against the dense float64 step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.fpga.tasks import build_tasks
from hyrt_devices.fpga.weights import WeightLayout
from hyrt_hls.task_layout import Task
from unit.hls.task_reference import run_reference

from hyrt.device import DeviceOptions
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.graph.quantized.row_format import FLOAT16, INT8, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows, Quantizer
from hyrt.nn.description import ModelDescription, describe
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.model import GNN
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.cases import reference_step

PLENTY = SimpleNamespace(pes=4, arena_words=1 << 14)
SUPPORTED = [
    case
    for case in cases.model_cases()
    if case.name.split(", ")[0] in ("gcn", "graphsage (mean)")
    and not {"norm", "residual"} & case.settings.keys()
]
DROPPED = next(case for case in SUPPORTED if "graphsage" in case.name and "dropout" in case.settings)


def of(case: cases.ModelCase, **changes: Any) -> tuple[GNN, ModelDescription, MiniBatch, np.ndarray]:
    """A model, what it computes, a mini-batch of 40 targets and its rows."""
    model = case.build()
    graph = cases.make_graph(model.architecture.in_features, model.architecture.num_classes)
    batch = cases.sampled_batch(
        graph, model.architecture.layers, cases.sample_targets(), cases.ROWS, **changes
    )
    return model, describe(model, "test"), batch, cases.dense_rows(graph, batch.blocks[0].sources)


def summed(
    tasks: Sequence[Task], model: GNN, described: ModelDescription
) -> tuple[float, float, list[np.ndarray]]:
    """Loss, hits and gradients of the tasks in float64."""
    parameters = list(model.parameters())
    layout = WeightLayout(described, parameters)
    weights = layout.pack(parameters)
    gradients, results = np.zeros(layout.num_floats), np.zeros(2)
    for task in tasks:
        _, of_task, sums = run_reference(replace(task, weights=weights))
        gradients += of_task
        results += sums
    return results[0], results[1], layout.unpack(gradients)


def assert_close(found: Sequence[Any], wanted: Sequence[Any], part: float) -> None:
    for mine, exact in zip(found, wanted, strict=True):
        exact = np.asarray(exact)
        np.testing.assert_allclose(
            np.asarray(mine), exact, rtol=0, atol=part * max(1e-3, np.abs(exact).max())
        )


@pytest.mark.parametrize("case", SUPPORTED, ids=lambda case: case.name)
@pytest.mark.parametrize("tiled", [False, True])
def test_tasks_are_the_mini_batch(case: cases.ModelCase, tiled: bool) -> None:
    """Rounding is that of float32 weights of edges; class weights are in it."""
    model, described, batch, rows = of(case, class_weights=True)
    limits = tight(batch, described) if tiled else PLENTY
    tasks = build_tasks(batch, described, limits)
    assert (len(tasks) > 2) == tiled
    wanted = reference_step(model, list(model.parameters()), batch, rows)
    loss, correct, gradients = summed(tasks, model, described)
    assert loss == pytest.approx(wanted.loss_sum, rel=1e-6)
    assert wanted.correct[0] <= correct <= wanted.correct[1]
    assert_close(gradients, wanted.gradients, 1e-5)


def tight(batch: MiniBatch, described: ModelDescription) -> SimpleNamespace:
    """An arena into which the hub alone fits, but not a third of the targets."""
    words = 16
    while True:
        limits = SimpleNamespace(pes=4, arena_words=words)
        try:
            if len(build_tasks(batch, described, limits)) > 2:
                return limits
        except DeviceOutOfMemoryError:
            words += words // 8
            continue
        raise AssertionError(f"{words} words hold more than a third")


def test_tiles_add_up_to_the_cpus_step() -> None:
    model, described, batch, _ = of(DROPPED)
    tasks = build_tasks(batch, described, tight(batch, described))
    device = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions())
    try:
        device.load(model, list(model.parameters()))
        step = device.propagate(device.transfer(batch))
    finally:
        device.close()
    loss, correct, gradients = summed(tasks, model, described)
    assert loss == pytest.approx(step.loss_sum, rel=1e-5)
    assert correct == step.counts["correct"]
    assert_close(gradients, step.gradients, 1e-4)


@pytest.mark.parametrize("units", [1, 2, 3, 1000])
def test_every_compute_unit_has_a_task(units: int) -> None:
    model, described, batch, _ = of(DROPPED)
    tasks = build_tasks(batch, described, PLENTY, min_tasks=units)
    assert len(tasks) == min(units, len(batch.targets))
    assert sum(len(task.labels) for task in tasks) == len(batch.targets)
    whole = summed(build_tasks(batch, described, PLENTY), model, described)
    parts = summed(tasks, model, described)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert parts[1] == whole[1]
    assert_close(parts[2], whole[2], 1e-5)


def test_subgraphs_with_weights_on_edges() -> None:
    case = next(case for case in SUPPORTED if case.name.startswith("gcn, layers=2"))
    model = case.build()
    graph = cases.make_graph(model.architecture.in_features, model.architecture.num_classes)
    batch = cases.saint_batch(graph, model.architecture.layers, cases.ROWS)
    wanted = reference_step(
        model, list(model.parameters()), batch, cases.dense_rows(graph, batch.blocks[0].sources)
    )
    described = describe(model, "test")
    for limits in (PLENTY, tight(batch, described)):
        loss, _, gradients = summed(build_tasks(batch, described, limits), model, described)
        assert loss == pytest.approx(wanted.loss_sum, rel=1e-6)
        assert_close(gradients, wanted.gradients, 1e-5)


def test_tiles_take_each_target_once_and_in_order() -> None:
    _, described, batch, _ = of(DROPPED)
    batch.labels = (
        np.arange(len(batch.targets), dtype=np.int64) % described.layers[-1].products[0].weight.shape[0]
    )
    tasks = build_tasks(batch, described, tight(batch, described))
    np.testing.assert_array_equal(np.concatenate([task.labels for task in tasks]), batch.labels)
    vertices = np.concatenate([task.vertices[: task.header.targets] for task in tasks])
    np.testing.assert_array_equal(vertices, batch.targets)


def test_a_tile_has_the_rows_it_needs_and_no_others() -> None:
    """Found by walking the edges of each target, one by one."""
    _, described, batch, rows = of(DROPPED)
    tasks = build_tasks(batch, described, tight(batch, described))
    sources = batch.blocks[0].sources
    assert sources is not None
    start = 0
    for task in tasks:
        needed = set(range(start, start + task.header.targets))
        start += task.header.targets
        counts = [len(needed)]
        for block in reversed(batch.blocks):
            needed |= {int(j) for i in needed for j in block.columns[block.indptr[i] : block.indptr[i + 1]]}
            counts.append(len(needed))
        assert set(task.vertices) == {int(sources[j]) for j in needed}
        assert len(task.vertices) == len(needed)
        assert [record.rows for record in task.records] == counts[-2::-1]
        position = {int(vertex): i for i, vertex in enumerate(sources)}
        wanted = rows[[position[int(vertex)] for vertex in task.vertices]]
        width = task.header.in_width
        np.testing.assert_array_equal(task.features[:, :width], wanted.astype(np.float32))
        assert not task.features[:, width:].any()


@pytest.mark.parametrize("tiled", [False, True])
@pytest.mark.parametrize(("row_format", "dtype"), [(INT8, np.int8), (FLOAT16, np.uint16)])
def test_codes_go_as_they_are_and_scales_into_the_first_layers_edges(
    row_format: RowFormat, dtype: type[np.generic], tiled: bool
) -> None:
    """Codes times what weights have more than those of a task with whole rows: the rows."""
    _, described, batch, rows = of(DROPPED)
    limits = tight(batch, described) if tiled else PLENTY
    plain = build_tasks(batch, described, limits)
    wide = np.ascontiguousarray(rows, np.float32)
    narrow = QuantizedRows.allocate(row_format, wide.shape, None)
    Quantizer(row_format).quantize_into(wide, np.arange(len(wide)), narrow, "test", Workers(1, "test"))
    batch.inputs = narrow
    coded = build_tasks(batch, described, limits)
    assert len(coded) == len(plain)
    for task, same in zip(coded, plain, strict=True):
        width, first = task.header.in_width, task.records[0]
        codes = task.features.view(dtype)
        assert not codes[:, width:].any()
        values = (
            codes[:, :width].astype(np.float64) if dtype == np.int8 else codes[:, :width].view(np.float16)
        )
        of_first = slice(first.first_edge, first.first_edge + first.num_edges)
        sources = task.edges[of_first, 0]
        weights, before = (each.edges[of_first, 2].view(np.float32) for each in (task, same))
        factors = (weights / before)[:, None].astype(np.float64)
        tolerance = 0.51 * factors if dtype == np.int8 else 1e-3 * np.abs(same.features[sources, :width])
        error = np.abs(values[sources] * factors - same.features[sources, :width])
        assert (error <= tolerance + 1e-7).all()
        np.testing.assert_array_equal(task.edges[first.num_edges :], same.edges[first.num_edges :])


def test_a_target_that_does_not_fit_is_named_with_the_numbers() -> None:
    _, described, batch, _ = of(DROPPED)
    with pytest.raises(
        DeviceOutOfMemoryError,
        match=r"fpga:1: target 0 of the mini-batch by itself, with \d+ input rows and .* of sums in each of "
        "4 banks of its on-chip memory, which has only 10$",
    ) as error:
        build_tasks(batch, described, SimpleNamespace(pes=4, arena_words=16), "fpga:1")
    assert error.value.remedy.startswith("smaller mini-batches do not help: sample fewer neighbours")


def test_rows_of_whole_words_are_not_copied() -> None:
    case = replace(DROPPED, settings={**DROPPED.settings, "in_features": 32})
    _, described, batch, _ = of(case)
    (task,) = build_tasks(batch, described, PLENTY)
    assert np.shares_memory(task.features, batch.inputs.numpy())


@pytest.mark.parametrize(
    ("spoil", "error", "said"),
    [
        (
            lambda b: setattr(b, "blocks", b.blocks[:-1]),
            ValueError,
            "3 layers, but the mini-batch has 2 blocks",
        ),
        (lambda b: setattr(b, "inputs", b.inputs[:, 1:]), ValueError, "expected float32 of"),
        (lambda b: setattr(b, "inputs", b.inputs.double()), ValueError, "torch.float64"),
        (lambda b: setattr(b, "inputs", AggregatedFeatures(b.inputs)), TypeError, "requires rows"),
        (lambda b: setattr(b, "labels", b.labels + 3), ValueError, "label is not from 0 to 2"),
        (lambda b: setattr(b.blocks[0], "sources", None), ValueError, "read in place"),
    ],
)
def test_what_is_no_mini_batch_for_the_model_is_refused(
    spoil: Any, error: type[Exception], said: str
) -> None:
    _, described, batch, _ = of(DROPPED)
    spoil(batch)
    with pytest.raises(error, match=said):
        build_tasks(batch, described, PLENTY)


def test_repeated_edges_and_self_loops_keep_their_weight() -> None:
    """Of vertex 20: itself twice, and vertex 22 three times; its own row besides."""
    ids = np.array([20, 21, 22], np.int32)
    columns = np.array([0, 2, 2, 0, 2], np.int32)
    degrees = np.array([8, 0, 3], np.int32)
    block = Block(
        indptr=np.array([0, 5, 5], np.int32),
        columns=columns,
        destinations=ids[:2],
        sources=ids,
        num_src=3,
        degrees=degrees[:2],
        source_degrees=degrees,
        layer=1,
    )
    rows = np.random.default_rng(0).standard_normal((3, 6))
    model = cases.randomize_parameters(
        GNN(replace(of(DROPPED)[0].architecture, kind="gcn", layers=1, dropout=0.0, input_dropout=0.0))
    )
    inputs = torch.from_numpy(rows.astype(np.float32))
    batch = MiniBatch(0, ids[:2], [block], np.array([0, 2]), None, 2.0, inputs)
    described = describe(model, "test")
    wanted = reference_step(model, list(model.parameters()), batch, inputs.numpy().astype(np.float64))
    loss, _, gradients = summed(build_tasks(batch, described, PLENTY), model, described)
    assert loss == pytest.approx(wanted.loss_sum, rel=1e-6)
    assert_close(gradients, wanted.gradients, 1e-6)
