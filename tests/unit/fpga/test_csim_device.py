"""What only the simulated trainer does; that it keeps the protocol is checked by the suite of all devices."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.fpga.csim_device import FpgaCsimDevice, ModelledTime
from hyrt_devices.fpga.tasks import build_tasks
from hyrt_devices.fpga.weights import layer_shapes
from hyrt_hls.resources import KernelDesign
from hyrt_hls.simulator import Simulator
from hyrt_perfmodel.fpga_design import FpgaDesign

from hyrt.device import DeviceInfo, DeviceOptions, StepResult
from hyrt.device.discovery import ProbeResult
from hyrt.errors import (
    DeviceFaultError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    UnsupportedModelError,
)
from hyrt.nn.description import describe
from hyrt.nn.model import GNN
from hyrt.predict.choose_devices import choose_devices
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases, check_device

pytestmark = pytest.mark.skipif(
    bool(FpgaCsimDevice.missing()), reason=FpgaCsimDevice.missing() or "the compiler is there"
)

# A chip on which a mini-batch of 40 targets does not fit.
SMALL = KernelDesign(pes=4, mac_rows=4, mac_cols=16, arena_words=448)
CASES = {case.name: case for case in cases.model_cases()}
DROPPED = CASES["graphsage (mean), layers=3, dropout"]


@pytest.fixture(name="device")
def _device() -> Iterator[FpgaCsimDevice]:
    device = FpgaCsimDevice.open(FpgaCsimDevice.probe()[0], DeviceOptions())
    yield device
    device.close()


def batch_of(model: GNN, targets: int = 40) -> MiniBatch:
    a = model.architecture
    graph = cases.make_graph(a.in_features, a.num_classes)
    return cases.sampled_batch(graph, a.layers, cases.sample_targets(targets), cases.ROWS)


def stepped(device: Any, model: GNN, batch: MiniBatch) -> StepResult:
    device.load(model, list(model.parameters()))
    result: StepResult = device.propagate(device.transfer(batch))
    return result


def test_it_says_that_it_is_simulated() -> None:
    (info,) = FpgaCsimDevice.probe()
    assert info.name == "fpga-csim:0"
    assert info.simulated
    assert info.description.startswith("simulated U250")
    # The design of the paper's Table IV.
    assert "8 PEs, 2048 MACs" in info.description
    assert info.rates is not None
    assert info.rates.source.startswith("assumed")


def test_a_builds_reports_are_its_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the trainer that was built, with the clock and the interval that its reports tell."""
    told = {"pes": 8, "mac_rows": 8, "mac_cols": 16, "arena_words": 4096, "fifo_depth": 32}
    (tmp_path / "hyrt_train.json").write_text(json.dumps({**told, "adder_latency": 7, "clock_mhz": 300}))

    def report(module: str, part: str = "xcu250-figd2104-2L-e") -> None:
        (tmp_path / f"{module}_csynth.xml").write_text(
            f"<profile><UserAssignments><Part>{part}</Part><TopModelName>{module}</TopModelName>"
            "</UserAssignments>"
            "<PerformanceEstimates><SummaryOfTimingAnalysis><EstimatedClockPeriod>5</EstimatedClockPeriod>"
            "</SummaryOfTimingAnalysis>"
            "<SummaryOfLoopLatency><L><PipelineII>2</PipelineII></L></SummaryOfLoopLatency>"
            "</PerformanceEstimates>"
            "<AreaEstimates><Resources><BRAM_18K>1</BRAM_18K><DSP>1</DSP><LUT>1</LUT></Resources>"
            "</AreaEstimates></profile>"
        )

    model = CASES["gcn, layers=2"].build()
    batch = batch_of(model)
    size = KernelDesign(pes=8, mac_rows=8, mac_cols=16, arena_words=4096)
    before = FpgaCsimDevice(FpgaCsimDevice.probe()[0], DeviceOptions(), size)
    expected = stepped(before, model, batch)
    before.close()
    for module in ("systolic", "duplicate", "scatter", "gather", "read_edges"):
        report(module)
    monkeypatch.setenv("HYRT_FPGA_REPORTS", str(tmp_path))
    (info,) = FpgaCsimDevice.probe()
    assert "8 PEs, 128 MACs" in info.description
    assert "200 MHz (reported)" in info.description
    after = FpgaCsimDevice.open(info, DeviceOptions())
    found = stepped(after, model, batch)
    after.close()
    assert found.loss_sum == expected.loss_sum
    # 200 MHz for 300, and what the array and the network do takes two cycles for one.
    launch_s = FpgaDesign().launch_s
    ratio = (found.seconds["propagate"] - launch_s) / (expected.seconds["propagate"] - launch_s)
    assert 1.5 < ratio < 3
    assert found.seconds["transfer"] == expected.seconds["transfer"]
    report("other", part="xcvu9p")
    assert FpgaCsimDevice.probe() == []
    assert FpgaCsimDevice.missing().startswith("HYRT_FPGA_REPORTS: ")
    with pytest.raises(DeviceUnavailableError, match="was compiled for xcvu9p"):
        FpgaCsimDevice.open(info, DeviceOptions())


def test_auto_does_not_take_it() -> None:
    """Although by its rates it is much faster than the CPU, and would be taken if it were a card."""
    (info,) = FpgaCsimDevice.probe()
    assert info.rates is not None
    host = replace(CpuDevice.probe()[0], rates=replace(info.rates, macs_per_s=1e9))

    def chosen(other: DeviceInfo) -> list[str]:
        surveys = [ProbeResult("cpu", "test", (host,)), ProbeResult("fpga-csim", "test", (other,))]
        return [
            name.partition("=")[0]
            for name in choose_devices(surveys, lambda info: 1.0, lambda info: "").devices
        ]

    assert chosen(info) == ["cpu:0"]
    assert chosen(replace(info, simulated=False)) == ["cpu:0", "fpga-csim:0"]


def test_without_a_compiler_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (info,) = FpgaCsimDevice.probe()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shutil.which("g++") is None
    assert FpgaCsimDevice.probe() == []
    assert "install it" in FpgaCsimDevice.missing()
    with pytest.raises(DeviceUnavailableError, match=r"fpga-csim:0 cannot be simulated: .*g\+\+"):
        FpgaCsimDevice.open(info, DeviceOptions())


def test_a_driver_error_is_a_fault_for_good() -> None:
    info = FpgaCsimDevice.probe()[0]

    def break_next(device: Any) -> None:
        def train(task: object) -> None:
            raise ValueError("deadlock: gather 3 waits for message[0][3]")

        device._simulator.train = train

    report = check_device(
        lambda options: FpgaCsimDevice(info, options, SMALL), break_next=break_next, only="fault"
    )
    assert "a broken device faults for good" in {verdict.name for verdict in report.passed}


@pytest.mark.parametrize("name", ["gcn, layers=3, dropout", DROPPED.name])
def test_tiles_give_the_cpus_step(name: str) -> None:
    model = CASES[name].build()
    batch = batch_of(model)
    assert len(build_tasks(batch, describe(model, "test"), SMALL)) > 1
    host = CpuDevice(CpuDevice.probe()[0], DeviceOptions())
    small = FpgaCsimDevice(FpgaCsimDevice.probe()[0], DeviceOptions(), SMALL)
    try:
        wanted, found = stepped(host, model, batch), stepped(small, model, batch)
    finally:
        host.close()
        small.close()
    assert found.loss_sum == pytest.approx(wanted.loss_sum, rel=1e-5)
    assert found.counts["correct"] == wanted.counts["correct"]
    for mine, other in zip(found.gradients, wanted.gradients, strict=True):
        assert float((mine - other).abs().max()) <= 1e-4 * float(other.abs().max())


def test_a_mini_batchs_rows_are_read_once_and_nothing_between_is_written() -> None:
    """As the paper counts it: |V^0| rows instead of |E^1|, and only scores and gradients go to memory."""
    model = CASES["gcn, layers=2"].build()
    batch = batch_of(model)
    simulator = Simulator(SMALL)
    (task,) = build_tasks(batch, describe(model, "test"), simulator.design)
    counts = simulator.train(task).counts
    simulator.close()
    first = batch.blocks[0]
    # GCN's self loops are edges too.
    sources = np.union1d(first.columns, np.arange(first.num_dst))
    assert counts.rows_read == len(sources) < first.num_edges
    assert counts.intermediate_words_written == 0
    assert counts.words_written == (np.prod(task.score_shape) + len(task.weights)) // 16


def test_times_are_the_models_and_not_the_simulations(device: FpgaCsimDevice) -> None:
    model = DROPPED.build()
    batch = batch_of(model)
    first, second = stepped(device, model, batch), stepped(device, model, batch)
    assert dict(first.seconds) == dict(second.seconds)
    assert set(first.seconds) == {"transfer", "propagate"}
    assert stepped(device, model, batch_of(model, 0)).seconds == {}


def test_times_grow_with_what_is_moved_and_computed() -> None:
    model = DROPPED.build()
    described = describe(model, "test")
    modelled = ModelledTime(FpgaDesign())
    roomy = replace(SMALL, arena_words=1 << 14)
    whole = build_tasks(batch_of(model), described, roomy)
    tiles = build_tasks(batch_of(model), described, SMALL)
    half = build_tasks(batch_of(model, 20), described, roomy)
    for seconds in (modelled.transfer_s, modelled.propagate_s):
        # What tiles share is moved and computed for each.
        assert seconds(half) < seconds(whole) < seconds(tiles)
    (task,) = whole
    moved = task.features.nbytes + task.edges.nbytes
    assert modelled.transfer_s(whole) > moved / 16e9
    macs = sum(3 * r.rows * r.parts * r.in_width * r.out_width for r in task.records)
    slow = ModelledTime(FpgaDesign(mac_rows=8, mac_cols=16))
    assert slow.propagate_s(whole) > macs / (8 * 16 * FpgaDesign().clock_hz)
    assert slow.propagate_s(whole) > modelled.propagate_s(whole)


def test_a_trace_has_the_modelled_times_named_so(device: FpgaCsimDevice) -> None:
    model = DROPPED.build()
    heard: dict[str, list[Any]] = {}
    device.load(model, list(model.parameters()))
    device.trace(lambda queue, spans: heard.setdefault(queue, []).extend(spans))
    began = time.perf_counter_ns()
    results = [device.propagate(device.transfer(batch_of(model))) for _ in range(2)]
    ended = time.perf_counter_ns()
    assert set(heard) == {"link, modelled", "trainer, modelled"}
    for queue, stage in (("link, modelled", "transfer"), ("trainer, modelled", "propagate")):
        spans = heard[queue]
        assert len(spans) == 2
        for (_, start, end), result in zip(spans, results, strict=True):
            assert (end - start) * 1e-9 == pytest.approx(result.seconds[stage], abs=1e-9)
            assert began < end < ended


def test_memory_is_that_of_the_mini_batches_in_flight() -> None:
    model = DROPPED.build()
    batch = batch_of(model)
    info = FpgaCsimDevice.probe()[0]
    device = FpgaCsimDevice(info, DeviceOptions(memory_bytes=300_000))
    try:
        device.load(model, list(model.parameters()))
        waiting: list[Any] = []

        def fill() -> None:
            while True:
                waiting.append(device.transfer(batch))

        with pytest.raises(
            DeviceOutOfMemoryError, match="fpga-csim:0 is out of memory for a mini-batch of 40"
        ):
            fill()
        assert len(waiting) > 1
        for _ in range(3):
            device.propagate(waiting.pop())
            waiting.append(device.transfer(batch))
    finally:
        device.close()


def test_weights_that_do_not_fit_are_no_fault() -> None:
    model = DROPPED.build()
    device = FpgaCsimDevice(FpgaCsimDevice.probe()[0], DeviceOptions(memory_bytes=1000))
    try:
        with pytest.raises(DeviceOutOfMemoryError, match="out of memory for weights and gradients") as error:
            device.load(model, list(model.parameters()))
        assert str(error.value).endswith(
            ": use fewer or narrower layers, because the model alone is too large"
        )
        one = CASES["gcn, layers=1"].build()
        with pytest.raises(DeviceOutOfMemoryError, match="out of memory for weights and gradients"):
            device.load(one, list(one.parameters()))
    finally:
        device.close()


def test_weights_that_leave_no_room_are_named() -> None:
    model = CASES["gcn, layers=2"].build()
    batch = batch_of(model)
    info = FpgaCsimDevice.probe()[0]
    shapes = layer_shapes(describe(model, "test"))
    # Values and gradients, 4 bytes each.
    weights = 2 * 64 * (shapes[-1].weights + shapes[-1].words)
    for room, says in (
        (1.2 * weights, r"use fewer .*weights and gradients take 83% of the memory"),
        (3 * weights, "assign the device a smaller share$"),
    ):
        device = FpgaCsimDevice(info, DeviceOptions(memory_bytes=int(room)))
        device.load(model, list(model.parameters()))
        with pytest.raises(DeviceOutOfMemoryError, match=says):
            device.transfer(batch)
        device.close()


def test_only_models_that_it_runs_are_offered(device: FpgaCsimDevice) -> None:
    own = cases.EdgeListModule()
    with pytest.raises(UnsupportedModelError, match="gcn, graphsage with mean or sum") as error:
        device.load(own, list(own.parameters()))
    assert "gin" not in str(error.value)


def test_a_mini_batch_of_an_earlier_model_is_a_fault(device: FpgaCsimDevice) -> None:
    model = DROPPED.build()
    device.load(model, list(model.parameters()))
    staged = device.transfer(batch_of(model))
    device.load(model, list(model.parameters()))
    with pytest.raises(DeviceFaultError, match="expected a mini-batch from transfer"):
        device.propagate(staged)
