"""The OpenCL trainer against dense float64 matrices and the CPU trainer."""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from graphs import dense_features, random_graph
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.matmul_kernels import sizeless
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import Programs, tuning_of
from opencl_steps import KINDS, OTHERS, PRODUCTS, assert_agrees, batch_of, opened, reference, shaken, step
from unit.nn.block_cases import block_of

from hyrt.device import DeviceOptions, Span
from hyrt.device.discovery import find_device
from hyrt.errors import (
    DeviceFaultError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    UnsupportedModelError,
)
from hyrt.nn.architecture import Architecture
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.aggregate import aggregate_into
from hyrt.pipeline.load import Loader
from hyrt.pipeline.trainer import plan_input
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")

ALONE = Workers(1, "test")


def sampled(graph, model, fanouts, targets, *, forms=("rows",), class_weights=None, seed=3, step=2):
    plan = plan_input(model, graph, forms, fuse=True)
    sampler = NeighborSampler(graph, graph.split("train"), fanouts, 500, seed, class_weights)
    batch = sampler.sample(step, np.array(targets, sampler.ids), ALONE, in_place=plan.in_place)
    Loader(graph.features).load(batch, plan, ALONE)
    return batch


def rows_of(graph, batch):
    return torch.from_numpy(dense_features(graph)[batch.blocks[0].sources])


SIZES = [(1, 1, 8, 3, 1), (1, 100, 8, 47, 77), (2, 13, 33, 2, 150), (3, 6, 100, 3, 9)]


@pytest.mark.parametrize(
    ("product", "kind", "layers", "features", "hidden", "classes", "targets"),
    [
        # Each kind in one size and with one product; kernels of a size are compiled for all that have it.
        *((product, KINDS[0], *size) for product in PRODUCTS for size in SIZES[1:3]),
        *((PRODUCTS[number % 2], KINDS[0], *SIZES[3 * number]) for number in range(2)),
        *((PRODUCTS[number % 2], kind, *SIZES[2 + number % 2]) for number, kind in enumerate(KINDS[1:])),
    ],
)
def test_loss_and_gradients_agree_with_dense_float64(
    product: str, kind: str, layers: int, features: int, hidden: int, classes: int, targets: int
) -> None:
    graph = random_graph(features=features, classes=classes)
    model = shaken(
        GNN(Architecture(kind=kind, in_features=features, hidden=hidden, num_classes=classes, layers=layers))
    )
    picked = list(range(targets))
    batch = sampled(graph, model, [5] * layers, picked)
    wanted = reference(model, batch, rows_of(graph, batch))
    device = opened(product)
    device.load(model, list(model.parameters()))
    assert_agrees(step(device, batch), wanted)
    # Layer 1 aggregated while loading, where the device shares the host's memory.
    fused = sampled(graph, model, [5] * layers, picked, forms=device.info.forms)
    assert isinstance(fused.inputs, AggregatedFeatures) == device.info.zero_copy
    assert_agrees(step(device, fused), wanted)
    device.close()


@pytest.mark.parametrize("product", [*PRODUCTS, *OTHERS])
def test_sizes_around_the_chunks(product: str) -> None:
    """Rows on both sides of every chunk border, in blocks without edges but for one."""
    model = shaken(GNN(Architecture(kind="graphsage", in_features=9, num_classes=35, layers=1)))
    device = opened(product)
    device.load(model, list(model.parameters()))
    for rows in (1, 11, 12, 63, 64, 65, 193, 255, 257, 1025, 2047, 2049, 4100):
        block = block_of([[rows, rows, 0], *[[]] * (rows - 1)], rows + 2, rows)
        x = torch.from_numpy(np.random.default_rng(rows).standard_normal((rows + 2, 9)).astype(np.float32))
        batch = batch_of([block], x, 35)
        combined = np.empty((rows, 18), np.float32)
        aggregate_into(model.layers[0].aggregation, block, x.numpy(), combined)
        assert_agrees(step(device, batch), _one_layer(model, batch, torch.from_numpy(combined).double()))
    device.close()


def _one_layer(model, batch, combined):
    """A dense reference that needs no [rows, rows] matrices."""
    weight = model.layers[0].weight.detach().double().requires_grad_()
    bias = model.layers[0].bias.detach().double().requires_grad_()
    out = combined @ weight.T + bias
    labels = torch.from_numpy(batch.labels)
    loss = torch.nn.functional.cross_entropy(out, labels, reduction="sum")
    loss.backward()
    return {
        "loss": loss.item(),
        "correct": int((out.argmax(1) == labels).sum()),
        "gradients": [weight.grad, bias.grad],
    }


@st.composite
def chains(draw):
    """Two blocks on top of each other: repeated edges, isolated vertices, edge weights on both or none."""
    num_dst = draw(st.integers(1, 10))
    middle = num_dst + draw(st.integers(0, 10))
    num_src = middle + draw(st.integers(0, 10))
    weighted, seed = draw(st.booleans()), draw(st.integers(0, 999))

    def rows(count, below):
        return [draw(st.lists(st.integers(0, below - 1), max_size=7)) for _ in range(count)]

    last = block_of(rows(num_dst, middle), middle, seed, weighted=weighted)
    first = block_of(rows(middle, num_src), num_src, seed + 1, weighted=weighted)
    last.layer = 2
    return first, last, seed


@pytest.fixture(scope="module", params=KINDS)
def small_replica(request):
    model = shaken(
        GNN(Architecture(kind=request.param, in_features=5, hidden=18, num_classes=3)),
        seed=len(request.param),
    )
    device = opened()
    device.load(model, list(model.parameters()))
    yield device, model
    device.close()


@given(chain=chains())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_blocks(small_replica, chain) -> None:
    device, model = small_replica
    first, last, seed = chain
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((first.num_src, 5)).astype(np.float32))
    batch = batch_of([first, last], x, 3)
    assert_agrees(step(device, batch), reference(model, batch, x))


# Masks are drawn outside the products: each kind and each product once, not every pair.
@pytest.mark.parametrize(("product", "kind"), [("chosen", "gcn"), ("tiled", "graphsage"), ("chosen", "gin")])
def test_dropout_masks_are_those_of_the_cpu(product: str, kind: str) -> None:
    graph = random_graph(features=13)
    architecture = Architecture(
        kind=kind, in_features=13, hidden=33, num_classes=3, layers=3, dropout=0.4, input_dropout=0.3
    )
    model = shaken(GNN(architecture))
    batch = sampled(graph, model, [4, 4, 4], list(range(50)))
    backend, info = find_device("cpu")
    cpu = backend.open(info, DeviceOptions())
    device = opened(product)
    results = []
    for each in (cpu, device):
        each.load(model, list(model.parameters()))
        results.append(each.propagate(each.transfer(batch)))
        each.close()
    wanted, found = results
    assert found.loss_sum == pytest.approx(wanted.loss_sum, rel=1e-5)
    assert found.counts == wanted.counts
    for mine, theirs in zip(found.gradients, wanted.gradients, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-5 * float(theirs.abs().max()))


def test_class_weights_64_bit_ids_and_sparse_features() -> None:
    graph = random_graph(features=12, sparse=True)
    model = shaken(GNN(Architecture(kind="gcn", in_features=12, hidden=8, num_classes=3)))
    weights = np.array([0.5, 2.0, 1.25], np.float32)
    batch = sampled(graph, model, [4, -1], list(range(40)), class_weights=weights)
    for block in batch.blocks:
        block.columns = block.columns.astype(np.int64)
        block.indptr = block.indptr.astype(np.int64)
    device = opened()
    device.load(model, list(model.parameters()))
    assert_agrees(step(device, batch), reference(model, batch, rows_of(graph, batch)))
    device.close()


def parts(kind: str = "graphsage", **more):
    graph = random_graph()
    model = shaken(GNN(Architecture(kind=kind, in_features=12, hidden=8, num_classes=3, **more)))
    return graph, model, sampled(graph, model, [4, 4], list(range(32)))


def test_equal_bits_however_many_compute_units_and_however_often() -> None:
    _, model, batch = parts()
    found = []
    for threads in (1, survey().found[0].info.host_cores or 1):
        device = opened(threads=threads)
        device.load(model, list(model.parameters()))
        found += [step(device, batch), step(device, batch)]
        device.close()
    for other in found[1:]:
        assert other.loss_sum == found[0].loss_sum
        for a, b in zip(found[0].gradients, other.gradients, strict=True):
            assert torch.equal(a, b)


def test_new_weights_are_taken_and_copied() -> None:
    _, model, batch = parts()
    device = opened()
    device.load(model, list(model.parameters()))
    before = step(device, batch).loss_sum
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert step(device, batch).loss_sum == before
    device.update(list(model.parameters()))
    assert step(device, batch).loss_sum == pytest.approx(32 * np.log(3), rel=1e-6)
    device.close()


def test_of_equal_scores_the_first_is_the_highest() -> None:
    _, model, batch = parts()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    device = opened()
    device.load(model, list(model.parameters()))
    assert step(device, batch).counts["correct"] == int((batch.labels == 0).sum())
    device.close()


def test_no_targets() -> None:
    graph, model, _ = parts()
    device = opened()
    device.load(model, list(model.parameters()))
    result = step(device, sampled(graph, model, [4, 4], []))
    assert (result.loss_sum, result.counts, list(result.gradients)) == (0.0, {}, [])
    device.close()


@pytest.mark.parametrize("product", PRODUCTS)
def test_times_come_from_the_device(product: str) -> None:
    _, model, batch = parts()
    device = opened(product)
    device.load(model, list(model.parameters()))
    ran: dict[str, float] = defaultdict(float)

    def hear(queue: str, spans: Sequence[Span]) -> None:
        for name, start, end in spans if queue == "compute" else ():
            ran[name] += (end - start) * 1e-9

    device.trace(hear)
    seconds = step(device, batch).seconds
    assert set(seconds) == {"transfer", "propagate"}
    assert seconds["propagate"] > 0
    assert (seconds["transfer"] > 0) != device.info.zero_copy
    assert {"aggregate", "product", "product_weights", "cross_entropy", "copy"} <= set(ran)
    device.close()


def test_losses_are_added_with_their_rounding_errors() -> None:
    """One large sum and many small ones, each of which float32 would lose beside it."""
    import pyopencl as cl

    device = survey().found[0].device
    context = cl.Context([device])
    sums = np.zeros((1001, 2), np.float32)
    sums[:, 0] = 1
    sums[0, 0] = 2**24
    sums[:, 1] = 3
    results = np.zeros(2, np.float32)
    given, found = (cl.Buffer(context, cl.mem_flags.READ_WRITE, n) for n in (sums.nbytes, results.nbytes))
    queue = Launcher(context, device)
    add = Programs(context, device).kernel("sizeless", "add_sums", sizeless(tuning_of(device)))
    queue.write(given, sums)
    queue.launch(add, (1,), (1,), given, len(sums), found)
    queue.read(results, found)
    queue.finish()
    assert results.tolist() == [2**24 + 1000, 3003]


def test_a_queue_lets_go_of_what_it_has_copied() -> None:
    """Of the arrays, not of the events: else those of a step would all be there at its end."""
    import pyopencl as cl

    device = survey().found[0].device
    context = cl.Context([device])
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, 4000)
    queue, arrays = Launcher(context, device), []
    for _ in range(2):
        rows, back = np.arange(1000, dtype=np.float32), np.empty(1000, np.float32)
        arrays += [weakref.ref(rows), weakref.ref(back)]
        queue.write(buffer, rows)
        queue.read(back, buffer)
        queue.finish()
        np.testing.assert_array_equal(back, rows)
        del rows, back
        assert [each() for each in arrays] == [None] * len(arrays)
    assert len(queue.taken()) == 4
    queue.close()


@pytest.mark.parametrize("product", PRODUCTS)
def test_several_batches_staged_ahead_and_one_never_used(product: str) -> None:
    graph, model, _ = parts()
    device = opened(product)
    device.load(model, list(model.parameters()))
    batches = [sampled(graph, model, [4, 4], range(n, n + 20), step=n) for n in range(4)]
    alone = [step(device, batch) for batch in batches]
    staged = [device.transfer(batch) for batch in batches]
    for at in (2, 0, 1):
        found = device.propagate(staged[at])
        assert found.loss_sum == alone[at].loss_sum
        assert all(torch.equal(a, b) for a, b in zip(found.gradients, alone[at].gradients, strict=True))
    device.close()
    assert device._memory.buffers.allocated_bytes == 0


def test_two_devices_in_two_threads() -> None:
    graph, model, _ = parts()
    batches = [sampled(graph, model, [4, 4], range(n, n + 30), step=n) for n in range(12)]
    wanted = [reference(model, batch, rows_of(graph, batch)) for batch in batches]
    failures: list[BaseException] = []

    def train(product: str) -> None:
        try:
            device = opened(product)
            device.load(model, list(model.parameters()))
            for batch, exact in zip(batches, wanted, strict=True):
                assert_agrees(step(device, batch), exact)
            device.close()
        except BaseException as error:
            failures.append(error)

    for batch in batches:
        batch.blocks[1].transposed()
    threads = [threading.Thread(target=train, args=(product,)) for product in PRODUCTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


@pytest.mark.parametrize("product", PRODUCTS)
def test_out_of_memory_is_recoverable(product: str) -> None:
    graph = random_graph(vertices=3000, features=12)
    model = shaken(GNN(Architecture(kind="graphsage", in_features=12, hidden=8, num_classes=3)))
    device = opened(product, memory_bytes=150_000)
    device.load(model, list(model.parameters()))
    used = device._memory.buffers.used_bytes
    small = sampled(graph, model, [4, 4], range(10))
    before = step(device, small).loss_sum
    for _ in range(3):
        with pytest.raises(
            DeviceOutOfMemoryError, match=rf"{device.info.name} is out of memory \(.* requested.* in use"
        ):
            step(device, sampled(graph, model, [4, 4], range(2000)))
        assert device._memory.buffers.used_bytes == used
        assert step(device, small).loss_sum == before
    assert device._memory.buffers.allocated_bytes <= 150_000
    device.close()


def test_a_model_too_large_for_the_device() -> None:
    _, model, _ = parts()
    device = opened(memory_bytes=1000)
    with pytest.raises(DeviceOutOfMemoryError):
        device.load(model, list(model.parameters()))
    device.close()


def test_faults_are_terminal() -> None:
    _, model, batch = parts()
    for wrong in ("nothing staged", None):
        device = opened()
        device.load(model, list(model.parameters()))
        with pytest.raises(DeviceFaultError, match="propagate failed"):
            device.propagate(wrong)  # type: ignore[arg-type]
        with pytest.raises(DeviceFaultError, match="propagate failed"):
            device.transfer(batch)
        device.close()
        device.close()
        with pytest.raises(DeviceFaultError, match="used after it was closed"):
            device.transfer(batch)


def test_programs_are_shared_until_something_fails() -> None:
    graph, model, batch = parts()
    first, second = opened(), opened()
    for device in (first, second):
        device.load(model, list(model.parameters()))
    assert second._programs is first._programs
    with pytest.raises(DeviceFaultError, match="propagate failed"):
        first.propagate("nothing staged")  # type: ignore[arg-type]
    first.close()
    third = opened()
    assert third._programs is not second._programs
    third.load(model, list(model.parameters()))
    wanted = reference(model, batch, rows_of(graph, batch))
    for device in (second, third):
        assert_agrees(step(device, batch), wanted)
        device.close()
    fourth = opened()
    assert fourth._programs is third._programs
    fourth.close()


def test_what_is_staged_is_used_once_and_by_its_own_device() -> None:
    _, model, batch = parts()
    first, second = opened(), opened()
    for device in (first, second):
        device.load(model, list(model.parameters()))
    staged = first.transfer(batch)
    with pytest.raises(DeviceFaultError, match="expected a mini-batch from transfer"):
        second.propagate(staged)
    first.propagate(staged)
    with pytest.raises(DeviceFaultError, match="expected a mini-batch from transfer"):
        first.propagate(staged)
    first.close()
    second.close()


@pytest.mark.parametrize("wrong", ["labels", "inputs", "width", "blocks"])
def test_batches_of_another_model_are_faults(wrong: str) -> None:
    _, model, batch = parts()
    if wrong == "labels":
        batch.labels[3] = 3
    elif wrong == "inputs":
        batch.inputs = None
    elif wrong == "width":
        batch.inputs = batch.inputs[:, :5]
    else:
        batch.blocks = batch.blocks[:1]
    device = opened()
    device.load(model, list(model.parameters()))
    with pytest.raises(DeviceFaultError, match="transfer failed"):
        device.transfer(batch)
    device.close()


def test_a_second_load_replaces_the_first() -> None:
    graph, model, _ = parts()
    device = opened()
    device.load(model, list(model.parameters()))
    used = device._memory.buffers.used_bytes
    other = shaken(GNN(Architecture(kind="gcn", in_features=12, hidden=8, num_classes=3)), seed=5)
    device.load(other, list(other.parameters()))
    batch = sampled(graph, other, [4, 4], range(20))
    assert_agrees(step(device, batch), reference(other, batch, rows_of(graph, batch)))
    device.load(model, list(model.parameters()))
    assert device._memory.buffers.used_bytes == used
    device.close()


def test_heads_too_wide_for_its_loops_are_named() -> None:
    model = GNN(Architecture(kind="gat", in_features=12, hidden=600, heads=2, num_classes=3))
    device = opened()
    named = rf"^{device.info.name} cannot run .*'layers.0' \(GatLayer\), because .* 300 columns .* most 256"
    with pytest.raises(UnsupportedModelError, match=named):
        device.load(model, list(model.parameters()))
    device.close()


def test_a_module_without_a_description() -> None:
    device = opened()
    with pytest.raises(UnsupportedModelError, match=r"with a description\(\) method"):
        device.load(torch.nn.Linear(3, 3), [])
    device.close()


def test_a_device_that_is_not_there() -> None:
    info = OpenclDevice.probe()[0]
    with pytest.raises(DeviceUnavailableError, match="opencl:99 is not available"):
        OpenclDevice.open(replace(info, index=99), DeviceOptions())


def test_only_the_asked_for_units_are_reserved() -> None:
    info = OpenclDevice.probe()[0]
    if info.host_cores < 2:
        pytest.skip("the device has one compute unit")
    device = OpenclDevice.open(info, DeviceOptions(threads=1))
    assert device._device.max_compute_units == 1 or "cannot be partitioned" in device.info.description
    device.close()


def test_opening_and_closing_leaks_nothing() -> None:
    graph, _, _ = parts()
    model = GNN(Architecture(kind="gcn", in_features=12, num_classes=3, layers=1))
    batch = sampled(graph, model, [4], range(32))
    process = psutil.Process()

    def once() -> None:
        device = opened()
        device.load(model, list(model.parameters()))
        step(device, batch)
        device.transfer(batch)
        assert device.sampler(graph) is not None
        device.close()
        assert device._memory.buffers.allocated_bytes == 0

    for _ in range(10):
        once()
    threads, resident = process.num_threads(), process.memory_info().rss
    for _ in range(40):
        once()
    assert process.num_threads() <= threads
    assert process.memory_info().rss - resident < 10 << 20


def test_a_step_without_room_leaves_its_copies_alone() -> None:
    """Out of memory while computing: what was staged is given back only when it has been copied."""
    graph = random_graph(vertices=3000, features=12)
    model = shaken(GNN(Architecture(kind="gin", in_features=12, hidden=64, num_classes=3)))
    device = opened("tiled", memory_bytes=700_000)
    device.load(model, list(model.parameters()))
    used = device._memory.buffers.used_bytes
    small = sampled(graph, model, [4, 4], range(40))
    wanted = step(device, small)
    for _ in range(3):
        staged = device.transfer(sampled(graph, model, [4, 4], range(300)))
        with pytest.raises(DeviceOutOfMemoryError):
            device.propagate(staged)
        assert device._memory.buffers.used_bytes == used
        found = step(device, small)
        assert found.loss_sum == wanted.loss_sum
        assert all(torch.equal(a, b) for a, b in zip(found.gradients, wanted.gradients, strict=True))
    device.close()
