"""Devices with a memory of their own keep the whole graph there from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.fpga.csim_device import FpgaCsimDevice
from hyrt_devices.opencl import OpenclDevice
from unit.cuda.fake_driver import FakeDriver

from hyrt.config import build_config
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.errors import DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, load_model, run_step
from hyrt.training.trainers import find_trainers

INFO = DeviceInfo(
    whole_graphs=True,
    kind="cuda",
    index=0,
    description="a double of the driver",
    memory_bytes=1 << 30,
    forms=("rows", "ids"),
)
needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)


def model_of(**more: Any) -> GNN:
    settings = {"kind": "gcn", "in_features": 12, "hidden": 8, "num_classes": 3, "layers": 3, "dropout": 0.3}
    model: GNN = randomize_parameters(GNN(Architecture(**{**settings, **more})))
    return model


def batches(graph: Graph, plan: InputPlan = ROWS, **more: Any) -> list[MiniBatch]:
    return full_graph_batches(graph, 3, graph.split("train"), plan, steps=[0, 1], **more)


@pytest.fixture
def opencl() -> Iterator[OpenclDevice]:
    device = OpenclDevice.open(OpenclDevice.probe()[0], DeviceOptions(threads=2))
    yield device
    device.close()


@needs_opencl
def test_opencl_copies_once_and_layers_share(opencl: OpenclDevice) -> None:
    load_model(opencl, model_of())
    first, second = (opencl.transfer(batch) for batch in batches(random_graph(60)))
    assert first.inputs is second.inputs
    assert first.labels is second.labels
    for name in ("indptr", "columns", "row_scale", "source_scale", "self_scale"):
        buffers = [getattr(block, name) for staged in (first, second) for block in staged.blocks]
        assert all(buffer is buffers[0] for buffer in buffers)
    assert first.blocks[1].transposed_rows is second.blocks[2].transposed_rows
    assert [block.step for block in second.blocks] == [1, 1, 1]
    assert not second.events


@needs_opencl
def test_opencl_gives_back_what_stayed_when_no_step_uses_it(opencl: OpenclDevice) -> None:
    memory = opencl._memory.buffers
    opencl._memory.zero_copy = False  # Else the host's arrays are read in place.
    graph, model = random_graph(60), model_of()
    load_model(opencl, model)
    weights = memory.used_bytes
    old, new = batches(graph)[0], batches(graph)[0]
    staged = opencl.transfer(old)
    one = memory.used_bytes
    opencl.propagate(opencl.transfer(new))
    assert memory.used_bytes == 2 * one - weights
    check_agreement(opencl.propagate(staged), compute_reference(model, old, graph))
    assert memory.used_bytes == one
    load_model(opencl, model)
    assert memory.used_bytes == weights


@needs_opencl
def test_opencl_takes_the_gradient_of_the_targets_from_the_host(opencl: OpenclDevice) -> None:
    class Doubled(Classification):
        name = "doubled"
        is_plain_classification = False

        def loss_sum(self, *arguments: Any) -> torch.Tensor:
            return 2 * super().loss_sum(*arguments)

    objective: Objective = Doubled()
    opencl.take_objective(objective)
    graph, model = random_graph(60), model_of()
    load_model(opencl, model)
    [batch, _] = batches(graph)
    result, wanted = run_step(opencl, batch), compute_reference(model, batch, graph)
    doubled = [2 * gradient for gradient in wanted.gradients]
    check_agreement(result, replace(wanted, loss_sum=2 * wanted.loss_sum, gradients=doubled))


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("form", ["rows", "ids"])
def test_a_torch_device_copies_once_and_layers_share(form: Any, half: bool) -> None:
    graph = random_graph(60)
    if half:
        graph = graph.with_features(DenseFeatures(graph.features.values.astype(np.float16)))
    device = CudaDevice(INFO, DeviceOptions(), FakeDriver())
    assert device.gathers(graph)
    model = model_of()
    load_model(device, model)
    plan = InputPlan(form)
    first, second = (device.transfer(batch) for batch in batches(graph, plan))
    assert first.delivery.inputs is second.delivery.inputs
    blocks = [*first.delivery.blocks, *second.delivery.blocks]
    assert all(block.columns is blocks[0].columns for block in blocks)
    assert all(block.transposed() is blocks[0].transposed() for block in blocks)
    assert [block.step for block in blocks] == [0, 0, 0, 1, 1, 1]
    for staged, batch in zip((first, second), batches(graph), strict=True):
        check_agreement(device.propagate(staged), compute_reference(model, batch, graph))
    device.close()


def test_a_torch_device_refuses_a_graph_beyond_its_limit_and_goes_on() -> None:
    graph, model = random_graph(60), model_of()
    [whole, _], [again, _] = batches(graph), batches(graph)
    device = CudaDevice(INFO, DeviceOptions(), FakeDriver())
    load_model(device, model)
    device.propagate(device.transfer(whole))
    needed = device._resident_bytes()
    device.close()
    assert needed > graph.topology.indices.nbytes + graph.features.values.nbytes
    for limit in (needed, needed - 1):
        device = CudaDevice(INFO, DeviceOptions(memory_bytes=limit), FakeDriver())
        load_model(device, model)
        if limit < needed:
            with pytest.raises(DeviceOutOfMemoryError, match=r"the whole graph does not fit \(.* in use\)"):
                device.transfer(whole)
        else:
            device.propagate(device.transfer(whole))
            device.propagate(device.transfer(again))
        device.close()


def test_a_device_of_mini_batches_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    info = DeviceInfo(kind="fpga-csim", index=0, description="", memory_bytes=1, whole_graphs=False)
    monkeypatch.setattr("hyrt.training.trainers.find_device", lambda name: (FpgaCsimDevice, info))
    config = build_config({"sampler": {"kind": "full"}, "devices": "fpga-csim"})
    with pytest.raises(
        UnsupportedModelError, match=r"^fpga-csim:0 does not support --full-graph .* or remove --full-graph"
    ):
        find_trainers(config)
