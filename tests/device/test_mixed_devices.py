"""Columns of chunks on unlike devices: OpenCL twice, a torch device by a double of its driver, the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.cuda.torch_chunks import TorchChunkMemory
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.chunk_launches import OpenclChunkMemory
from opencl_steps import opened
from unit.cuda.fake_driver import FakeDriver, Mark

from hyrt.device import Device, DeviceInfo, DeviceOptions, StepResult
from hyrt.fullgraph.chunk_stats import describe_chunks
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, load_model, run_step
from hyrt.training.chunk_device_group import ChunkDeviceGroup, DeviceGroupInfo

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
    if kind.startswith("torch"):
        return CudaDevice(TORCH, DeviceOptions(), FakeDriver(reaches=kind == "torch of a chain"))
    if kind.startswith("opencl"):
        return opened("tiled" if kind == "opencl with memory" else "chosen")
    return CpuDevice(CpuDevice.probe()[0], DeviceOptions())


def team_of(kinds: list[str], shares: list[float]) -> ChunkDeviceGroup:
    devices = [device_of(kind) for kind in kinds]
    infos = [replace(device.info, index=number) for number, device in enumerate(devices)]
    info = DeviceGroupInfo(
        kind="team",
        index=0,
        description="several",
        memory_bytes=0,
        members=tuple((type(device), each) for device, each in zip(devices, infos, strict=True)),
        shares=tuple(shares),
        continue_on_loss=False,
    )
    return ChunkDeviceGroup(info, devices)


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
    model: GNN = randomize_parameters(
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
    batches = full_graph_batches(graph, 3, graph.split("train"), ROWS, steps=[0, 1], class_weights=True)
    for num, in_flight in ((1, 1), (4, 2), (7, 3)):
        team.take_chunks(ChunkOptions(num, in_flight=in_flight))
        load_model(team, model)
        for batch in batches:
            check_agreement(run_step(team, batch), compute_reference(model, batch, graph))
            assert team.num_chunks == num
    team.close()


@pytest.mark.parametrize(
    "kinds",
    [
        ["torch of a chain"] * 3,
        pytest.param(["opencl with memory", "cpu", "opencl with memory"], marks=needs_opencl),
    ],
    ids=lambda each: each[0],
)
def test_devices_that_reach_each_other_hand_rows_on(
    kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits, and as many bytes less from the host as are handed on."""
    graph = random_graph(90, features=19)
    model: GNN = randomize_parameters(
        GNN(Architecture(kind="gcn", in_features=19, hidden=21, num_classes=graph.num_classes, layers=3))
    )
    batches = full_graph_batches(graph, 3, graph.split("train"), ROWS, steps=[0, 1], class_weights=True)
    results: dict[str, list[StepResult]] = {"in a chain": [], "each from the host": []}
    for how, found in results.items():
        if how == "each from the host":
            for room in (TorchChunkMemory, OpenclChunkMemory):
                monkeypatch.setattr(room, "can_access", lambda self, other: False)
        team = team_of(kinds, [1.0] * 3)
        team.take_chunks(ChunkOptions(5, in_flight=2, filter_below=0.0))
        load_model(team, model)
        for batch in batches:
            found.append(run_step(team, batch))
            check_agreement(found[-1], compute_reference(model, batch, graph))
        team.close()
    for chained, alone in zip(*results.values(), strict=True):
        assert chained.loss_sum == alone.loss_sum
        pairs = zip(chained.gradients, alone.gradients, strict=True)
        assert all(np.array_equal(mine, other) for mine, other in pairs)
        assert chained.chunks is not None
        assert alone.chunks is not None
        assert alone.chunks.handed_bytes == 0
        assert chained.chunks.handed_bytes > 0
        assert chained.chunks.in_bytes + chained.chunks.handed_bytes == alone.chunks.in_bytes
        assert "forwarded between devices" in describe_chunks(chained.chunks.figures())


def test_streams_of_a_chain_wait_for_the_copies_of_other_devices() -> None:
    """Who is given rows waits until they are there; who gave them keeps them until they were copied."""
    graph = random_graph(90, features=19)
    model: GNN = randomize_parameters(
        GNN(Architecture(kind="gcn", in_features=19, hidden=21, num_classes=graph.num_classes, layers=3))
    )
    [batch] = full_graph_batches(graph, 3, graph.split("train"), ROWS, steps=[0])
    for in_flight in (1, 2):
        team = team_of(["torch of a chain"] * 3, [1.0] * 3)
        team.take_chunks(ChunkOptions(5, in_flight=in_flight, filter_below=0.0))
        load_model(team, model)
        run_step(team, batch)
        devices = [device for device in team._devices if isinstance(device, CudaDevice)]
        calls = [cast(FakeDriver, device._driver).calls for device in devices]
        owner = {
            id(call[2]): number for number, each in enumerate(calls) for call in each if call[0] == "mark"
        }
        taken: list[tuple[int, int]] = []
        kept: list[tuple[int, int]] = []
        for number, (device, each) in enumerate(zip(devices, calls, strict=True)):
            copying = device._copies if in_flight > 1 else device._compute
            for call in each:
                if call[0] != "order" or owner[id(call[2])] == number:
                    continue
                other, mark = owner[id(call[2])], cast(Mark, call[2])
                # Both are marks of copies, of which computing alone has to wait for the later device's.
                assert mark.stream == (devices[other]._copies if in_flight > 1 else devices[other]._compute)
                assert call[1] == (copying if other < number else device._compute)
                (taken if other < number else kept).append((number, other))
        assert sorted(taken) == sorted((number, other) for other, number in kept)
        assert {(1, 0), (2, 1)} <= set(taken)
        team.close()


def test_sums_of_gradients_are_added_in_the_order_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three numbers, one order of adding rounds otherwise than another."""
    graph = random_graph(90, features=19)
    model: GNN = randomize_parameters(
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
    load_model(team, model)
    [batch] = full_graph_batches(graph, 2, graph.split("train"), ROWS, steps=[0], class_weights=True)
    made = run_step(team, batch).gradients
    first, second, third = (given[id(device)] for device in team.members)
    for sums, a, b, c in zip(made, first, second, third, strict=True):
        assert np.array_equal(sums.numpy(), (a + b) + c)
    assert any(
        not np.array_equal((a + b) + c, (c + b) + a) for a, b, c in zip(first, second, third, strict=True)
    )
    team.close()
