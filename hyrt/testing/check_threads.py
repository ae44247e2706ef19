"""Checks of concurrent use: several mini-batches in flight, two threads, two devices."""

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
    """Check that all mini-batches can be transferred before the first is propagated."""
    device = trial.loaded()
    references = _one_by_one(trial, device)
    staged = [device.transfer(batch) for batch in _batches(trial)]
    for number, (handle, reference) in enumerate(zip(staged, references, strict=True)):
        same_bits(device.propagate(handle), reference, f"of mini-batch {number} when all were staged first")


def transfer_and_propagate_run_on_two_threads(trial: Trial) -> None:
    """Check concurrent transfer and propagation, some mini-batches apart, as in the pipeline."""
    device = trial.loaded()
    references = _one_by_one(trial, device)
    channel: Channel[Any] = Channel("hyrt.testing", _DEPTH)
    rounds = range(4)

    def transfer() -> None:
        for _ in rounds:
            for batch in _batches(trial):
                channel.put(device.transfer(batch))

    def propagate() -> None:
        for _ in rounds:
            for number, reference in enumerate(references):
                same_bits(
                    device.propagate(channel.get()), reference, f"of mini-batch {number} on two threads"
                )

    def run_guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            # Otherwise the other thread would wait forever.
            channel.fail(error)
            raise

    together(partial(run_guarded, transfer), partial(run_guarded, propagate))


def calls_may_use_different_threads(trial: Trial) -> None:
    """Check that no call is bound to the thread that opened the device; a repeated step runs on another
    thread.
    """
    model = trial.model()
    references = _one_by_one(trial, trial.loaded(model))
    device = on_a_thread(trial.open)
    on_a_thread(lambda: load(device, model))
    on_a_thread(lambda: device.update(trainable(model)))
    for number, (batch, reference) in enumerate(zip(_batches(trial), references, strict=True)):
        staged = on_a_thread(partial(device.transfer, batch))
        result = on_a_thread(partial(device.propagate, staged))
        same_bits(result, reference, f"of mini-batch {number} on threads of its own")
    on_a_thread(device.close)


def two_open_devices_share_nothing(trial: Trial) -> None:
    """Check that two devices have separate weights, and that one may be closed before the other."""
    first = trial.loaded()
    reference = kept(step(first, trial.batch()))
    try:
        second = trial.open()
    except DeviceUnavailable as error:
        raise Skipped(f"it can be opened only once: {error}") from error
    model = cases.shaken(trial.model(), seed=4)
    load(second, model)
    staged = first.transfer(trial.batch())
    second_result = kept(step(second, trial.batch()))
    same_bits(first.propagate(staged), reference, "beside another open device")
    is_different = not trial.computes or second_result.loss_sum != reference.loss_sum
    demand(is_different, "other weights on the second device to give another loss", "it is the same")
    second.close()
    same_bits(step(first, trial.batch()), reference, "after another device was closed")


def the_process_keeps_its_settings(trial: Trial) -> None:
    """Check that torch's global settings are unchanged, because user modules depend on them."""
    before = _settings()
    device = trial.loaded()
    step(device, trial.batch())
    device.close()
    expected = f"torch's default dtype, gradient mode and determinism to stay {before}"
    demand(before == _settings(), expected, f"they are {_settings()}")


def _settings() -> tuple[object, ...]:
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
