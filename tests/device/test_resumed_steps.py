"""Steps in chunks that end between any two columns go on there: the same bits as without a pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda.device import CudaDevice
from hyrt_devices.opencl import OpenclDevice
from opencl_steps import opened
from unit.cuda.fake_driver import FakeDriver
from unit.fullgraph.pauses import Pauses

from hyrt.device import Device, DeviceInfo, DeviceOptions, StepResult
from hyrt.device.capabilities import CheckpointsSteps, RunsChunks
from hyrt.errors import StepInterrupted
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.pipeline.trainer import InputPlan
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, copy_result, load_model, run_step
from hyrt.training.chunk_device_group import ChunkDeviceGroup, DeviceGroupInfo

needs_opencl = pytest.mark.skipif(
    not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device"
)
TORCH = DeviceInfo(
    kind="cuda", index=0, description="a double of the driver", memory_bytes=1 << 30, whole_graphs=True
)


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def team_of(devices: list[Device]) -> ChunkDeviceGroup:
    infos = [replace(device.info, index=number) for number, device in enumerate(devices)]
    info = DeviceGroupInfo(
        kind="team",
        index=0,
        description="several",
        memory_bytes=0,
        members=tuple((type(device), each) for device, each in zip(devices, infos, strict=True)),
        shares=tuple(1.0 + number for number in range(len(devices))),
        continue_on_loss=False,
    )
    return ChunkDeviceGroup(info, devices)


def cpu() -> Device:
    return CpuDevice(CpuDevice.probe()[0], DeviceOptions())


def torch_in_chain() -> Device:
    return CudaDevice(TORCH, DeviceOptions(), FakeDriver(reaches=True))


DEVICES: dict[str, Callable[[], Any]] = {
    "cpu": lambda: team_of([cpu()]),
    "three in a chain": lambda: team_of([torch_in_chain() for _ in range(3)]),
    "opencl": opened,
    "opencl with memory and cpu": lambda: team_of([opened("tiled"), cpu()]),
}
KINDS = [pytest.param(name, marks=needs_opencl if "opencl" in name else ()) for name in DEVICES]


def loaded(device: Any, model: GNN, options: ChunkOptions, keeper: Pauses) -> Any:
    assert isinstance(device, RunsChunks)
    assert isinstance(device, CheckpointsSteps)
    device.take_chunks(options)
    device.take_step_checkpointer(keeper)
    load_model(device, model)
    return device


def problem(plan: InputPlan = ROWS, **more: Any) -> tuple[Graph, GNN, list[MiniBatch]]:
    graph = random_graph(90, features=7)
    chosen = {"kind": "gcn", "hidden": 9, "layers": 3, **more}
    model: GNN = randomize_parameters(
        GNN(Architecture(in_features=7, num_classes=graph.num_classes, **chosen))
    )
    targets = np.random.default_rng(2).permutation(graph.split("train"))
    return graph, model, full_graph_batches(graph, len(model.layers), targets, plan, steps=[0, 1])


def assert_equal(mine: StepResult, wanted: StepResult) -> None:
    assert mine.loss_sum == wanted.loss_sum
    assert mine.counts == wanted.counts
    assert all(torch.equal(a, b) for a, b in zip(mine.gradients, wanted.gradients, strict=True))


def paused(
    device: Any, model: GNN, options: ChunkOptions, batches: list[MiniBatch], path: Path, after: int
) -> Pauses:
    """The last step ends when it was asked so often; the steps before are whole."""
    first = Pauses(path)
    loaded(device, model, options, first)
    for batch in batches[:-1]:
        run_step(device, batch)
    first.after = first.asked + after
    with pytest.raises(StepInterrupted):
        run_step(device, batches[-1])
    return first


@pytest.mark.parametrize("name", KINDS)
def test_a_step_that_ends_between_any_two_columns_goes_on_there(name: str, tmp_path: Path) -> None:
    """The second step: what the first one has left, the process that goes on does not have."""
    options = ChunkOptions(3, in_flight=2)
    graph, model, batches = problem(dropout=0.4)
    one, other = DEVICES[name](), DEVICES[name]()
    counting = Pauses(tmp_path / "none.npz")
    loaded(one, model, options, counting)
    run_step(one, batches[0])
    before = counting.asked
    wanted = copy_result(run_step(one, batches[1]))
    check_agreement(wanted, compute_reference(model, batches[1], graph))
    places = set()
    for after in range(0, counting.asked - before, 2):
        (told,) = paused(one, model, options, batches, tmp_path / "step.npz", after).told
        places.add((told.number, tuple(told.columns)))
        second = Pauses(tmp_path / "step.npz", reads=True)
        found = run_step(loaded(other, model, options, second), batches[1])
        assert second.begun_at[0] is not None
        assert_equal(copy_result(found), wanted)
    # Three layers are five passes, and it ends in each of them.
    assert {number for number, _ in places} == {0, 1, 2, 3, 4}
    assert len(places) > 5
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("order", "more"),
    [
        ("column-row", {"layers": 1}),
        ("column-row", {"kind": "graphsage", "layers": 2, "dropout": 0.3, "input_dropout": 0.2}),
        ("row-column", {"kind": "gin", "layers": 2}),
    ],
)
def test_other_models_and_orders_go_on(order: Any, more: dict[str, Any], tmp_path: Path) -> None:
    options = ChunkOptions(5, order)
    graph, model, batches = problem(**more)
    device = DEVICES["cpu"]()
    wanted = copy_result(run_step(loaded(device, model, options, Pauses(tmp_path / "none.npz")), batches[0]))
    check_agreement(wanted, compute_reference(model, batches[0], graph))
    for after in (0, 1, 2):
        (told,) = paused(device, model, options, batches[:1], tmp_path / "step.npz", after).told
        assert told.num_passes == 2 * len(model.layers) - 1
        second = Pauses(tmp_path / "step.npz", reads=True)
        assert_equal(copy_result(run_step(loaded(device, model, options, second), batches[0])), wanted)
        assert second.begun_at[0] is not None
    device.close()


@pytest.mark.bits
@pytest.mark.parametrize("name", ["cpu", "three in a chain"])
def test_a_step_that_is_kept_and_goes_on_has_the_same_bits(name: str, tmp_path: Path) -> None:
    options = ChunkOptions(6)
    _, model, batches = problem()
    device = DEVICES[name]()
    wanted = [
        copy_result(run_step(loaded(device, model, options, Pauses(tmp_path / "none.npz")), batches[0]))
    ]
    keeper = Pauses(tmp_path / "step.npz", after=2, goes_on=True)
    assert_equal(copy_result(run_step(loaded(device, model, options, keeper), batches[0])), wanted[0])
    assert len(keeper.told) > 3
    # What was written last is that of a process that is killed later.
    second = Pauses(tmp_path / "step.npz", reads=True)
    assert_equal(copy_result(run_step(loaded(device, model, options, second), batches[0])), wanted[0])
    device.close()


def test_a_step_of_another_cut_or_other_devices_begins_again(tmp_path: Path) -> None:
    _, model, batches = problem()
    device, others = DEVICES["cpu"](), team_of([cpu(), cpu()])
    paused(device, model, ChunkOptions(4), batches[:1], tmp_path / "step.npz", 5)
    for taken, options in ((device, ChunkOptions(5)), (others, ChunkOptions(4))):
        wanted = copy_result(
            run_step(loaded(taken, model, options, Pauses(tmp_path / "none.npz")), batches[0])
        )
        second = Pauses(tmp_path / "step.npz", reads=True)
        assert_equal(copy_result(run_step(loaded(taken, model, options, second), batches[0])), wanted)
        assert second.begun_at == [None]
        taken.close()


def test_a_step_is_cut_as_it_was_where_that_fits(tmp_path: Path) -> None:
    """Without a number of chunks, a process that goes on may find other memory free."""
    _, model, batches = problem()
    device = DEVICES["cpu"]()
    paused(device, model, ChunkOptions(4), batches[:1], tmp_path / "step.npz", 5)
    wanted = copy_result(
        run_step(loaded(device, model, ChunkOptions(4), Pauses(tmp_path / "none.npz")), batches[0])
    )
    second = Pauses(tmp_path / "step.npz", reads=True)
    loaded(device, model, ChunkOptions(), second)
    assert_equal(copy_result(run_step(device, batches[0])), wanted)
    assert device.num_chunks == 4
    device.close()


# The host computes the vertices, so that a step pauses between halves of its layers.
GAT = {"kind": "gat", "heads": 3, "layers": 2, "dropout": 0.3, "attention_dropout": 0.2}


def limited(device: Any) -> Any:
    """What is computed of so few rows is not kept besides, and computed again."""
    device.take_host_budget(HostMemoryBudget(1 << 30))
    return device


@pytest.mark.parametrize("name", [each for each in KINDS if each.values != ("three in a chain",)])
def test_a_step_of_loops_that_ends_after_any_half_of_a_layer_goes_on_there(name: str, tmp_path: Path) -> None:
    options = ChunkOptions(3)
    graph, model, batches = problem(**GAT)
    one, other = limited(DEVICES[name]()), limited(DEVICES[name]())
    counting = Pauses(tmp_path / "none.npz")
    wanted = copy_result(run_step(loaded(one, model, options, counting), batches[0]))
    check_agreement(wanted, compute_reference(model, batches[0], graph))
    assert counting.asked == 8
    for after in range(counting.asked):
        paused(one, model, options, batches[:1], tmp_path / "step.npz", after)
        second = Pauses(tmp_path / "step.npz", reads=True)
        found = run_step(loaded(other, model, options, second), batches[0])
        assert second.begun_at[0] is not None
        assert_equal(copy_result(found), wanted)
    one.close()
    other.close()


@needs_opencl
def test_loops_stay_cut_as_they_were_where_there_is_more_memory(tmp_path: Path) -> None:
    """Else a sum over chunks would be another one, in the last bits."""
    _, model, batches = problem(**GAT)
    small, large = limited(opened("tiled", memory_bytes=12_000)), limited(opened("tiled"))
    # The first step finds out what fits.
    for device in (large, small):
        run_step(loaded(device, model, ChunkOptions(), Pauses(tmp_path / "none.npz")), batches[0])
    wanted = copy_result(run_step(small, batches[1]))
    num = small.num_chunks
    assert num > large.num_chunks
    for after in (0, 3, 5):
        paused(small, model, ChunkOptions(), batches, tmp_path / "step.npz", after)
        second = Pauses(tmp_path / "step.npz", reads=True)
        found = run_step(loaded(large, model, ChunkOptions(), second), batches[1])
        assert_equal(copy_result(found), wanted)
        assert second.begun_at[0] is not None
        assert large.num_chunks == num
    small.close()
    large.close()
