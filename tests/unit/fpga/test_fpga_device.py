"""The host path of cards, with the trainer's twin in OpenCL C in place of the card's kernel: it computes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hyrt_devices.fpga.compute_units import INPUTS, ComputeUnits, Queue, StagedTasks, TaskStager
from hyrt_devices.fpga.device import FpgaDevice
from hyrt_devices.fpga.pools import BufferPools
from hyrt_devices.opencl import OpenclDevice
from hyrt_hls.task_layout import Task
from twin_programs import DESIGN, Machine
from unit.hls.golden import GOLDEN_ARENA, GOLDEN_PES, golden_tasks
from unit.hls.task_reference import run_reference

from hyrt.device import DeviceInfo, DeviceOptions, StepResult
from hyrt.errors import (
    DeviceFaultError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    UnsupportedModelError,
)
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases, check_device

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")

GOLDEN = replace(DESIGN, pes=GOLDEN_PES, arena_words=GOLDEN_ARENA)
TASKS = dict(golden_tasks())
# A chip on which some targets fit, but not a mini-batch of them.
TINY = replace(DESIGN, arena_words=256)


@pytest.fixture(scope="module", name="machine")
def _machine() -> Machine:
    return Machine()


def break_next(device: Any) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("the link is down")

    device._launches.launch = fail


@pytest.mark.limit(170)
def test_it_passes_the_suite_on_two_units(machine: Machine) -> None:
    report = check_device(machine.open, break_next=break_next, cycles=20)
    passed = {verdict.name for verdict in report.passed}
    assert {"a broken device faults for good", "out of memory is recoverable"} <= passed
    assert len([name for name in passed if name.startswith("sums agree with float64: g")]) >= 2


class Card:
    """The parts of a device without a model: tasks go through as they are."""

    def __init__(self, machine: Machine, num_units: int) -> None:
        self.programs = machine.programs(GOLDEN, num_units)
        self.pools = BufferPools(machine.context, "fpga:0", 1 << 28, 1 << 28)
        self.transfers = Queue(machine.context, machine.device)
        self.launches = Queue(machine.context, machine.device)
        self.stager = TaskStager(self.programs, self.pools, self.transfers)

    def run(self, tasks: list[Task]) -> tuple[Any, list[np.ndarray]]:
        """Sums of tasks that share their weights, and each task's scores."""
        units = ComputeUnits(self.programs, self.pools, self.stager, self.launches, len(tasks[0].weights))
        units.update(tasks[0].weights)
        staged = StagedTasks(owner=None, targets=1, normalizer=1.0)
        self.stager.stage(staged, tasks)
        sums = units.run(staged.tasks)
        slots = [one.slots[7] for one in staged.tasks]
        self.launches.wait([self.launches.to_host([slot.buffer for slot in slots], sums.events)])
        scores = [
            slot.view(task.score_shape, np.float32).copy() for slot, task in zip(slots, tasks, strict=True)
        ]
        staged.release(self.pools)
        units.release()
        assert self.pools.slots.used_bytes == 0
        return sums, scores

    def close(self) -> None:
        self.transfers.close()
        self.launches.close()
        self.pools.slots.close()


@pytest.mark.parametrize("name", TASKS)
def test_a_task_gives_what_the_reference_gives(machine: Machine, name: str) -> None:
    card, task = Card(machine, 1), TASKS[name]
    sums, (scores,) = card.run([task])
    wanted_scores, wanted_gradients, wanted_results = run_reference(task)
    classes = task.header.classes
    np.testing.assert_allclose(scores[:, :classes], wanted_scores[:, :classes], rtol=1e-4, atol=1e-4)
    scale = float(np.abs(wanted_gradients).max())
    np.testing.assert_allclose(sums.gradients, wanted_gradients.ravel(), atol=1e-5 * max(scale, 1), rtol=1e-4)
    assert sums.loss_sum == pytest.approx(wanted_results[0], rel=1e-5)
    assert sums.correct == wanted_results[1]
    card.close()


def test_sums_do_not_depend_on_how_many_units_there_are(machine: Machine) -> None:
    """Nine tasks with other features each: bit-equal sums on 1, 2, 3 and 5 units."""
    one = TASKS["concatenated"]
    rng = np.random.default_rng(0)
    tasks = [
        replace(
            one, features=one.features * np.float32(rng.uniform(0.5, 1.5)), labels=rng.permutation(one.labels)
        )
        for _ in range(9)
    ]
    results = []
    for num_units in (1, 2, 3, 5):
        card = Card(machine, num_units)
        results.append(card.run(tasks)[0])
        card.close()
    wanted = [run_reference(task) for task in tasks]
    gradients = np.sum([np.asarray(gradients, np.float64).ravel() for _, gradients, _ in wanted], axis=0)
    np.testing.assert_allclose(results[0].gradients, gradients, rtol=1e-3, atol=1e-4)
    assert results[0].correct == sum(int(sums[1]) for _, _, sums in wanted)
    for other in results[1:]:
        np.testing.assert_array_equal(other.gradients, results[0].gradients)
        assert other.loss_sum == results[0].loss_sum


def step(device: FpgaDevice, batch: MiniBatch) -> StepResult:
    return device.propagate(device.transfer(batch))


def graphsage() -> GNN:
    model: GNN = cases.randomize_parameters(
        GNN(Architecture(kind="graphsage", in_features=20, hidden=24, num_classes=5))
    )
    return model


def sampled(model: GNN, targets: int = 60) -> MiniBatch:
    a = model.architecture
    graph = cases.make_graph(a.in_features, a.num_classes)
    return cases.sampled_batch(graph, a.layers, cases.sample_targets(targets), cases.ROWS)


def test_a_mini_batch_in_tiles_gives_what_it_gives_whole(machine: Machine) -> None:
    model = graphsage()
    model.eval()
    batch = sampled(model)
    results = []
    for design in (DESIGN, TINY):
        device = machine.open(design=design)
        device.load(model, list(model.parameters()))
        staged = device.transfer(batch)
        tiles = len(staged.tasks)
        results.append((tiles, device.propagate(staged)))
        device.close()
    (few, whole), (many, tiled) = results
    assert few < many
    assert tiled.counts == whole.counts
    assert tiled.loss_sum == pytest.approx(whole.loss_sum, rel=1e-5)
    for a, b in zip(whole.gradients, tiled.gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(a.abs().max()))


def test_every_wait_is_written_out(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers are set as arguments before their first command, and launches wait for all that they read."""
    import pyopencl as cl

    order: list[tuple[str, Any]] = []
    migrate, launch = cl.enqueue_migrate_mem_objects, cl.enqueue_nd_range_kernel
    forbidden = (
        "enqueue_marker",
        "enqueue_barrier",
        "enqueue_fill_buffer",
        "enqueue_copy",
        "enqueue_map_buffer",
    )
    for name in forbidden:
        monkeypatch.setattr(cl, name, lambda *a, name=name, **k: pytest.fail(f"{name} was called"))
    placed: set[int] = set()
    set_arg = cl.Kernel.set_arg

    def argument(kernel: Any, position: int, value: Any) -> None:
        placed.add(id(value))
        set_arg(kernel, position, value)

    def migrated(queue: Any, buffers: Any, flags: int = 0, wait_for: Any = None) -> Any:
        assert all(id(buffer) in placed for buffer in buffers)
        event = migrate(queue, buffers, flags, wait_for=wait_for)
        order.append(("migrate", (event, [id(buffer) for buffer in buffers], wait_for or [])))
        return event

    def launched(queue: Any, kernel: Any, size: Any, local: Any, wait_for: Any = None) -> Any:
        assert (size, local) == ((1,), (1,))
        event = launch(queue, kernel, size, local, wait_for=wait_for)
        order.append(("launch", (event, wait_for or [])))
        return event

    monkeypatch.setattr(cl.Kernel, "set_arg", argument)
    monkeypatch.setattr(cl, "enqueue_migrate_mem_objects", migrated)
    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", launched)
    model = graphsage()
    device = machine.open(design=TINY)
    device.load(model, list(model.parameters()))
    before = len(order)
    staged = device.transfer(sampled(model))
    inputs = [[one.slots[argument].buffer for argument in INPUTS.values()] for one in staged.tasks]
    units = [one.unit for one in staged.tasks]
    device.propagate(staged)
    carried: dict[int, Any] = {}
    for kind, what in order:
        if kind == "migrate":
            for buffer in what[1]:
                carried.setdefault(buffer, what[0])
    launches = [what for kind, what in order[before:] if kind == "launch"]
    assert len(launches) == len(inputs) > 2
    last: dict[int, Any] = {}
    for (event, waits), buffers, unit in zip(launches, inputs, units, strict=True):
        assert all(carried[id(buffer)] in waits for buffer in buffers)
        assert unit not in last or last[unit] in waits
        last[unit] = event
    events = [event for event, _ in launches]
    backs = [what[2] for kind, what in order[before:] if kind == "migrate" and what[2]]
    assert [waits[0] for waits in backs] == events
    device.close()


@pytest.mark.parametrize("num_units", [1, 2])
def test_a_trace_has_what_each_queue_ran(machine: Machine, num_units: int) -> None:
    model = graphsage()
    device = machine.open(design=TINY, num_units=num_units)
    device.load(model, list(model.parameters()))
    heard: dict[str, list[Any]] = {}

    def hear(queue: str, spans: Any) -> None:
        heard.setdefault(queue, []).extend(spans)

    step(device, sampled(model))
    assert heard == {}
    device.trace(hear)
    staged = device.transfer(sampled(model))
    tiles = len(staged.tasks)
    result = device.propagate(staged)
    assert {name for name, _, _ in heard["launches"]} == {
        "sums to host",
        *(f"hyrt_train_{unit + 1}" for unit in range(num_units)),
    }
    launches = [span for span in heard["launches"] if span[0].startswith("hyrt_train")]
    assert len(launches) == tiles > 2
    assert [name for name, _, _ in heard["transfers"]].count("task") >= tiles
    everything = [span for spans in heard.values() for span in spans]
    assert all(0 < start <= end for _, start, end in everything)
    ran = heard["launches"]
    assert max(end for *_, end in ran) - min(start for _, start, _ in ran) == pytest.approx(
        1e9 * result.seconds["propagate"]
    )
    # Of an update it is told when it is over; each command once.
    device.update(list(model.parameters()))
    step(device, sampled(model))
    weights = [span for span in heard["transfers"] if span[0] == "weights"]
    assert len(weights) == num_units
    everything = [span for spans in heard.values() for span in spans]
    assert len({(start, end) for _, start, end in everything}) == len(everything)
    device.close()


def test_what_an_update_brings_is_started(machine: Machine) -> None:
    """Launches of the other queue wait for it, and no transfer after the last mini-batch would start it."""
    model = graphsage()
    device = machine.open()
    order: list[str] = []
    queue = device._transfers
    migrate, flush = queue._migrate, queue.flush

    def migrated(*arguments: Any) -> Any:
        order.append("enqueue")
        return migrate(*arguments)

    def flushed() -> None:
        order.append("flush")
        flush()

    queue._migrate, queue.flush = migrated, flushed  # type: ignore[method-assign]
    device.load(model, list(model.parameters()))
    assert order.pop() == "flush"
    staged = device.transfer(sampled(model))
    assert order.pop() == "flush"
    device.update(list(model.parameters()))
    assert order[-2:] == ["enqueue", "flush"]
    device.propagate(staged)
    device.close()


def test_weights_that_do_not_fit(machine: Machine) -> None:
    model = graphsage()
    device = machine.open(DeviceOptions(memory_bytes=20_000))
    with pytest.raises(
        DeviceOutOfMemoryError, match=r"for weights and gradients.*use fewer or narrower layers"
    ):
        device.load(model, list(model.parameters()))
    device.close()
    # They fit, and leave little beside them: the slots of two units, whole pages.
    roomy = machine.open()
    roomy.load(model, list(model.parameters()))
    kept = roomy._pools.slots.used_bytes
    roomy.close()
    device = machine.open(DeviceOptions(memory_bytes=kept + 16_384))
    device.load(model, list(model.parameters()))
    with pytest.raises(DeviceOutOfMemoryError, match=r"weights and gradients take \d\d% of the memory"):
        device.transfer(sampled(model))
    device.close()


def test_max_is_refused_by_name(machine: Machine) -> None:
    model = GNN(Architecture(kind="graphsage", aggregate="max", in_features=4, num_classes=3, layers=1))
    device = machine.open()
    with pytest.raises(UnsupportedModelError, match="fpga:0"):
        device.load(model, list(model.parameters()))
    device.close()


def test_a_mini_batch_of_an_earlier_model_is_a_fault(machine: Machine) -> None:
    model = graphsage()
    device = machine.open()
    device.load(model, list(model.parameters()))
    staged = device.transfer(sampled(model))
    device.load(model, list(model.parameters()))
    with pytest.raises(DeviceFaultError, match="expected a mini-batch from transfer"):
        device.propagate(staged)
    device.close()


def test_times_are_those_of_the_device(machine: Machine) -> None:
    model = graphsage()
    device = machine.open()
    device.load(model, list(model.parameters()))
    result = step(device, sampled(model))
    assert 0 < result.seconds["propagate"] < 60
    assert 0 <= result.seconds["transfer"] < 60
    device.close()


def test_a_card_that_is_not_there_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCL_ICD_VENDORS", "/nonexistent")
    monkeypatch.delenv("OCL_ICD_FILENAMES", raising=False)
    assert FpgaDevice.probe() == []
    assert "XRT, the card's runtime, is not" in FpgaDevice.missing()
    info = DeviceInfo(kind="fpga", index=3, description="a card", memory_bytes=0)
    with pytest.raises(DeviceUnavailableError, match=r"fpga:3 is not available \(XRT"):
        FpgaDevice.open(info, DeviceOptions())
