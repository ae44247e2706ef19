"""Checks of the format of a step's results, and of side effects of a step."""

from __future__ import annotations

import time

import numpy as np
import torch
from hyrt_perfmodel.assignment import STAGES

from hyrt.device import StepResult
from hyrt.device.capabilities import TellsGradients
from hyrt.testing import cases
from hyrt.testing.trial import Trial, demand, kept, load, same_bits, skip_unless, step, trainable


def gradients_have_form_and_order_of_the_parameters(trial: Trial) -> None:
    """Check that gradients are float32 host tensors, one per parameter, in the order of load."""
    model = trial.model()
    device = trial.open()
    parameters = load(device, model)
    batch = trial.batch()
    result = step(device, batch)
    gradients = list(result.gradients)
    shapes, expected = ([tuple(tensor.shape) for tensor in tensors] for tensors in (gradients, parameters))
    demand(shapes == expected, f"gradients of shapes {expected}", f"they have {shapes}")
    for number, gradient in enumerate(gradients):
        plain = gradient.dtype == torch.float32 and gradient.device.type == "cpu"
        tracked = ", and requires a gradient" if gradient.requires_grad else ""
        demand(
            plain and not tracked,
            f"gradient {number} to be plain float32 on the host",
            f"it is {gradient.dtype} on {gradient.device}{tracked}",
        )
    counts = sorted(result.counts)
    demand(counts == ["correct", "targets"], "the counts `correct` and `targets`", f"it has {counts}")
    targets, counted = len(batch.targets), result.counts["targets"]
    demand(counted == targets, f"{targets} targets", f"it says {counted}")
    kinds = {"loss_sum": (float, result.loss_sum), **{name: (int, n) for name, n in result.counts.items()}}
    for field, (kind, value) in kinds.items():
        demand(type(value) is kind, f"{field} to be a {kind.__name__}", f"it is {type(value).__name__}")


def the_normalizer_is_passed_on(trial: Trial) -> None:
    """Check that the normalizer is the mini-batch's, not the number of targets."""
    device = trial.loaded()
    batch = trial.batch()
    batch.normalizer = 2.5
    found = step(device, batch).normalizer
    demand(found == 2.5, "the mini-batch's normalizer 2.5", f"it is {found}")


def no_targets_give_no_gradients(trial: Trial) -> None:
    """Check that an empty mini-batch has a valid result, before and after full mini-batches."""
    device = trial.loaded()
    before = kept(step(device, trial.batch()))
    empty = trial.batch(cases.some_targets()[:0])
    empty.normalizer = 0.5
    result = step(device, empty)
    actual = (result.loss_sum, any(result.counts.values()), result.normalizer, len(result.gradients))
    demand(
        actual == (0.0, False, 0.5, 0),
        "loss sum 0, counts of 0, the normalizer 0.5 and no gradients for an empty mini-batch",
        f"got loss sum {result.loss_sum:g}, counts {dict(result.counts)}, the normalizer "
        f"{result.normalizer:g} and {len(result.gradients)} gradients",
    )
    same_bits(step(device, trial.batch()), before, "after an empty mini-batch")


def equal_steps_give_equal_bits(trial: Trial) -> None:
    """Check that repeated steps are bit-equal, on the same device and on a newly opened one."""
    model = trial.model()
    device = trial.loaded(model)
    first = kept(step(device, trial.batch()))
    for _ in range(3):
        step(device, trial.batch(cases.some_targets(9)))
        same_bits(step(device, trial.batch()), first, "the next time")
    same_bits(step(trial.loaded(model), trial.batch()), first, "on a newly opened device")


def a_result_stays_as_it_is(trial: Trial) -> None:
    """Check that later steps, updates and closing do not overwrite the gradients of an earlier result."""
    model = trial.model()
    device = trial.loaded(model)
    first = step(device, trial.batch())
    copied = kept(first)
    for count in (40, 7):
        step(device, trial.batch(cases.some_targets(count)[::-1]))
    device.update([torch.zeros_like(parameter) for parameter in trainable(model)])
    step(device, trial.batch())
    device.close()
    same_bits(first, copied, "after later steps")


def host_buffers_are_not_written(trial: Trial) -> None:
    """Check that the mini-batch is not modified, and not read any more after the step."""
    device = trial.loaded()
    reference: StepResult | None = None
    for _ in range(2):
        batch = trial.batch()
        arrays = cases.host_arrays(batch)
        before = {name: array.copy() for name, array in arrays.items()}
        result = step(device, batch)
        reference = reference or kept(result)
        for name, array in cases.host_arrays(batch).items():
            same = np.array_equal(array, before[name])
            demand(same, f"the mini-batch's {name} unchanged", "it was written to")
        # Pooled buffers are reused after a step.
        for array in arrays.values():
            array[...] = 0
        same_bits(result, reference, "when the buffers of mini-batches are used again")
    assert reference is not None
    same_bits(step(device, trial.batch()), reference, "when the buffers of mini-batches were used again")


def streamed_gradients_equal_the_result(trial: Trial) -> None:
    """Check that each gradient is streamed at most once per step, and not modified afterwards."""
    device = trial.loaded()
    skip_unless(isinstance(device, TellsGradients), "it does not stream gradients")
    assert isinstance(device, TellsGradients)
    streamed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def record(number: int, gradient: torch.Tensor) -> None:
        demand(number not in streamed, "one gradient of a parameter in a step", f"number {number} came again")
        streamed[number] = gradient, gradient.clone()

    device.tell_gradients(record)
    for _ in range(2):
        streamed.clear()
        result = step(device, trial.batch())
        for number, (gradient, copied) in streamed.items():
            same = torch.equal(gradient, copied) and torch.equal(copied, result.gradients[number])
            demand(same, f"gradient {number} of the result", "another one was told")


def times_are_plausible(trial: Trial) -> None:
    """Check that times belong to known stages and do not exceed the duration of the call."""
    device = trial.loaded()
    batch = trial.batch()
    step(device, batch)
    started = time.perf_counter()
    seconds = step(device, trial.batch()).seconds
    elapsed = time.perf_counter() - started
    for stage, value in seconds.items():
        demand(stage in STAGES, f"times of {', '.join(STAGES)}", f"it gives one for {stage!r}")
        demand(
            0 <= value <= elapsed + 0.01,
            f"0 to {elapsed:.4g} seconds of {stage}, the time that the step took",
            f"it says {value:.4g}",
        )
