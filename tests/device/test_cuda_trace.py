"""What a traced torch device hands over, over the double of its driver, whose clock is the host's."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from device.test_cuda import INFO, batch_of, loaded, off_host  # noqa: F401 (a fixture)
from graphs import random_graph
from hyrt_devices.cuda.device import CudaDevice, TorchDevice
from trace_checks import Trace as Read
from unit.cuda.emulated_kernels import EmulatedLauncher, needs_compiler
from unit.cuda.fake_driver import FakeDriver

from hyrt.device import DeviceOptions, Span
from hyrt.runtime.rng import SAMPLE, stream_key
from hyrt.telemetry.trace import Trace, trace_json

COMPUTE = ["forward", "loss and backward", "gradients to the host"]
COPIES = ["copy", "unpack and gather"]


class Heard:
    """Spans by queue, and the time since the trace was asked for at which each was handed over."""

    def __init__(self) -> None:
        self.spans: defaultdict[str, list[Span]] = defaultdict(list)
        self.started = time.perf_counter_ns()

    def __call__(self, queue: str, spans: Sequence[Span]) -> None:
        now = time.perf_counter_ns() - self.started
        assert all(0 <= start <= end <= now for _, start, end in spans)
        self.spans[queue] += spans


def three_steps(device: TorchDevice) -> list[Any]:
    """Each mini-batch is transferred before the one before it is propagated."""
    graph = random_graph()
    model = loaded(device)
    results, staged = [], device.transfer(batch_of(graph))
    for step in (1, 2, 3):
        following = device.transfer(batch_of(graph, step=step))
        results.append(device.propagate(staged))
        device.update([parameter + 0.01 * step for parameter in model.parameters()])
        staged = following
    return results


def opened(driver: FakeDriver) -> TorchDevice:
    return CudaDevice(INFO, DeviceOptions(), driver, None)


def test_spans_of_three_steps() -> None:
    driver = FakeDriver()
    device = opened(driver)
    heard = Heard()
    device.trace(heard)
    three_steps(device)
    device.close()
    assert [name for name, _, _ in heard.spans["copies"]] == 3 * COPIES
    # The first weights are those of `load`.
    assert [name for name, _, _ in heard.spans["compute"]] == 3 * ["weights", *COMPUTE]
    for spans in heard.spans.values():
        assert all(before[2] <= after[1] for before, after in pairwise(spans)), "a stream runs in order"
    for (_, _, copied), (_, computed, _) in zip(
        heard.spans["copies"][1::2], heard.spans["compute"][1::4], strict=True
    ):
        assert copied <= computed, "what is propagated has arrived"


def test_it_changes_no_result_and_costs_nothing_when_off() -> None:
    plain, traced = FakeDriver(), FakeDriver()
    first, second = opened(plain), opened(traced)
    second.trace(Heard())
    for a, b in zip(three_steps(first), three_steps(second), strict=True):
        assert a.loss_sum == b.loss_sum
        assert all(torch.equal(x, y) for x, y in zip(a.gradients, b.gradients, strict=True))
    calls = [call for call in plain.calls if call[0] in ("mark", "wait")]
    # Of a mini-batch: begun, arrived, begun, ended, and the wait for that. Of weights: when they were sent.
    assert sum(call[0] == "mark" for call in calls) == 2 * 4 + 2 * 3 + 4
    first.close()
    second.close()


@needs_compiler
def test_a_sampler_tells_of_its_hops() -> None:
    driver = FakeDriver()
    device = CudaDevice(INFO, DeviceOptions(), driver, EmulatedLauncher(driver))
    graph = random_graph()
    sampler = device.sampler(graph)
    assert sampler is not None
    heard = Heard()
    device.trace(heard)
    for step in range(2):
        sampler.draw(graph.split("train")[:8], 4, stream_key(0, SAMPLE, step, 0), relabel=True)
    device.close()
    assert [name for name, _, _ in heard.spans["sample"]] == ["draw 4 each"] * 2


def test_the_trace_of_it_is_whole_and_on_the_hosts_clock() -> None:
    trace = Trace(1000)
    driver = FakeDriver()
    device = opened(driver)
    device.trace(lambda queue, spans: trace.add_spans("cuda:0", queue, spans))
    began = time.perf_counter_ns() - trace.started
    three_steps(device)
    ended = time.perf_counter_ns() - trace.started
    device.close()
    found = Read(trace_json(trace, ("cuda:0",), {}))
    found.assert_is_whole()
    assert set(found.threads.values()) == {"copies", "compute"}
    assert len(found.of("compute")) == 12
    for event in found.slices:
        # `load` before it made the first weights.
        assert began <= event["ts"] + event["dur"] <= ended


def test_a_device_that_fails_cannot_be_traced() -> None:
    driver = FakeDriver()
    device = opened(driver)
    driver.broken = RuntimeError("CUDA error: unspecified launch failure")
    with pytest.raises(Exception, match="unspecified launch failure"):
        device.trace(Heard())
    driver.broken = None
