"""Layers of a user's own on torch devices, whose loops are emulated: whole graphs at once and in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.cuda.edge_loops import CudaLoops
from saga_layers import layer_of
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.errors import UnsupportedModelError
from hyrt.fullgraph.gather_ops import GatherOp, GatherSpec, build_gather_op
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.graph.graph import Graph
from hyrt.nn import stack
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.testing.cases import ROWS, full_graph_batches
from hyrt.testing.trial import load_model, run_step

INFO = DeviceInfo(
    whole_graphs=True, kind="cuda", index=0, description="a double", memory_bytes=1 << 30, forms=("rows",)
)
WIDTH = 6


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def emulated() -> tuple[CudaDevice, EmulatedLauncher]:
    driver = FakeDriver()
    launcher = EmulatedLauncher(driver)
    device = CudaDevice(INFO, DeviceOptions(), driver, launcher)  # type: ignore[arg-type]
    device._loops = CudaLoops(launcher, lanes=1)  # A thread alone has a row: shuffles are not emulated.
    return device, launcher


def model_of() -> GNN:
    return stack(*(layer_of(name, WIDTH, WIDTH) for name in ("G-GCN", "GAT")), dropout=0.3)


@needs_compiler
@pytest.mark.parametrize("num", [0, 1, 2, 5])
def test_steps_are_those_of_the_cpu(num: int) -> None:
    graph, model = random_graph(90, features=WIDTH, classes=WIDTH), model_of()
    cpu: Device = CpuDevice(CpuDevice.probe()[0], DeviceOptions())
    device, launcher = emulated()
    if num:
        device.take_chunks(ChunkOptions(num))
    targets = graph.split("train")
    found = []
    for each, plan in ((cpu, ROWS), (device, InputPlan("in_place") if num else ROWS)):
        load_model(each, model)
        (batch,) = full_graph_batches(graph, 2, targets, plan, steps=[3])
        found.append(run_step(each, batch))
        assert each is cpu or device.num_chunks == (num or None)
        each.close()
    expected, mine = found
    assert "edge_loop" in launcher.launched
    assert mine.loss_sum == pytest.approx(expected.loss_sum, rel=1e-5)
    for a, b in zip(mine.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


class AllHere:
    """Gatherings of a process that happens to have all vertices."""

    halo_exchange = None
    cache_bytes = 1 << 20

    def __init__(self, graph: Graph) -> None:
        self.topology = graph.topology
        self.num_vertices, self.num_edges = graph.num_vertices, graph.num_edges
        self.asked: list[int] = []

    def build_gather_op(self, gather: GatherSpec, dtype: np.dtype[Any], layer: int) -> GatherOp:
        self.asked.append(layer)
        return build_gather_op(gather, self.topology, dtype, layer)


@needs_compiler
def test_a_process_without_targets_computes_for_the_others() -> None:
    graph, model = random_graph(90, features=WIDTH, classes=WIDTH), model_of()
    device, launcher = emulated()
    device.take_chunks(ChunkOptions(2))
    load_model(device, model)
    (batch,) = full_graph_batches(graph, 2, np.empty(0, np.int64), InputPlan("in_place"))
    assert batch.full_graph is not None
    batch.full_graph.gather_ops = gatherings = AllHere(graph)
    result = run_step(device, batch)
    device.close()
    assert gatherings.asked == [1, 2]
    assert "edge_loop" in launcher.launched
    assert result.loss_sum == 0
    assert not any(gradient.any() for gradient in result.gradients)


def test_without_kernels_chunks_are_refused() -> None:
    device = CudaDevice(INFO, DeviceOptions(), FakeDriver())  # type: ignore[arg-type]
    device.take_chunks(ChunkOptions(2))
    with pytest.raises(
        UnsupportedModelError,
        match=r"cannot train in chunks .* edge loops cannot be compiled on this machine",
    ):
        load_model(device, model_of())
    device.close()
