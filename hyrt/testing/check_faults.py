"""Checks of error handling: faults, out-of-memory, use after close."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hyrt.device import Device
from hyrt.errors import DeviceFault, DeviceOutOfMemory, HyrtError
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.trial import (
    Trial,
    agree,
    demand,
    expected,
    kept,
    load,
    must_fault,
    same_bits,
    skip_unless,
    step,
    trainable,
)
from hyrt.testing.verdicts import Failed, Skipped

_SMALLEST_BYTES = 1 << 15
_LARGEST_BYTES = 1 << 28


def _stays_faulted(trial: Trial, device: Device, staged: Any, first: DeviceFault) -> None:
    """Check that every call after a fault raises the fault again, and that closing works."""
    calls: dict[str, Callable[[], Any]] = {
        "transfer after a fault": lambda: device.transfer(trial.batch()),
        "propagate after a fault": lambda: device.propagate(staged),
        "update after a fault": lambda: device.update(trainable(trial.model())),
    }
    for doing, call in calls.items():
        fault = must_fault(doing, call)
        demand(str(fault) == str(first), f"the first fault again ({first})", f"{doing} raised {fault}")
    for times in ("", " a second time"):
        try:
            device.close()
        except Exception as error:
            raise Failed(
                f"expected close after a fault to work{times}; it raised {type(error).__name__}: {error}"
            ) from error
    must_fault("transfer after closing", lambda: device.transfer(trial.batch()))


def _name_is_in(device: Device, error: HyrtError) -> None:
    name = device.info.name
    demand(
        name in str(error), f"the message to name the device {name}", f"{type(error).__name__} says: {error}"
    )


def propagating_a_foreign_object_is_a_fault(trial: Trial) -> None:
    """Check that propagating a foreign object is a terminal fault: later calls raise it again, close
    works.
    """
    for foreign in (object(), None):
        device = trial.loaded()
        staged = device.transfer(trial.batch())
        fault = must_fault(f"propagate({foreign!r})", partial(device.propagate, foreign))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, staged, fault)


def a_mini_batch_is_propagated_once(trial: Trial) -> None:
    """Check that propagate releases the mini-batch."""
    device = trial.loaded()
    staged = device.transfer(trial.batch())
    device.propagate(staged)
    fault = must_fault("propagating a mini-batch twice", lambda: device.propagate(staged))
    _stays_faulted(trial, device, staged, fault)


def another_devices_mini_batch_is_a_fault(trial: Trial) -> None:
    """Check that a mini-batch staged by another device is a fault."""
    device, other = trial.loaded(), trial.loaded()
    staged = other.transfer(trial.batch())
    fault = must_fault("propagating what another device staged", lambda: device.propagate(staged))
    _stays_faulted(trial, device, device, fault)
    step(other, trial.batch())


def an_unfit_mini_batch_is_a_fault(trial: Trial) -> None:
    """Check that a mini-batch of another model (too few blocks, other widths) is a DeviceFault, not a
    library's error.
    """
    skip_unless(trial.computes, "it computes nothing")

    # Both are consistent in themselves: `transfer` may refuse other mini-batches without a fault.
    def drop_block(batch: MiniBatch) -> None:
        batch.blocks = batch.blocks[1:]
        batch.inputs = batch.inputs[: batch.blocks[0].num_src].contiguous()

    def drop_column(batch: MiniBatch) -> None:
        batch.inputs = batch.inputs[:, 1:].contiguous()

    for defect, damage in {"a block too few": drop_block, "rows of another width": drop_column}.items():
        device = trial.loaded()
        batch = trial.batch()
        damage(batch)
        fault = must_fault(f"a mini-batch with {defect}", partial(step, device, batch))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, object(), fault)


def a_broken_device_faults_for_good(trial: Trial) -> None:
    """Check that a fault is permanent and has the driver's exception as its cause."""
    skip_unless(trial.break_next is not None, "no way to break it was given (break_next)")
    assert trial.break_next is not None
    device = trial.loaded()
    step(device, trial.batch())
    pending = device.transfer(trial.batch())
    trial.break_next(device)
    fault = must_fault("a device that was broken", lambda: step(device, trial.batch()))
    caused = fault.__cause__ is not None
    demand(caused, "the fault to have the error that broke the device as its cause", f"it has none: {fault}")
    _name_is_in(device, fault)
    _stays_faulted(trial, device, pending, fault)


def closing_is_idempotent(trial: Trial) -> None:
    """Check that closing twice works: right after opening, after loading, and with mini-batches in flight."""
    fresh, loaded, busy = trial.open(), trial.loaded(), trial.loaded()
    for _ in range(3):
        busy.transfer(trial.batch())
    for device in (fresh, loaded, busy):
        device.close()
        device.close()


def use_after_close_is_a_fault(trial: Trial) -> None:
    """Check that every call except close is a fault after close."""
    model = trial.model()
    device = trial.loaded(model)
    staged = device.transfer(trial.batch())
    device.close()
    must_fault("transfer after close", lambda: device.transfer(trial.batch()))
    must_fault("propagate after close", lambda: device.propagate(staged))
    must_fault("update after close", lambda: device.update(trainable(model)))
    must_fault("load after close", lambda: load(device, model))
    device.close()


def out_of_memory_is_recoverable(trial: Trial) -> None:
    """Check that a mini-batch that does not fit raises DeviceOutOfMemory, leaks nothing, and does not affect
    others.
    """
    skip_unless(trial.computes, "it computes nothing")
    model: Any = trial.model()
    layers, features = model.architecture.layers, model.architecture.in_features
    limit = _SMALLEST_BYTES
    while (device := _open_with_limit(trial, model, limit)) is None:
        limit *= 2
        wide = limit <= _LARGEST_BYTES
        demand(wide, f"a mini-batch of 40 targets to fit into memory_bytes={limit}", "it does not fit")
    small = trial.batch()
    reference = expected(model, small, trial.graph())
    before = kept(step(device, small))
    agree(before, reference, "before memory was short")
    # Rows of four times the memory limit, whatever else the device stores.
    large = cases.edgeless(4 * limit // (4 * features), features, layers)
    if _fits(device, large):
        info = device.info
        has_memory = not (info.zero_copy or info.host_cores or info.simulated)
        demand(
            not has_memory,
            f"DeviceOutOfMemory for rows of four times memory_bytes={limit}",
            "the device, which has memory of its own, took them",
        )
        raise Skipped("it trains in the host's memory and took what is larger than memory_bytes")
    for attempt in range(5):
        staged = device.transfer(trial.batch())
        fits = _fits(device, large)
        demand(
            not fits, "DeviceOutOfMemory each time", f"mini-batch number {attempt + 2} of that size fitted"
        )
        same_bits(device.propagate(staged), before, "of a mini-batch that was staged while memory was short")
        same_bits(step(device, trial.batch()), before, "after memory was short")
    for _ in range(60):
        step(device, trial.batch())


def _open_with_limit(trial: Trial, model: Any, limit: int) -> Device | None:
    """Open a device with a memory limit; None if the model and a small mini-batch do not fit."""
    device = trial.open(memory_bytes=limit)
    try:
        load(device, model)
        # Two at a time, as in the pipeline.
        first = device.transfer(trial.batch())
        second = device.transfer(trial.batch())
        device.propagate(first)
        device.propagate(second)
    except (DeviceOutOfMemory, DeviceFault):
        # Closed now, because the limit may apply to the whole process.
        device.close()
        return None
    return device


def _fits(device: Device, batch: MiniBatch) -> bool:
    try:
        step(device, batch)
    except DeviceOutOfMemory as error:
        _name_is_in(device, error)
        return False
    return True
