"""Columns of chunks on unlike devices: OpenCL twice, a torch device by a double of its driver, the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.opencl import OpenclDevice
from opencl_steps import opened
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import Device, DeviceInfo, DeviceOptions
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.testing.cases import ROWS, shaken, whole_graph
from hyrt.testing.trial import agree, expected, load, step
from hyrt.training.team.chunk_team import ChunkTeam, TeamInfo

TORCH = DeviceInfo(
    kind="cuda", index=0, description="a double of the driver", memory_bytes=1 << 30, whole_graphs=True
)
needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def device_of(kind: str) -> Device:
    if kind == "torch":
        return CudaDevice(TORCH, DeviceOptions(), FakeDriver())
    if kind == "opencl":
        return opened("chosen")
    return CpuDevice(CpuDevice.probe()[0], DeviceOptions())


def team_of(kinds: list[str], shares: list[float]) -> ChunkTeam:
    devices = [device_of(kind) for kind in kinds]
    infos = [replace(device.info, index=number) for number, device in enumerate(devices)]
    info = TeamInfo(
        kind="team",
        index=0,
        description="several",
        memory_bytes=0,
        members=tuple((type(device), each) for device, each in zip(devices, infos, strict=True)),
        shares=tuple(shares),
        continue_on_loss=False,
    )
    return ChunkTeam(info, devices)


@needs_opencl
@pytest.mark.parametrize(
    ("kinds", "shares"),
    [
        (["opencl", "opencl"], [1.0, 1.0]),
        (["torch", "cpu"], [2.0, 1.0]),
        (["cpu", "opencl", "torch"], [1.0, 3.0, 2.0]),
    ],
    ids=lambda each: "+".join(map(str, each)),
)
def test_a_step_is_that_of_the_dense_reference(kinds: list[str], shares: list[float]) -> None:
    graph = random_graph(90, features=19)
    model: GNN = shaken(
        GNN(
            Architecture(
                kind="gcn",
                in_features=19,
                hidden=21,
                num_classes=graph.num_classes,
                layers=3,
                dropout=0.4,
                input_dropout=0.2,
            )
        )
    )
    team = team_of(kinds, shares)
    batches = whole_graph(graph, 3, graph.split("train"), ROWS, steps=[0, 1], class_weights=True)
    for num, in_flight in ((1, 1), (4, 2), (7, 3)):
        team.take_chunks(ChunkOptions(num, in_flight=in_flight))
        load(team, model)
        for batch in batches:
            agree(step(team, batch), expected(model, batch, graph))
            assert team.num_chunks == num
    team.close()


def test_sums_of_gradients_are_added_in_the_order_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three numbers, one order of adding rounds otherwise than another."""
    graph = random_graph(90, features=19)
    model: GNN = shaken(
        GNN(Architecture(kind="gcn", in_features=19, hidden=21, num_classes=graph.num_classes))
    )
    team = team_of(["cpu", "cpu", "cpu"], [1.0, 1.0, 1.0])
    given: dict[int, list[np.ndarray]] = {}
    gradients = CpuDevice.chunk_gradients

    def noted(self: CpuDevice) -> Any:
        found = gradients(self)
        given[id(self)] = [each.numpy().copy() for each in found]
        return found

    monkeypatch.setattr(CpuDevice, "chunk_gradients", noted)
    team.take_chunks(ChunkOptions(6))
    load(team, model)
    [batch] = whole_graph(graph, 2, graph.split("train"), ROWS, steps=[0], class_weights=True)
    made = step(team, batch).gradients
    first, second, third = (given[id(device)] for device in team.members)
    for sums, a, b, c in zip(made, first, second, third, strict=True):
        assert np.array_equal(sums.numpy(), (a + b) + c)
    assert any(
        not np.array_equal((a + b) + c, (c + b) + a) for a, b, c in zip(first, second, third, strict=True)
    )
    team.close()
