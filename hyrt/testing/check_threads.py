"""Checks of calls that overlap: several mini-batches in flight, two threads, two devices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hyrt.device import Device, StepResult
from hyrt.errors import DeviceUnavailable
from hyrt.flow.channel import Channel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.trial import (
    Trial,
    demand,
    kept,
    load,
    on_a_thread,
    pieces,
    same_bits,
    step,
    together,
    trainable,
)
from hyrt.testing.verdicts import Skipped

_DEPTH = 3


def _batches(trial: Trial) -> list[MiniBatch]:
    parts = pieces(cases.some_targets(120), [40, 1, 33, 7, 0, 20])
    return [trial.batch(part) for part in parts]


def _one_by_one(trial: Trial, device: Device) -> list[StepResult]:
    return [kept(step(device, batch)) for batch in _batches(trial)]


def several_mini_batches_are_in_flight(trial: Trial) -> None:
    """All are transferred before the first is propagated."""
    device = trial.loaded()
    wanted = _one_by_one(trial, device)
    staged = [device.transfer(batch) for batch in _batches(trial)]
    for number, (each, exact) in enumerate(zip(staged, wanted, strict=True)):
        same_bits(device.propagate(each), exact, f"of mini-batch {number} when all were staged first")


def transfer_and_propagate_run_on_two_threads(trial: Trial) -> None:
    """At the same time, some mini-batches apart, as in the pipeline."""
    device = trial.loaded()
    wanted = _one_by_one(trial, device)
    channel: Channel[Any] = Channel("hyrt.testing", _DEPTH)
    rounds = range(4)

    def transfer() -> None:
        for _ in rounds:
            for batch in _batches(trial):
                channel.put(device.transfer(batch))

    def propagate() -> None:
        for _ in rounds:
            for number, exact in enumerate(wanted):
                same_bits(device.propagate(channel.get()), exact, f"of mini-batch {number} on two threads")

    def failing(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            # So that the other does not wait for ever.
            channel.fail(error)
            raise

    together(partial(failing, transfer), partial(failing, propagate))


def each_call_may_come_from_another_thread(trial: Trial) -> None:
    """Nothing is bound to the thread that opened the device; a redone step runs on the propagation thread."""
    model = trial.model()
    wanted = _one_by_one(trial, trial.loaded(model))
    device = on_a_thread(trial.open)
    on_a_thread(lambda: load(device, model))
    on_a_thread(lambda: device.update(trainable(model)))
    for number, (batch, exact) in enumerate(zip(_batches(trial), wanted, strict=True)):
        staged = on_a_thread(partial(device.transfer, batch))
        result = on_a_thread(partial(device.propagate, staged))
        same_bits(result, exact, f"of mini-batch {number} on threads of its own")
    on_a_thread(device.close)


def two_open_devices_share_nothing(trial: Trial) -> None:
    """One has other weights than the other, and may be closed before it."""
    first = trial.loaded()
    wanted = kept(step(first, trial.batch()))
    try:
        second = trial.open()
    except DeviceUnavailable as error:
        raise Skipped(f"it can be opened only once: {error}") from error
    model = cases.shaken(trial.model(), seed=4)
    load(second, model)
    staged = first.transfer(trial.batch())
    others = kept(step(second, trial.batch()))
    same_bits(first.propagate(staged), wanted, "beside another open device")
    another = not trial.computes or others.loss_sum != wanted.loss_sum
    demand(another, "other weights on the second device to give another loss", "it is the same")
    second.close()
    same_bits(step(first, trial.batch()), wanted, "after another device was closed")


def the_process_keeps_its_settings(trial: Trial) -> None:
    """Loading and training leave torch's defaults as they were: the user's modules depend on them."""
    before = _settings()
    device = trial.loaded()
    step(device, trial.batch())
    device.close()
    wanted = f"torch's default dtype, gradient mode and determinism to stay {before}"
    demand(before == _settings(), wanted, f"they are {_settings()}")


def _settings() -> tuple[object, ...]:
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
