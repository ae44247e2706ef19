"""Checks of a device's description, methods, results and use by several threads."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import numpy as np
import torch
from hyrt_perfmodel.policy import STAGES

from hyrt.device import Device, DeviceInfo, InputForm, StepResult
from hyrt.device.capabilities import CAPABILITIES, GathersRows, StreamsGradients
from hyrt.errors import DeviceUnavailableError
from hyrt.runtime.stage_threads import Channel
from hyrt.sampling.minibatch import MiniBatch
from hyrt.testing import cases
from hyrt.testing.trial import (
    CheckFailedError,
    CheckSkippedError,
    Trial,
    check_same_bits,
    copy_result,
    load_model,
    require,
    run_concurrently,
    run_in_thread,
    run_step,
    skip_unless,
    split_targets,
    trainable_parameters,
)

_CALLS = ("probe", "open", "load", "transfer", "propagate", "update", "close")


def _demand(holds: bool, expected: str, actual: object) -> None:
    require(holds, expected, f"it is {actual!r}")


def info_describes_the_device(trial: Trial) -> None:
    """Check the types and ranges of the values in the device's `info`."""
    info = trial.open().info
    _demand(isinstance(info, DeviceInfo), "info to be a DeviceInfo", type(info))
    _check_info(info)


def _check_info(info: DeviceInfo) -> None:
    _demand(
        info.kind.replace("-", "_").isidentifier() and info.kind.islower(),
        "kind to be a lower-case word",
        info.kind,
    )
    _demand(bool(info.description), "description to be one line", info.description)
    known = get_args(InputForm)
    _demand("rows" in info.forms, "forms to contain rows", info.forms)
    _demand(
        set(info.forms) <= set(known) and len(set(info.forms)) == len(info.forms),
        f"forms to be some of {', '.join(known)}, each once",
        info.forms,
    )
    rates = info.rates
    if rates is not None:
        _demand(
            rates.source.startswith(("measured", "assumed")),
            "the source of its rates to begin with measured or assumed",
            rates.source,
        )


def every_protocol_method_is_implemented(trial: Trial) -> None:
    """Check that all methods of the protocol and of declared capabilities exist with the right parameters."""
    device = trial.open()
    calls = {name: getattr(Device, name) for name in _CALLS}
    for capability in CAPABILITIES:
        if isinstance(device, capability):
            calls |= {name: getattr(capability, name) for name in capability.__abstractmethods__}
    for name, declared in calls.items():
        if isinstance(declared, property):
            continue
        call = getattr(device, name, None)
        _demand(callable(call), f"a method {name}", call)
        assert call is not None
        parameters = [p for p in inspect.signature(declared).parameters if p not in ("self", "cls")]
        try:
            inspect.signature(call).bind(*parameters)
        except TypeError as error:
            raise CheckFailedError(f"expected {name}({', '.join(parameters)}); {error}") from error


def a_device_that_takes_ids_gathers_rows(trial: Trial) -> None:
    """Check that a device with the form `ids` declares GathersRows, without which no mini-batch has this
    form.
    """
    device = trial.open()
    gathers = isinstance(device, GathersRows)
    _demand(
        gathers or "ids" not in device.info.forms,
        "a device with the form ids to be a GathersRows",
        type(device),
    )


def probe_finds_devices_of_its_kind(trial: Trial) -> None:
    """Check that probing twice finds the same devices; without hardware, it must find none and not fail."""
    device = trial.open()
    devices = device.probe()
    _demand(isinstance(devices, list), "probe to return a list", type(devices))
    for info in devices:
        _demand(isinstance(info, DeviceInfo), "probe to find DeviceInfo", type(info))
        _check_info(info)
        _demand(info.kind == device.info.kind, f"devices of kind {device.info.kind}", info.kind)
    indexes = [info.index for info in devices]
    _demand(len(set(indexes)) == len(indexes), "a different index for each device", indexes)
    names = [info.name for info in device.probe()]
    _demand([info.name for info in devices] == names, "a second probe to find the same devices", names)


def a_device_without_computation_is_marked_simulated(trial: Trial) -> None:
    """Check that a device without computation is marked as simulated."""
    simulated = trial.computes or trial.open().info.simulated
    _demand(simulated, "info.simulated to be True for a device that computes nothing", False)


def gradients_have_form_and_order_of_the_parameters(trial: Trial) -> None:
    """Check that gradients are float32 host tensors, one per parameter, in the order of load."""
    model = trial.model()
    device = trial.open()
    parameters = load_model(device, model)
    batch = trial.batch()
    result = run_step(device, batch)
    gradients = list(result.gradients)
    shapes, expected = ([tuple(tensor.shape) for tensor in tensors] for tensors in (gradients, parameters))
    require(shapes == expected, f"gradients of shapes {expected}", f"their shapes are {shapes}")
    for number, gradient in enumerate(gradients):
        plain = gradient.dtype == torch.float32 and gradient.device.type == "cpu"
        tracked = ", and requires a gradient" if gradient.requires_grad else ""
        require(
            plain and not tracked,
            f"gradient {number} to be plain float32 on the host",
            f"it is {gradient.dtype} on {gradient.device}{tracked}",
        )
    counts = sorted(result.counts)
    require(counts == ["correct", "targets"], "the counts `correct` and `targets`", f"got {counts}")
    targets, counted = len(batch.targets), result.counts["targets"]
    require(counted == targets, f"a count of {targets} targets", f"it is {counted}")
    kinds = {"loss_sum": (float, result.loss_sum), **{name: (int, n) for name, n in result.counts.items()}}
    for field, (kind, value) in kinds.items():
        require(type(value) is kind, f"{field} to be a {kind.__name__}", f"it is {type(value).__name__}")


def the_normalizer_is_passed_on(trial: Trial) -> None:
    """Check that the normalizer is the mini-batch's normalizer, not the number of targets."""
    device = trial.open_loaded()
    batch = trial.batch()
    batch.normalizer = 2.5
    found = run_step(device, batch).normalizer
    require(found == 2.5, "the mini-batch's normalizer 2.5", f"it is {found}")


def no_targets_give_no_gradients(trial: Trial) -> None:
    """Check that an empty mini-batch has a valid result, before and after full mini-batches."""
    device = trial.open_loaded()
    before = copy_result(run_step(device, trial.batch()))
    empty = trial.batch(cases.sample_targets()[:0])
    empty.normalizer = 0.5
    result = run_step(device, empty)
    actual = (result.loss_sum, any(result.counts.values()), result.normalizer, len(result.gradients))
    require(
        actual == (0.0, False, 0.5, 0),
        "loss sum 0, counts of 0, the normalizer 0.5 and no gradients for an empty mini-batch",
        f"got loss sum {result.loss_sum:g}, counts {dict(result.counts)}, the normalizer "
        f"{result.normalizer:g} and {len(result.gradients)} gradients",
    )
    check_same_bits(run_step(device, trial.batch()), before, "after an empty mini-batch")


def equal_steps_give_equal_bits(trial: Trial) -> None:
    """Check that repeated steps are bit-equal on the same device and on a newly opened one."""
    model = trial.model()
    device = trial.open_loaded(model)
    first = copy_result(run_step(device, trial.batch()))
    for _ in range(3):
        run_step(device, trial.batch(cases.sample_targets(9)))
        check_same_bits(run_step(device, trial.batch()), first, "in a repeated step")
    check_same_bits(run_step(trial.open_loaded(model), trial.batch()), first, "on a newly opened device")


def a_result_stays_as_it_is(trial: Trial) -> None:
    """Check that later steps, updates and closing do not overwrite the gradients of an earlier result."""
    model = trial.model()
    device = trial.open_loaded(model)
    first = run_step(device, trial.batch())
    copied = copy_result(first)
    for count in (40, 7):
        run_step(device, trial.batch(cases.sample_targets(count)[::-1]))
    device.update([torch.zeros_like(parameter) for parameter in trainable_parameters(model)])
    run_step(device, trial.batch())
    device.close()
    check_same_bits(first, copied, "after later steps")


def host_buffers_are_not_written(trial: Trial) -> None:
    """Check that a step does not modify the mini-batch, and that nothing reads it after the step."""
    device = trial.open_loaded()
    reference: StepResult | None = None
    for _ in range(2):
        batch = trial.batch()
        arrays = cases.host_arrays(batch)
        before = {name: array.copy() for name, array in arrays.items()}
        result = run_step(device, batch)
        reference = reference or copy_result(result)
        for name, array in cases.host_arrays(batch).items():
            same = np.array_equal(array, before[name])
            require(same, f"the mini-batch's {name} unchanged", "it was written to")
        # Overwrite the arrays: the pipeline reuses pooled buffers after a step.
        for array in arrays.values():
            array[...] = 0
        check_same_bits(result, reference, "when mini-batch buffers are reused")
    assert reference is not None
    check_same_bits(run_step(device, trial.batch()), reference, "after mini-batch buffers were reused")


def streamed_gradients_equal_the_result(trial: Trial) -> None:
    """Check that each gradient is streamed at most once per step, and is not modified afterwards."""
    device = trial.open_loaded()
    skip_unless(isinstance(device, StreamsGradients), "it does not stream gradients")
    assert isinstance(device, StreamsGradients)
    streamed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def record(number: int, gradient: torch.Tensor) -> None:
        require(
            number not in streamed,
            "one gradient per parameter in a step",
            f"gradient {number} was streamed twice",
        )
        streamed[number] = gradient, gradient.clone()

    device.register_gradient_hook(record)
    for _ in range(2):
        streamed.clear()
        result = run_step(device, trial.batch())
        for number, (gradient, copied) in streamed.items():
            same = torch.equal(gradient, copied) and torch.equal(copied, result.gradients[number])
            require(same, f"streamed gradient {number} to equal the result", "it differs")


def times_are_plausible(trial: Trial) -> None:
    """Check that the times belong to known stages, and do not exceed the duration of the call."""
    device = trial.open_loaded()
    batch = trial.batch()
    run_step(device, batch)
    started = time.perf_counter()
    seconds = run_step(device, trial.batch()).seconds
    elapsed = time.perf_counter() - started
    for stage, value in seconds.items():
        require(stage in STAGES, f"times of {', '.join(STAGES)}", f"got one for {stage!r}")
        require(
            0 <= value <= elapsed + 0.01,
            f"a {stage} time from 0 to {elapsed:.4g} s, the duration of the step",
            f"it is {value:.4g} s",
        )


_DEPTH = 3


def _batches(trial: Trial) -> list[MiniBatch]:
    parts = split_targets(cases.sample_targets(120), [40, 1, 33, 7, 0, 20])
    return [trial.batch(part) for part in parts]


def _one_by_one(trial: Trial, device: Device) -> list[StepResult]:
    return [copy_result(run_step(device, batch)) for batch in _batches(trial)]


def several_mini_batches_are_in_flight(trial: Trial) -> None:
    """Check that all mini-batches can be transferred before the first one is propagated."""
    device = trial.open_loaded()
    references = _one_by_one(trial, device)
    staged = [device.transfer(batch) for batch in _batches(trial)]
    for number, (handle, reference) in enumerate(zip(staged, references, strict=True)):
        check_same_bits(
            device.propagate(handle), reference, f"of mini-batch {number} when all were staged first"
        )


def transfer_and_propagate_run_on_two_threads(trial: Trial) -> None:
    """Check concurrent transfer and propagation, with some mini-batches in between, as in the pipeline."""
    device = trial.open_loaded()
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
                check_same_bits(
                    device.propagate(channel.get()), reference, f"of mini-batch {number} on two threads"
                )

    def run_guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            # Fail the channel, otherwise the other thread would wait forever.
            channel.fail(error)
            raise

    run_concurrently(partial(run_guarded, transfer), partial(run_guarded, propagate))


def calls_may_use_different_threads(trial: Trial) -> None:
    """Check that no call needs the thread that has opened the device."""
    model = trial.model()
    references = _one_by_one(trial, trial.open_loaded(model))
    device = run_in_thread(trial.open)
    run_in_thread(lambda: load_model(device, model))
    run_in_thread(lambda: device.update(trainable_parameters(model)))
    for number, (batch, reference) in enumerate(zip(_batches(trial), references, strict=True)):
        staged = run_in_thread(partial(device.transfer, batch))
        result = run_in_thread(partial(device.propagate, staged))
        check_same_bits(result, reference, f"of mini-batch {number} on separate threads")
    run_in_thread(device.close)


def two_open_devices_share_nothing(trial: Trial) -> None:
    """Check that two devices have separate weights, and that one may be closed before the other."""
    first = trial.open_loaded()
    reference = copy_result(run_step(first, trial.batch()))
    try:
        second = trial.open()
    except DeviceUnavailableError as error:
        raise CheckSkippedError(f"it can be opened only once: {error}") from error
    model = cases.randomize_parameters(trial.model(), seed=4)
    load_model(second, model)
    staged = first.transfer(trial.batch())
    second_result = copy_result(run_step(second, trial.batch()))
    check_same_bits(first.propagate(staged), reference, "while another device is open")
    is_different = not trial.computes or second_result.loss_sum != reference.loss_sum
    require(is_different, "different weights on the second device to give a different loss", "it is the same")
    second.close()
    check_same_bits(run_step(first, trial.batch()), reference, "after another device was closed")


def the_process_keeps_its_settings(trial: Trial) -> None:
    """Check that torch's global settings, which affect modules of the user, do not change."""
    before = _settings()
    device = trial.open_loaded()
    run_step(device, trial.batch())
    device.close()
    expected = f"torch's default dtype, gradient mode and determinism to stay {before}"
    require(before == _settings(), expected, f"they are {_settings()}")


def _settings() -> tuple[object, ...]:
    return torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
