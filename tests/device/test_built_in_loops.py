"""Built-in models that are no sums with products after them, by loops over edges: dense float64's steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device.test_torch_saga import emulated
from graphs import random_graph, with_values
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.opencl import OpenclDevice
from opencl_steps import opened
from unit.cuda.emulated_kernels import needs_compiler

from hyrt.device import Device, DeviceOptions
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.loop_device import LoopEdges
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.model_checks import needs_loops
from hyrt.nn.torch_threads import torch_threads
from hyrt.objective.classification import Classification
from hyrt.testing import cases
from hyrt.testing.trial import check_agreement, compute_reference, load_model, run_step

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
KINDS: dict[str, dict[str, Any]] = {
    "gat": {"kind": "gat", "heads": 5, "hidden": 10, "dropout": 0.3, "attention_dropout": 0.4},
    "graphsage of the largest": {"kind": "graphsage", "aggregate": "max", "hidden": 9},
    "deepgcn": {"kind": "deepgcn", "hidden": 9, "norm": "layer", "residual": True},
    "gin with a norm": {"kind": "gin", "hidden": 9, "norm": "layer"},
    "deepgcn with weights": {"kind": "deepgcn", "hidden": 9, "norm": "layer", "weighted": True},
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def check(device: Device, settings: dict[str, Any]) -> None:
    shape = {"in_features": 7, "num_classes": 4, "layers": 2}
    settings = dict(settings)
    is_weighted = settings.pop("weighted", False)
    model = cases.randomize_parameters(GNN(Architecture(**shape, **settings)))
    assert needs_loops(model)
    graph = random_graph(90, features=7, classes=4, symmetric=False)
    graph = with_values(graph) if is_weighted else graph
    targets = graph.split("train")
    for num, some in [(1, None), (2, 20), (5, None)]:
        (batch,) = cases.full_graph_batches(
            graph, 2, targets[:some], cases.ROWS, steps=[3], class_weights=True
        )
        wanted = compute_reference(model, batch, graph)
        device.take_chunks(ChunkOptions(num))  # type: ignore[attr-defined]
        load_model(device, model)
        check_agreement(run_step(device, batch), wanted, f"{num} chunks")
        assert device.num_chunks == num  # type: ignore[attr-defined]


@needs_opencl
# One of them is enough to see that lanes share rows.
@pytest.mark.parametrize(("name", "product"), [*((name, "chosen") for name in KINDS), ("gat", "tiled")])
def test_any_number_of_chunks_on_opencl(name: str, product: str) -> None:
    device = opened(product)
    check(device, KINDS[name])
    device.close()


@needs_compiler
@pytest.mark.parametrize("name", ["gat", "graphsage of the largest"])
def test_any_number_of_chunks_on_an_emulated_gpu(name: str) -> None:
    device, launcher = emulated()
    check(device, KINDS[name])
    assert "edge_loop" in launcher.launched
    device.close()


@needs_opencl
def test_weights_of_mini_batches_are_dropped_as_on_the_cpu() -> None:
    """On a sampled block, by the numbers of the graph's vertices."""
    model = cases.randomize_parameters(
        GNN(Architecture(in_features=7, num_classes=4, layers=2, **KINDS["gat"]))
    )
    graph = cases.make_graph(7, 4)
    batch = cases.sampled_batch(graph, 2, cases.sample_targets(40), cases.ROWS)
    steps = []
    for device in (CpuDevice(CpuDevice.probe()[0], DeviceOptions()), opened()):
        device.take_objective(Classification())
        load_model(device, model)
        steps.append(run_step(device, batch))
        device.close()
    cpu, mine = steps
    assert mine.loss_sum == pytest.approx(cpu.loss_sum, rel=1e-5)
    for a, b in zip(mine.gradients, cpu.gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@needs_opencl
# In the host's memory, and in a memory of its own, where rows and edges come, too.
@pytest.mark.parametrize("product", ["chosen", "tiled"])
def test_later_steps_take_no_more_memory_and_look_for_no_edges(
    product: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those into the targets, by source, are found among all edges, of which each is looked at."""
    of, found = LoopEdges.from_edges, list[Any]()

    def noted(*given: Any) -> LoopEdges:
        found.append(given)
        return of(*given)

    monkeypatch.setattr(LoopEdges, "from_edges", noted)
    model = cases.randomize_parameters(
        GNN(Architecture(in_features=7, num_classes=4, layers=2, **KINDS["gat"]))
    )
    graph = random_graph(90, features=7, classes=4, symmetric=False)
    device = opened(product)
    device.take_chunks(ChunkOptions(3))
    load_model(device, model)
    after = []
    for batch in cases.full_graph_batches(graph, 2, graph.split("train"), cases.ROWS, steps=[0, 1, 2]):
        run_step(device, batch)
        after.append((device._memory.buffers.allocated_bytes, len(found)))
    assert after[0][1] > 0
    assert after == [after[0]] * 3
    assert device._memory.buffers.peak_bytes > after[0][0]
    device.close()


@needs_opencl
def test_mini_batches_of_all_sizes_leave_no_buffers() -> None:
    model = cases.randomize_parameters(
        GNN(Architecture(in_features=7, num_classes=4, layers=2, **KINDS["gat"]))
    )
    graph = cases.make_graph(7, 4)
    device = opened("tiled")
    load_model(device, model)
    allocated = []
    for count in (40, 25, 31):
        run_step(device, cases.sampled_batch(graph, 2, cases.sample_targets(count), cases.ROWS))
        allocated.append(device._memory.buffers.allocated_bytes)
    assert allocated == [allocated[0]] * 3
    assert device._memory.buffers.peak_bytes > allocated[0]
    device.close()
