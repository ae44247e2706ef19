"""The order of commands and what is kept meanwhile, on PoCL with a small kernel."""

from __future__ import annotations

import gc
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hyrt_devices.fpga.compute_units import Queue
from hyrt_devices.fpga.pools import BufferPlace, BufferPools
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl_host.profiling import span_s

pytestmark = pytest.mark.skipif(not OpenclDevice.probe(), reason=OpenclDevice.missing() or "no OpenCL device")

# Slow enough that a launch that does not wait for the one before it sees old values.
SOURCE = """
__kernel void next(__global const float *x, __global float *y) {
    float sum = x[0];
    for (int i = 0; i < 2000000; i++) sum = sum * 0.5f + x[0] * 0.5f;
    y[0] = sum + 1;
}
"""


@pytest.fixture(scope="module", name="machine")
def _machine() -> Any:
    import pyopencl as cl

    device = survey().found[0].device
    context = cl.Context([device])
    program = cl.Program(context, SOURCE).build()
    return SimpleNamespace(context=context, device=device, kernel=lambda: cl.Kernel(program, "next"))


def test_a_chain_runs_in_the_order_of_its_events(machine: Any) -> None:
    pools, queue = (
        BufferPools(machine.context, "fpga:0", 1 << 20, 1 << 20),
        Queue(machine.context, machine.device),
    )
    slots = [pools.take(BufferPlace(0, i, written=i > 0), 4) for i in range(5)]
    slots[0].fill(np.array([41], np.float32))
    kernel = machine.kernel()
    events = [queue.to_device([slots[0].buffer])]
    for before, after in pairwise(slots):
        events.append(queue.launch(kernel, [before.buffer, after.buffer], [events[-1]]))
    back = queue.to_host([slots[4].buffer], [events[-1]])
    queue.wait([back])
    assert slots[4].view((1,), np.float32)[0] == 45
    times = [(event.profile.start, event.profile.end) for event in [*events, back]]
    assert all(a[1] <= b[0] for a, b in pairwise(times))
    assert span_s([*events, back]) == pytest.approx((times[-1][1] - times[0][0]) * 1e-9)
    assert span_s([]) == 0
    queue.close()
    pools.slots.close()


def test_two_queues_are_joined_by_an_event(machine: Any) -> None:
    pools = BufferPools(machine.context, "fpga:0", 1 << 20, 1 << 20)
    first, second = Queue(machine.context, machine.device), Queue(machine.context, machine.device)
    x, y, z = (pools.take(BufferPlace(0, i, written=i > 0), 4) for i in range(3))
    x.fill(np.array([1], np.float32))
    made = first.launch(machine.kernel(), [x.buffer, y.buffer], [first.to_device([x.buffer])])
    first.flush()
    second.wait([second.to_host([z.buffer], [second.launch(machine.kernel(), [y.buffer, z.buffer], [made])])])
    assert z.view((1,), np.float32)[0] == 3
    for queue in (first, second):
        queue.close()
        queue.close()
    pools.slots.close()


def test_what_a_command_uses_is_kept_until_it_is_over(machine: Any) -> None:
    import pyopencl as cl

    queue = Queue(machine.context, machine.device)
    gate = cl.UserEvent(machine.context)
    x, y = np.full(1024, 5, np.float32), np.zeros(1024, np.float32)
    flags = cl.mem_flags.USE_HOST_PTR | cl.mem_flags.READ_WRITE
    queue.launch(
        machine.kernel(),
        [cl.Buffer(machine.context, flags, hostbuf=x), cl.Buffer(machine.context, flags, hostbuf=y)],
        [gate],
    )
    queue.flush()
    gc.collect()
    # Nobody but the queue holds kernel and buffers now.
    kernel, buffers, after = queue._pending[0][1]
    assert [buffer.size for buffer in buffers] == [4096, 4096]
    assert after == [gate]
    assert kernel.function_name == "next"
    del kernel, buffers, after
    gate.set_status(cl.command_execution_status.COMPLETE)
    queue.settle()
    assert y[0] == 6
    assert queue._pending == []
    queue.close()


def test_what_is_over_is_not_kept(machine: Any) -> None:
    pools, queue = (
        BufferPools(machine.context, "fpga:0", 1 << 20, 1 << 20),
        Queue(machine.context, machine.device),
    )
    slot = pools.take(BufferPlace(0, 0), 4)
    for _ in range(20):
        queue.wait([queue.to_device([slot.buffer])])
        assert len(queue._pending) == 1
    queue.close()
    pools.slots.close()


def test_a_failed_command_is_an_error_to_who_waits_and_not_to_who_closes(machine: Any) -> None:
    import pyopencl as cl

    pools, queue = (
        BufferPools(machine.context, "fpga:0", 1 << 20, 1 << 20),
        Queue(machine.context, machine.device),
    )
    x, y = pools.take(BufferPlace(0, 0), 4), pools.take(BufferPlace(0, 1, written=True), 4)
    gate = cl.UserEvent(machine.context)
    launched = queue.launch(machine.kernel(), [x.buffer, y.buffer], [gate])
    queue.flush()
    gate.set_status(-5)
    with pytest.raises(cl.Error):
        queue.wait([launched])
    queue.close()
    pools.slots.close()
