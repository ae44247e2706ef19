"""The torch device over a double of its driver: real tensors on the CPU, every driver call written down."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from graphs import dense_features, random_graph
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.cuda import device as cuda_device
from hyrt_devices.cuda.blocks import ResidentHop
from hyrt_devices.cuda.device import CudaDevice, MpsDevice, TorchDevice, XpuDevice
from hyrt_devices.cuda.feature_rows import MappedFeatures, ResidentFeatures
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver
from unit.nn.dense_reference import parameters_of, scores

import hyrt
from hyrt.device import DeviceInfo, DeviceOptions
from hyrt.device.discovery import find_device
from hyrt.errors import (
    ArgumentError,
    DeviceFaultError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    UnsupportedModelError,
)
from hyrt.formatting import format_bytes
from hyrt.graph.graph import Graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.operators import linear, tensor_ops
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import InputPlan
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.neighbor_sampler import NeighborSampler

INFO = DeviceInfo(
    whole_graphs=True,
    kind="cuda",
    index=0,
    description="a double of the driver",
    memory_bytes=1 << 30,
    forms=("rows", "ids"),
)


@pytest.fixture(autouse=True)
def off_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as on a device, although the double's tensors are the CPU's."""

    def torch_linear(
        x: Any, weight: Any, bias: Any = None, *, relu: bool = False, low_precision: bool = False
    ):
        return tensor_ops.linear_tensors(x, weight, bias, relu=relu, low_precision=low_precision)

    monkeypatch.setattr("hyrt.nn.layers.linear", torch_linear)
    monkeypatch.setattr("hyrt.nn.model.linear", torch_linear)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver()


@pytest.fixture(params=["torch", pytest.param("kernels", marks=needs_compiler)])
def device(request: pytest.FixtureRequest, driver: FakeDriver) -> Iterator[TorchDevice]:
    launcher = EmulatedLauncher(driver) if request.param == "kernels" else None
    opened = CudaDevice(INFO, DeviceOptions(), driver, launcher)
    yield opened
    driver.broken = None
    opened.close()


def model_of(kind: str = "graphsage", **more: Any) -> GNN:
    torch.manual_seed(0)
    settings: dict[str, Any] = {"hidden": 8, "num_classes": 3, "heads": 2, "in_features": 12} | more
    return GNN(Architecture(kind=kind, **settings))  # type: ignore[arg-type]


def batch_of(graph: Graph, size: int | None = 32, *, form: str = "rows", step: int = 0) -> MiniBatch:
    sampler = NeighborSampler(graph, graph.split("train"), [4, 4], 32, 0)
    workers = Workers(1, "test")
    batch = sampler.sample(step, sampler.units(step)[:size], workers, in_place=False)
    Loader(graph.features).load(batch, InputPlan(form), workers)  # type: ignore[arg-type]
    return batch


def loaded(device: TorchDevice, kind: str = "graphsage", **more: Any) -> GNN:
    model = model_of(kind, **more)
    device.load(model, list(model.parameters()))
    return model


def gradients_near(mine: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], bound: float = 1e-5) -> None:
    for a, b in zip(mine, wanted, strict=True):
        assert a.dtype == torch.float32
        assert a.device.type == "cpu"
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=bound * (float(b.abs().max()) + 1e-6), rtol=0)


@pytest.mark.parametrize("more", [{}, {"norm": "layer", "residual": True}], ids=["plain", "norm+residual"])
@pytest.mark.parametrize("kind", ["graphsage-mean", "graphsage-max", "gcn", "gin", "gat"])
def test_sums_agree_with_dense_float64(device: TorchDevice, kind: str, more: dict[str, Any]) -> None:
    """Loss, correct count and gradient sums against dense matrices that share no code with hyrt.nn."""
    graph = random_graph()
    name, _, reduce = kind.partition("-")
    model = loaded(device, name, **({"aggregate": reduce} if reduce else {}), **more)
    batch = batch_of(graph)
    batch.target_weights = np.linspace(0.5, 2, 32).astype(np.float32)
    result = device.propagate(device.transfer(batch))
    rows = torch.from_numpy(dense_features(graph)[batch.blocks[0].sources])
    p = parameters_of(model)
    out = scores(kind, batch.blocks, rows, p, residual=bool(more), norm=bool(more))
    labels = torch.from_numpy(batch.labels)
    losses = -out.log_softmax(1)[torch.arange(len(labels)), labels]
    loss = (losses * torch.from_numpy(batch.target_weights)).sum()
    loss.backward()
    assert result.loss_sum == pytest.approx(loss.item(), rel=1e-5)
    assert result.counts["correct"] == int((out.argmax(1) == labels).sum())
    assert result.counts["targets"] == result.normalizer == 32
    assert set(result.seconds) == {"transfer", "propagate"}
    assert all(seconds >= 0 for seconds in result.seconds.values())
    gradients_near(result.gradients, [q.grad for q in p.values() if q.grad is not None])


@pytest.mark.parametrize("kind", ["graphsage", "gcn", "gin", "gat"])
def test_dropout_and_weighted_edges_agree_with_the_cpu_trainer(device: TorchDevice, kind: str) -> None:
    graph = random_graph()
    more = {"dropout": 0.5, "input_dropout": 0.2}
    model = loaded(device, kind, **more)
    cpu = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions())
    cpu.load(model, list(model.parameters()))
    batch = batch_of(graph, step=2)
    for block in batch.blocks:
        block.weights = np.linspace(0.5, 1.5, block.num_edges).astype(np.float32)
    mine, wanted = device.propagate(device.transfer(batch)), cpu.propagate(cpu.transfer(batch))
    cpu.close()
    assert mine.loss_sum == pytest.approx(wanted.loss_sum, rel=1e-5)
    gradients_near(mine.gradients, wanted.gradients)


def test_low_precision_products_run(device: TorchDevice) -> None:
    graph = random_graph()
    batch = batch_of(graph)
    loaded(device)
    exact = device.propagate(device.transfer(batch))
    loaded(device, low_precision=True)
    rough = device.propagate(device.transfer(batch))
    assert rough.loss_sum != exact.loss_sum
    assert rough.loss_sum == pytest.approx(exact.loss_sum, rel=0.02)


def test_equal_mini_batches_give_equal_bits(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device, "gcn", dropout=0.5)
    first, second = (device.propagate(device.transfer(batch_of(graph))) for _ in range(2))
    assert first.loss_sum == second.loss_sum
    assert all(a.equal(b) for a, b in zip(first.gradients, second.gradients, strict=True))


def test_nothing_and_one_target(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    none = device.propagate(device.transfer(batch_of(graph, 0)))
    assert (none.loss_sum, none.counts, list(none.gradients)) == (0.0, {}, [])
    assert device.propagate(device.transfer(batch_of(graph, 1))).counts["targets"] == 1


def test_new_weights_arrive_and_the_copy_is_the_devices_own(device: TorchDevice) -> None:
    graph = random_graph()
    model = loaded(device)
    batch = batch_of(graph)
    before = device.propagate(device.transfer(batch)).loss_sum
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert device.propagate(device.transfer(batch)).loss_sum == before
    device.update(list(model.parameters()))
    after = device.propagate(device.transfer(batch)).loss_sum
    assert after == pytest.approx(32 * np.log(3), rel=1e-6)


def test_results_outlive_the_next_step(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    first = device.propagate(device.transfer(batch_of(graph)))
    kept = [g.clone() for g in first.gradients]
    device.propagate(device.transfer(batch_of(graph, step=1)))
    assert all(a.equal(b) for a, b in zip(first.gradients, kept, strict=True))


class OwnModule(torch.nn.Module):
    """A user's model: it knows blocks only by their edge list, and has a frozen and an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(12, 8)
        self.outer = torch.nn.Linear(8, 3)
        self.frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        for block, layer in zip(blocks, (self.inner, self.outer), strict=True):
            sources, destinations = block.edge_index()
            total = x.new_zeros(block.num_dst, x.shape[1]).index_add(0, destinations, x[sources])
            x = layer(total + self.frozen * x[: block.num_dst]).tanh()
        return x


def test_any_module_runs(device: TorchDevice) -> None:
    graph = random_graph()
    torch.manual_seed(1)
    model = OwnModule()
    trained = [p for p in model.parameters() if p.requires_grad]
    device.load(model, trained)
    batch = batch_of(graph)
    result = device.propagate(device.transfer(batch))
    loss = torch.nn.functional.cross_entropy(
        model(batch.blocks, batch.inputs), torch.from_numpy(batch.labels), reduction="sum"
    )
    loss.backward()
    assert result.loss_sum == pytest.approx(loss.item(), rel=1e-6)
    gradients_near(result.gradients, [torch.zeros(2) if p.grad is None else p.grad for p in trained])


def test_statistics_over_the_mini_batch_are_refused(device: TorchDevice) -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    with pytest.raises(UnsupportedModelError, match=r"cuda:0 cannot train layer '0' \(BatchNorm1d\)"):
        device.load(model, list(model.parameters()))
    loaded(device)


# Order of the work on the streams.


def test_computing_waits_for_the_copy_and_buffers_stay_until_the_host_knows_it_is_over(
    driver: FakeDriver, device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph()
    loaded(device)
    pool = device._pool
    give = pool.release
    monkeypatch.setattr(pool, "release", lambda buffer: (driver.calls.append(("give", buffer)), give(buffer)))
    driver.calls.clear()
    staged = device.transfer(batch_of(graph))
    kinds = [call[0] for call in driver.calls]
    assert kinds == ["running", "mark", "mark", "left"], "transfer does not wait, and gives nothing back"
    copies = driver.calls[0][1]
    arrived = driver.calls[2][2]
    sent = staged.host
    driver.calls.clear()
    device.propagate(staged)
    calls = driver.calls
    compute = calls[0][1]
    assert calls[0] == ("running", compute) != ("running", copies)
    assert calls[1] == ("order", compute, arrived), "the first thing on the compute stream"
    marks = [call[2] for call in calls if call[0] == "mark"]
    waits = [i for i, call in enumerate(calls) if call == ("wait", marks[-1])]
    gives = [i for i, call in enumerate(calls) if call[0] == "give"]
    assert len(waits) == 1
    assert len(gives) == 2, "the results' buffer and the mini-batch's"
    assert min(gives) > waits[0]
    assert any(calls[i][1] is sent for i in gives)


def test_weights_are_not_overwritten_while_they_are_copied(driver: FakeDriver, device: TorchDevice) -> None:
    model = loaded(device)
    sent = next(call[2] for call in reversed(driver.calls) if call[0] == "mark")
    driver.calls.clear()
    device.update(list(model.parameters()))
    assert driver.calls[0] == ("wait", sent)


def test_weights_of_other_shapes_are_refused_and_the_device_goes_on(device: TorchDevice) -> None:
    weights = [parameter.detach().clone() for parameter in loaded(device).parameters()]
    for wrong in (weights[:-1], [weights[0].T, *weights[1:]], [weights[0][:1, :1], *weights[1:]], None):
        with pytest.raises(ArgumentError, match=r"^parameters.*: pass a (list|tensor) of"):
            device.update(wrong)  # type: ignore[arg-type]
    device.update(weights)


def test_several_mini_batches_in_flight_from_several_threads(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    batches = [batch_of(graph, step=step) for step in range(4)]
    alone = [device.propagate(device.transfer(batch)).loss_sum for batch in batches]
    staged: list[Any] = []
    for batch in batches:
        thread = threading.Thread(target=lambda b=batch: staged.append(device.transfer(b)))
        thread.start()
        thread.join()
    assert [device.propagate(one).loss_sum for one in staged] == alone


def test_pinned_memory_is_reused(driver: FakeDriver, device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    device.propagate(device.transfer(batch_of(graph)))
    taken = driver.pinned_bytes
    for step in range(5):
        device.propagate(device.transfer(batch_of(graph, step=step)))
    assert driver.pinned_bytes == taken


# Out of memory.


class Hungry(torch.nn.Module):
    """Runs out of memory while `fails`; keeps track of what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 12))
        self.fails = True
        self.seen: list[weakref.ref[torch.Tensor]] = []

    def __deepcopy__(self, memo: Any) -> Hungry:
        return self

    def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
        activation = x @ self.weight.t()
        self.seen += [weakref.ref(activation), weakref.ref(x), weakref.ref(blocks[0].columns)]
        if self.fails:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB")
        return activation[: blocks[-1].num_dst]


def test_out_of_memory_in_propagate_frees_the_mini_batch_and_the_device_goes_on(
    driver: FakeDriver, device: TorchDevice
) -> None:
    graph = random_graph()
    model = Hungry()
    device.load(model, list(model.parameters()))
    staged = device.transfer(batch_of(graph))
    driver.calls.clear()
    with pytest.raises(
        DeviceOutOfMemoryError, match=r"cuda:0: out of memory in propagate of .*32 targets"
    ) as caught:
        device.propagate(staged)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert "12 MiB of 1 GiB in use" in str(caught.value)
    gc.collect()
    assert [ref() for ref in model.seen] == [None] * 3, "although the error is still held"
    kinds = [call[0] for call in driver.calls]
    assert kinds.index("trim") > max(i for i, kind in enumerate(kinds) if kind == "wait")
    model.fails = False
    assert device.propagate(device.transfer(batch_of(graph))).loss_sum == pytest.approx(32 * np.log(3))


def test_out_of_memory_in_transfer_frees_the_mini_batch_and_the_device_goes_on(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph()
    loaded(device)
    real = torch.empty

    def full(*sizes: Any, **options: Any) -> torch.Tensor:
        if options.get("dtype") == torch.uint8 and "device" in options:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*sizes, **options)

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(DeviceOutOfMemoryError, match="cuda:0: out of memory in transfer"):
        device.transfer(batch_of(graph))
    monkeypatch.undo()
    assert not device._staged
    assert device.propagate(device.transfer(batch_of(graph))).counts["targets"] == 32


def test_a_memory_limit_is_kept_and_lifted(driver: FakeDriver) -> None:
    graph = random_graph()
    batch = batch_of(graph)
    unbounded = CudaDevice(INFO, DeviceOptions(), FakeDriver())
    loaded(unbounded)
    limit = int(2.5 * unbounded.transfer(batch).size)
    unbounded.close()
    device = CudaDevice(INFO, DeviceOptions(memory_bytes=limit), driver)
    assert ("limit", limit) in driver.calls
    loaded(device)
    first = device.transfer(batch)
    device.transfer(batch)
    with pytest.raises(DeviceOutOfMemoryError, match=rf"of {re.escape(format_bytes(limit))} in use\): "):
        device.transfer(batch)
    device.propagate(first)
    device.transfer(batch_of(graph, 1))
    device.close()
    assert driver.calls[-1] == ("limit", None)


# Faults and closing.


def test_any_other_error_is_terminal(driver: FakeDriver, device: TorchDevice) -> None:
    graph = random_graph()
    model = loaded(device)
    staged = device.transfer(batch_of(graph))
    driver.broken = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(
        DeviceFaultError, match="cuda:0: propagate failed: RuntimeError: CUDA error"
    ) as caught:
        device.propagate(staged)
    assert caught.value.__cause__ is driver.broken
    for call in (
        lambda: device.transfer(batch_of(graph)),
        lambda: device.propagate(staged),
        lambda: device.update(list(model.parameters())),
    ):
        with pytest.raises(DeviceFaultError, match="illegal memory access"):
            call()
    device.close()
    with pytest.raises(DeviceFaultError, match="used after it was closed"):
        device.transfer(batch_of(graph))


@pytest.mark.parametrize("foreign", [None, "x", [], object()])
def test_what_transfer_did_not_return_is_a_fault(device: TorchDevice, foreign: Any) -> None:
    loaded(device)
    with pytest.raises(DeviceFaultError, match="an object that transfer did not return"):
        device.propagate(foreign)
    with pytest.raises(DeviceFaultError, match="an object that transfer did not return"):
        device.transfer(batch_of(random_graph()))


def test_a_mini_batch_is_propagated_once(device: TorchDevice) -> None:
    loaded(device)
    staged = device.transfer(batch_of(random_graph()))
    device.propagate(staged)
    with pytest.raises(DeviceFaultError, match="the same mini-batch twice: pass"):
        device.propagate(staged)


def test_closing_frees_what_was_never_propagated(driver: FakeDriver, device: TorchDevice) -> None:
    loaded(device)
    staged = device.transfer(batch_of(random_graph()))
    assert staged.delivery is not None
    there = weakref.ref(staged.delivery.labels)
    driver.calls.clear()
    device.close()
    assert [call[0] for call in driver.calls] == ["mark", "wait", "mark", "wait", "trim"]
    gc.collect()
    assert there() is None
    device.close()


def test_closing_a_broken_device_that_did_not_know_is_a_fault(driver: FakeDriver) -> None:
    device = CudaDevice(INFO, DeviceOptions(), driver)
    loaded(device)
    driver.broken = RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(DeviceFaultError, match="cuda:0 cannot be closed"):
        device.close()
    device.close()


# Features and topology on the device.


def halved(graph: Graph) -> Graph:
    assert isinstance(graph.features, DenseFeatures)
    store = DenseFeatures(graph.features.values.astype(np.float16))
    return Graph.from_arrays(
        "halves", graph.topology.indptr, graph.topology.indices, store, graph.labels, graph.masks
    )


@pytest.mark.parametrize("halves", [False, True])
def test_rows_gathered_on_the_device_are_the_loaders(
    device: TorchDevice, driver: FakeDriver, halves: bool
) -> None:
    graph = halved(random_graph()) if halves else random_graph()
    loaded(device)
    assert device.gathers(graph)
    assert isinstance(device._features, ResidentFeatures)
    mine = device.propagate(device.transfer(batch_of(graph, form="ids")))
    theirs = device.propagate(device.transfer(batch_of(graph)))
    assert mine.loss_sum == theirs.loss_sum
    assert all(a.equal(b) for a, b in zip(mine.gradients, theirs.gradients, strict=True))


def test_features_that_do_not_fit_are_read_from_host_memory_or_loaded(
    device: TorchDevice, driver: FakeDriver
) -> None:
    graph = random_graph()
    loaded(device)
    assert isinstance(graph.features, DenseFeatures)
    driver.free = graph.features.values.nbytes
    launcher: Any = device._launcher
    assert device.gathers(graph) is (launcher is not None)
    if launcher is None:
        return
    assert isinstance(device._features, MappedFeatures)
    mine = device.propagate(device.transfer(batch_of(graph, form="ids")))
    assert "widen_rows" in launcher.launched
    assert mine.loss_sum == device.propagate(device.transfer(batch_of(graph))).loss_sum
    device.close()
    assert not launcher.mapped


def test_features_and_topology_that_turn_out_not_to_fit_stay_on_the_host(
    device: TorchDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    graph = random_graph()
    launcher: Any = device._launcher
    monkeypatch.setattr(cuda_device, "upload", full)
    monkeypatch.setattr("hyrt_devices.cuda.sampler.upload", full)
    assert device.gathers(graph) is (launcher is not None)
    sampler = device.sampler(graph)
    if launcher is not None:
        assert sampler is not None
        assert graph.topology.indices.ctypes.data in launcher.mapped


def test_sparse_features_are_loaded_as_rows(device: TorchDevice) -> None:
    graph = random_graph(sparse=True)
    assert not device.gathers(graph)
    loaded(device)
    assert device.propagate(device.transfer(batch_of(graph))).counts["targets"] == 32


def test_only_a_device_with_kernels_samples(device: TorchDevice) -> None:
    sampler = device.sampler(random_graph())
    assert (sampler is None) is (device._launcher is None)


def test_topology_that_does_not_fit_is_read_from_host_memory(device: TorchDevice, driver: FakeDriver) -> None:
    graph = random_graph()
    driver.free = 0
    launcher: Any = device._launcher
    if device.sampler(graph) is None:
        assert launcher is None
        return
    assert launcher.mapped == {graph.topology.indptr.ctypes.data, graph.topology.indices.ctypes.data}
    launcher.maps = False
    with pytest.warns(RuntimeWarning, match="the host samples for cuda:0"):
        assert device.sampler(random_graph()) is None
    device.close()
    assert not launcher.mapped


def test_blocks_sampled_on_the_device_are_used_where_they_are(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device, "gcn")
    sampler = device.sampler(graph)
    batch = batch_of(graph)
    wanted = device.propagate(device.transfer(batch))
    plain = device.transfer(batch)
    if sampler is None:
        return
    for block in batch.blocks:
        key = stream_key(0, SAMPLE, 0, block.layer)
        hop = sampler.draw(block.destinations, 4, key, relabel=True)
        assert hop.columns is not None
        assert block.columns.tolist() == hop.columns.tolist()
        block.resident = hop.resident
    staged = device.transfer(batch)
    assert staged.size < plain.size - 4000, "only the rows and labels travel"
    assert staged.delivery is not None
    assert staged.delivery.blocks[0].columns is batch.blocks[0].resident.columns
    mine = device.propagate(staged)
    assert mine.loss_sum == wanted.loss_sum
    assert all(a.equal(b) for a, b in zip(mine.gradients, wanted.gradients, strict=True))


def test_another_devices_copy_is_not_taken(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    batch = batch_of(graph)
    wanted = device.propagate(device.transfer(batch))
    # Another kind of device's, and another GPU's.
    elsewhere = [torch.empty(0, dtype=torch.int32, device="meta") for _ in range(5)]
    for other in (object(), ResidentHop(elsewhere[0].device, *elsewhere)):
        batch.blocks[0].resident = other
        mine = device.propagate(device.transfer(batch))
        assert mine.loss_sum == wanted.loss_sum
        assert mine.counts == wanted.counts


def test_blocks_that_share_arrays_send_them_once(device: TorchDevice) -> None:
    graph = random_graph()
    loaded(device)
    batch = batch_of(graph)
    one = device.transfer(batch).size
    first = batch.blocks[0]
    shared = [
        Block(
            **{
                name: getattr(first, name)
                for name in ("indptr", "columns", "destinations", "sources", "num_src", "degrees")
            },
            source_degrees=first.source_degrees,
            layer=layer,
        )
        for layer in (1, 2)
    ]
    batch.blocks = shared
    assert device.transfer(batch).size < one + 1024


# In a run.


@needs_compiler
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.parametrize("on_device", [False, True])
def test_cpu_and_the_double_train_like_the_cpu_alone(
    pipelined: bool, on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    launcher = EmulatedLauncher(driver)
    monkeypatch.setattr(CudaDevice, "probe", lambda: [INFO])
    monkeypatch.setattr(CudaDevice, "open", lambda info, options: CudaDevice(info, options, driver, launcher))
    graph = random_graph()

    def trained(devices: list[str], split: list[int], *, on_device: bool = False) -> dict[str, torch.Tensor]:
        result = hyrt.train(
            graph,
            {"kind": "gcn", "hidden": 16, "dropout": 0.3},
            devices=devices,
            split=split,
            data={"batch_size": 32},
            sampler={"fanout": [5, 5], "on_device": on_device},
            train={"epochs": 3, "optimizer": "SGD", "lr": 0.05},
            evaluate={"every": 0},
            runtime={"pipelined": pipelined},
        )
        return result.model.state_dict()

    alone = trained(["cpu"], [32])
    for split in ([12, 20], [0, 32]):
        both = trained(["cpu", "cuda:0"], split, on_device=on_device)
        for name, weight in alone.items():
            np.testing.assert_allclose(both[name].numpy(), weight.numpy(), atol=1e-5)
    assert "aggregate" in launcher.launched
    assert ("pick_positions" in launcher.launched) is on_device


# Discovery.


@pytest.mark.parametrize("backend", [CudaDevice, XpuDevice, MpsDevice])
def test_absent_hardware_is_an_empty_list_and_a_reason(backend: type[TorchDevice]) -> None:
    if backend.probe():
        pytest.skip(f"there is a {backend.kind} device")
    reason = backend.missing()
    assert ": install it with " in reason or f": see docs/devices.md#{backend.kind}" in reason


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_each_kind_is_an_entry_point(kind: str) -> None:
    from hyrt.device.discovery import BACKENDS

    assert issubclass(BACKENDS.load(kind), TorchDevice)


def test_opening_what_is_not_there_says_so() -> None:
    if CudaDevice.probe():
        pytest.skip("there is a CUDA device")
    with pytest.raises(DeviceUnavailableError, match=r"cuda:0 cannot be opened \(.*docs/devices.md#cuda"):
        CudaDevice.open(INFO, DeviceOptions())


def test_kernels_that_cannot_be_built_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, device: torch.device) -> None:
            raise OSError("nvcc not found")

    monkeypatch.setattr(cuda_device, "launchers", lambda: {"pycuda": Broken})
    with pytest.warns(
        RuntimeWarning, match="kernels cannot be compiled for .*nvcc not found.*docs/devices.md#cuda"
    ):
        assert cuda_device._launcher(torch.device("cuda", 0)) is None


def test_the_products_double_is_what_devices_use() -> None:
    assert "linear_tensors" in linear.linear.__code__.co_names


@pytest.mark.skipif(not CudaDevice.probe(), reason="no CUDA device: " + CudaDevice.missing())
def test_a_real_device_agrees_with_the_cpu_trainer() -> None:
    graph = random_graph()
    backend, info = find_device("cuda:0")
    model = model_of("gcn")
    cpu = CpuDevice.open(CpuDevice.probe()[0], DeviceOptions())
    real = backend.open(info, DeviceOptions())
    results = []
    for one in (cpu, real):
        one.load(model, list(model.parameters()))
        results.append(one.propagate(one.transfer(batch_of(graph))))
        one.close()
    assert results[1].loss_sum == pytest.approx(results[0].loss_sum, rel=1e-5)
    gradients_near(results[1].gradients, results[0].gradients, 1e-4)
