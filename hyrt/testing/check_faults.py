"""Checks of what a device does when something is wrong: faults, no memory, use after close."""

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
    """After a fault every call raises it again, and closing works."""
    calls: dict[str, Callable[[], Any]] = {
        "transfer after a fault": lambda: device.transfer(trial.batch()),
        "propagate after a fault": lambda: device.propagate(staged),
        "update after a fault": lambda: device.update(trainable(trial.model())),
    }
    for doing, call in calls.items():
        again = must_fault(doing, call)
        demand(str(again) == str(first), f"the first fault again ({first})", f"{doing} raised {again}")
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


def what_transfer_did_not_return_is_a_fault(trial: Trial) -> None:
    """And terminal: later calls raise it again, close works."""
    for foreign in (object(), None):
        device = trial.loaded()
        staged = device.transfer(trial.batch())
        fault = must_fault(f"propagate({foreign!r})", partial(device.propagate, foreign))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, staged, fault)


def a_mini_batch_is_propagated_once(trial: Trial) -> None:
    """Propagate releases it."""
    device = trial.loaded()
    staged = device.transfer(trial.batch())
    device.propagate(staged)
    fault = must_fault("propagating a mini-batch twice", lambda: device.propagate(staged))
    _stays_faulted(trial, device, staged, fault)


def another_devices_mini_batch_is_a_fault(trial: Trial) -> None:
    """Its buffers are the other's."""
    device, other = trial.loaded(), trial.loaded()
    staged = other.transfer(trial.batch())
    fault = must_fault("propagating what another device staged", lambda: device.propagate(staged))
    _stays_faulted(trial, device, device, fault)
    step(other, trial.batch())


def an_unfit_mini_batch_is_a_fault(trial: Trial) -> None:
    """A mini-batch of another model: too few blocks, other widths. No library's bare error comes through."""
    skip_unless(trial.computes, "it computes nothing")

    # Both are consistent in themselves: `transfer` may refuse other mini-batches, and go on.
    def cut(batch: MiniBatch) -> None:
        batch.blocks = batch.blocks[1:]
        batch.inputs = batch.inputs[: batch.blocks[0].num_src].contiguous()

    def narrow(batch: MiniBatch) -> None:
        batch.inputs = batch.inputs[:, 1:].contiguous()

    for what, spoil in {"a block too few": cut, "rows of another width": narrow}.items():
        device = trial.loaded()
        batch = trial.batch()
        spoil(batch)
        fault = must_fault(f"a mini-batch with {what}", partial(step, device, batch))
        _name_is_in(device, fault)
        _stays_faulted(trial, device, object(), fault)


def a_broken_device_faults_for_good(trial: Trial) -> None:
    """What the driver raised is the fault's cause."""
    skip_unless(trial.break_next is not None, "no way to break it was given (break_next)")
    assert trial.break_next is not None
    device = trial.loaded()
    step(device, trial.batch())
    waiting = device.transfer(trial.batch())
    trial.break_next(device)
    fault = must_fault("a device that was broken", lambda: step(device, trial.batch()))
    caused = fault.__cause__ is not None
    demand(caused, "the fault to have the error that broke the device as its cause", f"it has none: {fault}")
    _name_is_in(device, fault)
    _stays_faulted(trial, device, waiting, fault)


def closing_is_idempotent(trial: Trial) -> None:
    """Right after opening, after loading, with mini-batches in flight; twice each."""
    fresh, loaded, busy = trial.open(), trial.loaded(), trial.loaded()
    for _ in range(3):
        busy.transfer(trial.batch())
    for device in (fresh, loaded, busy):
        device.close()
        device.close()


def use_after_close_is_a_fault(trial: Trial) -> None:
    """Of every call but close."""
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
    """A mini-batch that does not fit raises DeviceOutOfMemory, leaves nothing taken, and others go on."""
    skip_unless(trial.computes, "it computes nothing")
    model: Any = trial.model()
    layers, features = model.architecture.layers, model.architecture.in_features
    room = _SMALLEST_BYTES
    while (device := _with_room(trial, model, room)) is None:
        room *= 2
        wide = room <= _LARGEST_BYTES
        demand(wide, f"a mini-batch of 40 targets to fit into memory_bytes={room}", "it does not fit")
    small = trial.batch()
    wanted = expected(model, small, trial.graph())
    before = kept(step(device, small))
    agree(before, wanted, "before memory was short")
    # Rows of four times the room, however little else the device keeps.
    large = cases.edgeless(4 * room // (4 * features), features, layers)
    if _fits(device, large):
        info = device.info
        own = not (info.zero_copy or info.host_cores or info.simulated)
        demand(
            not own,
            f"DeviceOutOfMemory for rows of four times memory_bytes={room}",
            "the device, which has memory of its own, took them",
        )
        raise Skipped("it trains in the host's memory and took what is larger than memory_bytes")
    for again in range(5):
        staged = device.transfer(trial.batch())
        fits = _fits(device, large)
        demand(not fits, "DeviceOutOfMemory each time", f"mini-batch number {again + 2} of that size fitted")
        same_bits(device.propagate(staged), before, "of a mini-batch that was staged while memory was short")
        same_bits(step(device, trial.batch()), before, "after memory was short")
    for _ in range(60):
        step(device, trial.batch())


def _with_room(trial: Trial, model: Any, room: int) -> Device | None:
    """A device with so much memory; None where it does not hold the model and a small mini-batch."""
    device = trial.open(memory_bytes=room)
    try:
        load(device, model)
        # Two at a time, as in the pipeline.
        waiting = device.transfer(trial.batch())
        staged = device.transfer(trial.batch())
        device.propagate(waiting)
        device.propagate(staged)
    except (DeviceOutOfMemory, DeviceFault):
        # Closed now: a limit may be the process's.
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
