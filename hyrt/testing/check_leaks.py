"""Checks that closing a device releases all its resources."""

from __future__ import annotations

import gc
import threading
import time
from dataclasses import dataclass
from functools import partial

import psutil

from hyrt.errors import DeviceFault
from hyrt.quantities import size
from hyrt.testing import cases
from hyrt.testing.trial import Trial, demand, load, must_fault, step

_PATIENCE_S = 3.0
# Pools and caches of libraries fill up in the first cycles.
_WARM_UP = 20
# Size of one mini-batch in flight that is not freed: about 400 kB.
_ROW_BYTES = 400_000
_GROWTH_PER_CYCLE_BYTES = 60_000
_NOISE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class _Resources:
    threads: int
    files: int
    resident_bytes: int


def _count_resources(process: psutil.Process) -> _Resources:
    gc.collect()
    return _Resources(process.num_threads(), process.num_fds(), process.memory_info().rss)


def closing_ends_its_threads(trial: Trial) -> None:
    """Check that close ends all threads: after training, with mini-batches in flight, and after a fault."""
    trial.model()
    trial.close_all()
    before = set(threading.enumerate())
    for faulty in (False, True):
        device = trial.loaded(threads=3)
        step(device, trial.batch())
        device.transfer(trial.batch())
        if faulty:
            must_fault("propagate(None)", partial(device.propagate, None))
        device.close()
        remaining, when = _remaining_threads(before), " after a fault" if faulty else ""
        demand(not remaining, f"no thread of the device after close{when}", f"left: {', '.join(remaining)}")


def _remaining_threads(before: set[threading.Thread]) -> list[str]:
    end = time.monotonic() + _PATIENCE_S
    while True:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        if not names or time.monotonic() > end:
            return names
        time.sleep(0.01)


def opening_and_closing_leaks_nothing(trial: Trial) -> None:
    """Check that no threads, file descriptors or memory leak over many cycles with unpropagated mini-
    batches.
    """
    model = trial.supported(layers=1).build()
    a = model.architecture
    small = trial.batch(cases.some_targets(8), model=model)
    large = cases.edgeless(_ROW_BYTES // (4 * a.in_features), a.in_features, a.layers)
    process = psutil.Process()

    def cycle(number: int) -> None:
        device = trial.open()
        load(device, model)
        step(device, small)
        device.transfer(large)
        if number % 10 == 0:
            try:
                device.propagate(None)
            except DeviceFault:
                device.close()
        trial.close_all()

    for number in range(_WARM_UP):
        cycle(number)
    before = _count_resources(process)
    middle = before
    for number in range(trial.cycles):
        cycle(number)
        if number == trial.cycles // 2:
            middle = _count_resources(process)
    after = _count_resources(process)
    end = time.monotonic() + _PATIENCE_S
    while after.threads > before.threads and time.monotonic() < end:
        time.sleep(0.05)
        after = _count_resources(process)
    for resource, old, new in (
        ("threads", before.threads, after.threads),
        ("file descriptors", before.files, after.files),
    ):
        demand(new <= old, f"as many {resource} after {trial.cycles} cycles", f"there were {old}, now {new}")
    # A cache that fills up once does not grow in both halves.
    grown = min(middle.resident_bytes - before.resident_bytes, after.resident_bytes - middle.resident_bytes)
    demand(
        grown <= max(_NOISE_BYTES, _GROWTH_PER_CYCLE_BYTES * trial.cycles),
        f"no more memory after {trial.cycles} cycles",
        f"the process grew by at least {size(grown)} in each half of them",
    )
