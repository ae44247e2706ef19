"""Whole graphs in chunks on torch devices, on the CPU by a double of the driver: equal to dense float64."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from graphs import random_graph
from hyrt_devices.cuda import chunk_memory, tile_math, torch_chunks
from hyrt_devices.cuda.device import CudaDevice
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.capabilities import usable_forms
from hyrt.errors import DeviceFaultError, DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.fullgraph.chunk_grid import BufferSizes, ChunkGrid
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.graph.graph import Graph
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.torch_threads import torch_threads
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import check_device
from hyrt.testing.cases import ROWS, full_graph_batches, randomize_parameters
from hyrt.testing.trial import check_agreement, compute_reference, copy_result, load_model, run_step

INFO = DeviceInfo(
    whole_graphs=True,
    kind="cuda",
    index=0,
    description="a double of the driver",
    memory_bytes=1 << 30,
    forms=("rows", "ids"),
)
MASKS = {"dropout": 0.4, "input_dropout": 0.2}
MODELS: dict[str, dict[str, Any]] = {
    "gcn": {"kind": "gcn"},
    "gcn, one layer": {"kind": "gcn", "layers": 1},
    "gcn, masks": {"kind": "gcn", "layers": 3, **MASKS},
    "graphsage": {"kind": "graphsage", "layers": 3},
    "graphsage, sum, masks": {"kind": "graphsage", "aggregate": "sum", **MASKS},
    "gin": {"kind": "gin", "layers": 3},
}


@pytest.fixture(autouse=True)
def one_torch_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators that work on few numbers at a time, so that small graphs are cut into many pieces."""
    for module in (chunk_memory, tile_math):
        monkeypatch.setattr(module, "WORK_NUMBERS", 600)


def opened(**options: Any) -> CudaDevice:
    return CudaDevice(INFO, DeviceOptions(**options), FakeDriver())


def model_of(graph: Graph, **more: Any) -> GNN:
    chosen = {"hidden": 21, "layers": 2, **more}
    model: GNN = randomize_parameters(
        GNN(Architecture(in_features=graph.num_features, num_classes=graph.num_classes, **chosen))
    )
    return model


def batches_of(graph: Graph, model: GNN, targets: int | None = None) -> list[MiniBatch]:
    chosen = np.random.default_rng(2).permutation(graph.split("train"))[:targets]
    return full_graph_batches(graph, len(model.layers), chosen, ROWS, steps=[0, 1], class_weights=True)


@pytest.mark.usefixtures("small_work")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.bits] if "masks" in name else []) for name in MODELS]
)
def test_steps_in_chunks_are_those_of_the_dense_reference(name: str) -> None:
    graph = random_graph(90, features=19, symmetric="graphsage" not in name)
    model = model_of(graph, **MODELS[name])
    for num, order, targets, filter_below in (
        (1, "column-row", None, None),
        (4, "column-row", 20, 1.0),
        (3, "row-column", None, 1.0),
    ):
        device = opened()
        device.take_chunks(ChunkOptions(num, order, filter_below=filter_below))  # type: ignore[arg-type]
        load_model(device, model)
        batches = batches_of(graph, model, targets)
        for batch in batches:
            check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
            assert device.num_chunks == num
        first = copy_result(run_step(device, batches[0]))
        again = run_step(device, batches[0])
        assert again.loss_sum == first.loss_sum
        assert all(torch.equal(a, b) for a, b in zip(again.gradients, first.gradients, strict=True))
        device.close()


def test_a_device_that_trains_in_chunks_follows_the_protocol() -> None:
    report = check_device(
        lambda options: CudaDevice(INFO, options, FakeDriver()), cycles=1, only="a full graph in chunks"
    )
    assert [verdict.outcome for verdict in report.verdicts] == ["passed"]


@pytest.mark.usefixtures("small_work")
def test_the_least_number_of_chunks_fits_and_operators_take_no_more() -> None:
    graph = random_graph(600, features=19, degree=6)
    model = model_of(graph, kind="gin")
    batches = batches_of(graph, model)
    found = []
    for budget in (200_000, 300_000, 8_000_000):
        device = opened(memory_bytes=budget)
        device.take_chunks(ChunkOptions())
        load_model(device, model)
        check_agreement(run_step(device, batches[0]), compute_reference(model, batches[0], graph))
        assert device.num_chunks is not None
        found.append(device.num_chunks)
        described = device._description
        assert described is not None
        targets = np.sort(batches[0].targets)
        sizes = ChunkGrid.build(graph.topology, targets, device.num_chunks, has_hidden_layers=True).sizes
        needed = chunk_memory.needed_bytes(described, sizes)
        assert needed + device._resident_bytes() <= budget
        assert device._chunks is not None
        kernels = device._chunks.memory.kernels
        assert kernels is not None
        memory = kernels._memory
        [edges], [read] = memory.edges, memory.read
        lasting = [read, memory.accumulated, *memory.results, edges.rows, edges.starts]
        lasting += [edges.columns, edges.row_scale, edges.column_scale]
        # The second step allocates what its operators need for a while, and nothing else.
        assert peak_bytes(partial(run_step, device, batches[1])) <= needed - sum(
            each.nbytes for each in lasting
        )
        device.close()
    assert found == sorted(found, reverse=True)
    assert found[0] > found[2] == 1


def test_every_chunk_in_flight_is_counted_to_the_byte() -> None:
    """With what the allocator rounds each tensor up to."""
    graph = random_graph(600, features=19, degree=6)
    described = model_of(graph, kind="gin").description()
    sizes = ChunkGrid.build(graph.topology, np.sort(graph.split("train")), 4, has_hidden_layers=True).sizes
    counted, taken = [], []
    for in_flight in (1, 2, 3):
        counted.append(chunk_memory.needed_bytes(described, sizes, in_flight))
        places = BufferSizes.from_model(described, sizes)
        memory = chunk_memory.ChunkMemory.take(places, torch.device("cpu"), in_flight)
        flat = [*memory.read, memory.accumulated, *memory.results]
        for edges in memory.edges:
            flat += [edges.rows, edges.starts, edges.columns, edges.row_scale, edges.column_scale]
        rounded = chunk_memory._ROUND_BYTES
        taken.append(sum(-(-each.nbytes // rounded) * rounded for each in flat))
    assert np.diff(counted).tolist() == np.diff(taken).tolist()
    assert counted[0] >= taken[0]


def peak_bytes(work: Any) -> int:
    """The most that torch's allocator has given out at a time while something is done."""
    with torch.profiler.profile(profile_memory=True) as seen:
        work()
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.usefixtures("small_work")
def test_a_driver_with_less_memory_than_it_says_makes_chunks_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(300, features=19)
    model = model_of(graph, kind="gcn")
    device = opened()
    device.take_chunks(ChunkOptions())
    load_model(device, model)
    take, seen = chunk_memory.ChunkMemory.take, []

    def short(places: Any, where: Any, in_flight: int) -> Any:
        seen.append(places.read)
        if len(seen) < 3:
            raise torch.OutOfMemoryError("out of memory")
        return take(places, where, in_flight)

    monkeypatch.setattr(chunk_memory.ChunkMemory, "take", short)
    [batch, _] = batches_of(graph, model)
    check_agreement(run_step(device, batch), compute_reference(model, batch, graph))
    assert device.num_chunks == 4
    assert seen == sorted(seen, reverse=True)
    device.close()


def test_chunks_are_copied_on_a_stream_that_waits_for_what_used_their_memory_last() -> None:
    graph = random_graph(300, features=19)
    model = model_of(graph, kind="gcn", layers=3)
    batches, grads = batches_of(graph, model), []
    for in_flight in (1, 2, 3):
        device = opened()
        device.take_chunks(ChunkOptions(4, in_flight=in_flight))
        load_model(device, model)
        driver = device._driver
        assert isinstance(driver, FakeDriver)
        driver.calls.clear()
        grads.append(run_step(device, batches[0]).gradients)
        marks = [(call[1], call[2]) for call in driver.calls if call[0] == "mark"]
        orders = [(call[1], call[2].stream) for call in driver.calls if call[0] == "order"]
        copies, compute = device._copies, device._compute
        # Each copy has a mark at its begin and one at its end.
        copied, odd = divmod(sum(stream == copies for stream, _ in marks), 2)
        assert not odd
        # Whatever was copied, computing waits for it; and it waited for what the memory held before.
        assert orders.count((compute, copies)) == copied
        assert bool(copied) == (in_flight > 1)
        if in_flight > 1:
            waits = orders.count((copies, compute))
            assert 0 < copied - waits <= 2 * in_flight
        device.close()
    assert all(torch.equal(a, b) for other in grads[1:] for a, b in zip(grads[0], other, strict=True))


def test_a_device_without_room_says_so_and_goes_on() -> None:
    graph = random_graph(300, features=19)
    model = model_of(graph, kind="gcn")
    device = opened(memory_bytes=100_000)
    device.take_chunks(ChunkOptions())
    load_model(device, model)
    with pytest.raises(DeviceOutOfMemoryError, match="even single-vertex chunks need") as told:
        run_step(device, batches_of(graph, model)[0])
    assert "fullgraph.device_memory" in told.value.remedy
    assert not device._staged
    device.close()


def test_a_device_that_breaks_in_a_chunk_faults_with_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(60, features=19)
    model = model_of(graph, kind="gcn")
    device = opened()
    device.take_chunks(ChunkOptions(2))
    load_model(device, model)
    [batch, other] = batches_of(graph, model)
    run_step(device, batch)
    broken = RuntimeError("the driver is gone")

    def gather(*arguments: Any, **more: Any) -> None:
        device._driver.broken = broken
        raise broken

    monkeypatch.setattr(torch_chunks.TorchChunks, "gather", gather)
    with pytest.raises(DeviceFaultError, match="the driver is gone") as told:
        run_step(device, other)
    assert told.value.__cause__ is broken
    with pytest.raises(DeviceFaultError, match="the driver is gone"):
        device.transfer(batch)
    device.close()


def test_a_model_without_a_description_is_refused_with_the_remedy() -> None:
    graph = random_graph(60, features=19)
    device = opened()
    device.take_chunks(ChunkOptions(2))
    with pytest.raises(
        UnsupportedModelError, match=r"GNN cannot train in chunks on cuda:0.*: remove the fullgraph settings"
    ):
        load_model(device, model_of(graph, kind="gat", hidden=8, heads=2))
    device.close()


def test_in_chunks_features_are_left_on_the_host() -> None:
    device = opened()
    assert usable_forms(device, random_graph(60), in_chunks=True) == ["in_place", "rows"]
    assert device._features is None
    device.close()


def test_rows_that_were_offered_are_kept_until_the_next_device_has_copied_them() -> None:
    driver = FakeDriver()
    kernels = torch_chunks.TorchChunks.__new__(torch_chunks.TorchChunks)
    kernels._driver, kernels._stream = driver, "compute 0"
    copied = driver.mark("copies 1")
    driver.calls.clear()
    kernels.hold_rows(copied)
    assert driver.calls == [("order", "compute 0", copied)]
