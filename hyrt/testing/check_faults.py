"""Checks of error handling (faults, out-of-memory, use after close) and of resource leaks."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from hyrt.device import Device
from hyrt.errors import DeviceFaultError, DeviceOutOfMemoryError, HyrtError
from hyrt.formatting import format_bytes
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.trial import (
    CheckFailedError,
    CheckSkippedError,
    Trial,
    check_agreement,
    check_same_bits,
    compute_reference,
    copy_result,
    load_model,
    require,
    require_fault,
    run_step,
    skip_unless,
    trainable_parameters,
)

_SMALLEST_BYTES = 1 << 15
_LARGEST_BYTES = 1 << 28


def _stays_faulted(trial: Trial, device: Device, staged: Any, first: DeviceFaultError) -> None:
    """Check that every call after a fault raises the fault again, and that close works."""
    calls: dict[str, Callable[[], Any]] = {
        "transfer after a fault": lambda: device.transfer(trial.batch()),
        "propagate after a fault": lambda: device.propagate(staged),
        "update after a fault": lambda: device.update(trainable_parameters(trial.model())),
    }
    for doing, call in calls.items():
        fault = require_fault(doing, call)
        require(str(fault) == str(first), f"the first fault again ({first})", f"{doing} raised {fault}")
    for times in ("", " a second time"):
        try:
            device.close()
        except Exception as error:
            raise CheckFailedError(
                f"expected close after a fault to work{times}; it raised {type(error).__name__}: {error}"
            ) from error
    require_fault("transfer after closing", lambda: device.transfer(trial.batch()))


def _name_is_in(device: Device, error: HyrtError) -> None:
    name = device.info.name
    require(
        name in str(error), f"the message to name the device {name}", f"got {type(error).__name__}: {error}"
    )


def propagating_a_foreign_object_is_a_fault(trial: Trial) -> None:
    """Check that a foreign object is a permanent fault: later calls raise it again, and close works."""
    for foreign in (object(), None):
        device = trial.open_loaded()
        staged = device.transfer(trial.batch())
        fault = require_fault(f"propagate({foreign!r})", partial(device.propagate, foreign))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, staged, fault)


def a_mini_batch_is_propagated_once(trial: Trial) -> None:
    """Check that propagate releases the mini-batch."""
    device = trial.open_loaded()
    staged = device.transfer(trial.batch())
    device.propagate(staged)
    fault = require_fault("propagating a mini-batch twice", lambda: device.propagate(staged))
    _stays_faulted(trial, device, staged, fault)


def another_devices_mini_batch_is_a_fault(trial: Trial) -> None:
    """Check that propagating a mini-batch that another device has staged is a fault."""
    device, other = trial.open_loaded(), trial.open_loaded()
    staged = other.transfer(trial.batch())
    fault = require_fault("propagating a mini-batch of another device", lambda: device.propagate(staged))
    _stays_faulted(trial, device, device, fault)
    run_step(other, trial.batch())


def an_unfit_mini_batch_is_a_fault(trial: Trial) -> None:
    """Check that a mini-batch of another model (fewer blocks, other widths) is a DeviceFaultError."""
    skip_unless(trial.computes, "it computes nothing")

    # `transfer` may reject inconsistent mini-batches without a fault, but these two are consistent.
    def drop_block(batch: MiniBatch) -> None:
        batch.blocks = batch.blocks[1:]
        batch.inputs = batch.inputs[: batch.blocks[0].num_src].contiguous()

    def drop_column(batch: MiniBatch) -> None:
        batch.inputs = batch.inputs[:, 1:].contiguous()

    for defect, damage in {"a missing block": drop_block, "rows of the wrong width": drop_column}.items():
        device = trial.open_loaded()
        batch = trial.batch()
        damage(batch)
        fault = require_fault(f"a mini-batch with {defect}", partial(run_step, device, batch))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, object(), fault)


def a_broken_device_faults_for_good(trial: Trial) -> None:
    """Check that a fault is permanent, and that its cause is the driver's exception."""
    skip_unless(trial.break_next is not None, "check_device was called without break_next")
    assert trial.break_next is not None
    device = trial.open_loaded()
    run_step(device, trial.batch())
    pending = device.transfer(trial.batch())
    trial.break_next(device)
    fault = require_fault("a broken device", lambda: run_step(device, trial.batch()))
    caused = fault.__cause__ is not None
    require(caused, "the fault to have the error that broke the device as its cause", f"it has none: {fault}")
    _name_is_in(device, fault)
    _stays_faulted(trial, device, pending, fault)


def closing_is_idempotent(trial: Trial) -> None:
    """Check that close works twice: after opening, after loading and with mini-batches in flight."""
    fresh, loaded, busy = trial.open(), trial.open_loaded(), trial.open_loaded()
    for _ in range(3):
        busy.transfer(trial.batch())
    for device in (fresh, loaded, busy):
        device.close()
        device.close()


def use_after_close_is_a_fault(trial: Trial) -> None:
    """Check that after close, every call except close is a fault."""
    model = trial.model()
    device = trial.open_loaded(model)
    staged = device.transfer(trial.batch())
    device.close()
    require_fault("transfer after close", lambda: device.transfer(trial.batch()))
    require_fault("propagate after close", lambda: device.propagate(staged))
    require_fault("update after close", lambda: device.update(trainable_parameters(model)))
    require_fault("load after close", lambda: load_model(device, model))
    device.close()


def out_of_memory_is_recoverable(trial: Trial) -> None:
    """Check that a mini-batch that does not fit raises DeviceOutOfMemoryError without other effects."""
    skip_unless(trial.computes, "it computes nothing")
    model: Any = trial.model()
    layers, features = model.architecture.layers, model.architecture.in_features
    limit = _SMALLEST_BYTES
    while (device := _open_with_limit(trial, model, limit)) is None:
        limit *= 2
        wide = limit <= _LARGEST_BYTES
        require(wide, f"a mini-batch of 40 targets to fit into memory_bytes={limit}", "it does not fit")
    small = trial.batch()
    reference = compute_reference(model, small, trial.graph())
    before = copy_result(run_step(device, small))
    check_agreement(before, reference, "before memory ran out")
    # Four times the memory limit is more than the free memory in any case.
    large = cases.edgeless_batch(4 * limit // (4 * features), features, layers)
    if _fits(device, large):
        info = device.info
        has_memory = not (info.zero_copy or info.host_cores or info.simulated)
        require(
            not has_memory,
            f"DeviceOutOfMemoryError for rows of four times memory_bytes={limit}",
            "the device, which has separate memory, accepted them",
        )
        raise CheckSkippedError("it trains in host memory and accepted a mini-batch larger than memory_bytes")
    for attempt in range(5):
        staged = device.transfer(trial.batch())
        fits = _fits(device, large)
        require(
            not fits,
            "DeviceOutOfMemoryError each time",
            f"mini-batch number {attempt + 2} of that size fit",
        )
        check_same_bits(
            device.propagate(staged), before, "of a mini-batch that was staged before memory ran out"
        )
        check_same_bits(run_step(device, trial.batch()), before, "after memory ran out")
    for _ in range(60):
        run_step(device, trial.batch())


def _open_with_limit(trial: Trial, model: Any, limit: int) -> Device | None:
    """Open a device with a memory limit; return None if the model and a small mini-batch do not fit."""
    device = trial.open(memory_bytes=limit)
    try:
        load_model(device, model)
        # Keep two mini-batches on the device, as in the pipeline.
        first = device.transfer(trial.batch())
        second = device.transfer(trial.batch())
        device.propagate(first)
        device.propagate(second)
    except (DeviceOutOfMemoryError, DeviceFaultError):
        # Close the device now, because the limit may apply to the whole process.
        device.close()
        return None
    return device


def _fits(device: Device, batch: MiniBatch) -> bool:
    try:
        run_step(device, batch)
    except DeviceOutOfMemoryError as error:
        _name_is_in(device, error)
        return False
    return True


_PATIENCE_S = 3.0
# Number of cycles without measurement, in which pools and caches of libraries grow.
_WARM_UP = 20
# Approximate number of bytes that each cycle leaks if a mini-batch in flight is not freed.
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
    """Check that close ends all threads: after training, with mini-batches in flight and after a fault."""
    trial.model()
    trial.close_all()
    before = set(threading.enumerate())
    for faulty in (False, True):
        device = trial.open_loaded(threads=3)
        run_step(device, trial.batch())
        device.transfer(trial.batch())
        if faulty:
            require_fault("propagate(None)", partial(device.propagate, None))
        device.close()
        remaining, when = _remaining_threads(before), " after a fault" if faulty else ""
        require(
            not remaining,
            f"no threads of the device after close{when}",
            f"still running: {', '.join(remaining)}",
        )


def _remaining_threads(before: set[threading.Thread]) -> list[str]:
    end = time.monotonic() + _PATIENCE_S
    while True:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        if not names or time.monotonic() > end:
            return names
        time.sleep(0.01)


def opening_and_closing_leaks_nothing(trial: Trial) -> None:
    """Check that many cycles with mini-batches in flight leak no threads, file descriptors or memory."""
    model = trial.supported_case(layers=1).build()
    a = model.architecture
    small = trial.batch(cases.sample_targets(8), model=model)
    large = cases.edgeless_batch(_ROW_BYTES // (4 * a.in_features), a.in_features, a.layers)
    process = psutil.Process()

    def cycle(number: int) -> None:
        device = trial.open()
        load_model(device, model)
        run_step(device, small)
        device.transfer(large)
        if number % 10 == 0:
            try:
                device.propagate(None)
            except DeviceFaultError:
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
        require(new <= old, f"no more {resource} after {trial.cycles} cycles", f"there were {old}, now {new}")
    # A cache that is filled once cannot grow in both halves of the cycles.
    grown = min(middle.resident_bytes - before.resident_bytes, after.resident_bytes - middle.resident_bytes)
    require(
        grown <= max(_NOISE_BYTES, _GROWTH_PER_CYCLE_BYTES * trial.cycles),
        f"no memory growth over {trial.cycles} cycles",
        f"the process grew by at least {format_bytes(grown)} in each half of the cycles",
    )
