"""What a process with XRT's runtime does; `cardless_xrt` starts it. The last line it prints is JSON."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import numpy as np
from hyrt_devices.fpga.probe import survey
from unit.hls.golden import golden_tasks


def probe() -> Any:
    """What is found, without torch."""
    seen = survey()
    infos = [asdict(found.info) for found in seen.found]
    return {
        "infos": infos,
        "reasons": seen.reasons,
        "loaded": [n for n in ("torch", "pyopencl") if n in sys.modules],
    }


class Opened:
    """The parts of a device, without a model."""

    def __init__(self) -> None:
        import pyopencl as cl
        from hyrt_devices.fpga.compute_units import Queue, TaskStager
        from hyrt_devices.fpga.pools import BufferPools
        from hyrt_devices.fpga.xclbin import XclbinPrograms

        found = survey().found[0]
        context = cl.Context([found.device])
        self.programs = XclbinPrograms(context, found.device, found.xclbin)
        self.pools = BufferPools(context, found.info.name, 1 << 30, int(found.device.max_mem_alloc_size))
        self.transfers, self.launches = Queue(context, found.device), Queue(context, found.device)
        self.stager = TaskStager(self.programs, self.pools, self.transfers)

    def close(self) -> None:
        self.transfers.close()
        self.launches.close()
        self.pools.slots.close()


def tasks() -> Any:
    """Seven launches of one task on the units there are: when each command ran."""
    from hyrt_devices.fpga.compute_units import ComputeUnits, StagedTasks, is_over
    from hyrt_devices.opencl_host.profiling import spans

    opened = Opened()
    task = next(task for name, task in golden_tasks() if name == "two layers")
    units = ComputeUnits(opened.programs, opened.pools, opened.stager, opened.launches, len(task.weights))
    brought = units.update(task.weights)
    staged = StagedTasks(owner=None, targets=7, normalizer=7.0)
    opened.stager.stage(staged, [task] * 7)
    on_units = [one.unit for one in staged.tasks]
    arrived = [[(e.profile.start, e.profile.end) for e in settled(one.events)] for one in staged.tasks]
    sums = units.run(staged.tasks)
    ran = [(event.profile.start, event.profile.end) for event in sums.events]
    traced = spans([*sums.commands, *(("weights", event) for event in brought if is_over(event))])
    staged.release(opened.pools)
    held = opened.pools.slots.allocated_bytes
    # A second round uses the same memory.
    opened.stager.stage(staged, [task] * 7)
    units.run(staged.tasks)
    staged.release(opened.pools)
    same = opened.pools.slots.allocated_bytes == held
    units.release()
    left = opened.pools.slots.used_bytes
    opened.close()
    return {
        "units": on_units,
        "arrived": arrived,
        "launches": ran[0::2],
        "back": ran[1::2],
        "traced": traced,
        "gradients": float(np.abs(sums.gradients).max()),
        "loss_sum": sums.loss_sum,
        "same_memory": same,
        "left_bytes": left,
    }


def misplaced() -> Any:
    """A task in the memory of another compute unit: what XRT says, and whether it then runs in its own."""
    import pyopencl as cl
    from hyrt_devices.fpga.compute_units import ComputeUnits, StagedTasks

    opened = Opened()
    task = next(task for name, task in golden_tasks() if name == "one layer")
    units = ComputeUnits(opened.programs, opened.pools, opened.stager, opened.launches, len(task.weights))
    units.update(task.weights)
    staged = StagedTasks(owner=None, targets=1, normalizer=1.0)
    opened.stager.stage(staged, [task])
    staged.tasks[0].unit = 1
    said = ""
    try:
        units.run(staged.tasks)
    except cl.Error as error:
        said = str(error)
    opened.launches.settle()
    staged.tasks[0].unit = 0
    units.run(staged.tasks)
    opened.close()
    return said


def settled(events: list[Any]) -> list[Any]:
    """The same events, over."""
    for event in events:
        event.wait()
    return events


def opening() -> Any:
    """How a program that XRT does not take says so."""
    from hyrt.errors import DeviceUnavailableError

    try:
        Opened()
    except DeviceUnavailableError as error:
        return str(error)
    return ""


def suite() -> Any:
    """The conformance suite of a device that computes nothing."""
    from hyrt_devices.fpga.device import FpgaDevice

    from hyrt.testing import check_device

    info = FpgaDevice.probe()[0]
    # XRT 2.13 leaves a thread behind each time that the last user of a card closes it, which is none of the
    # device's: so it is in use all the time.
    opened = Opened()
    report = check_device(lambda options: FpgaDevice.open(info, options), computes=False, cycles=20)
    opened.close()
    return {"passed": len(report.passed), "skipped": [f"{f.name}: {f.detail}" for f in report.skipped]}


if __name__ == "__main__":
    scenarios = {"probe": probe, "tasks": tasks, "misplaced": misplaced, "opening": opening, "suite": suite}
    print(json.dumps(scenarios[sys.argv[1]]()))
