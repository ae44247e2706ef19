"""Checks of the form of what a step returns, and of what it leaves alone."""

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
    """Host tensors of float32, one a parameter, in the order of load."""
    model = trial.model()
    device = trial.open()
    parameters = load(device, model)
    batch = trial.batch()
    result = step(device, batch)
    gradients = list(result.gradients)
    found, wanted = ([tuple(each.shape) for each in those] for those in (gradients, parameters))
    demand(found == wanted, f"gradients of shapes {wanted}", f"they have {found}")
    for number, gradient in enumerate(gradients):
        plain = gradient.dtype == torch.float32 and gradient.device.type == "cpu"
        own = ", and requires a gradient" if gradient.requires_grad else ""
        demand(
            plain and not own,
            f"gradient {number} to be plain float32 on the host",
            f"it is {gradient.dtype} on {gradient.device}{own}",
        )
    counts = sorted(result.counts)
    demand(counts == ["correct", "targets"], "the counts `correct` and `targets`", f"it has {counts}")
    targets, said = len(batch.targets), result.counts["targets"]
    demand(said == targets, f"{targets} targets", f"it says {said}")
    kinds = {"loss_sum": (float, result.loss_sum), **{name: (int, n) for name, n in result.counts.items()}}
    for what, (kind, value) in kinds.items():
        demand(type(value) is kind, f"{what} to be a {kind.__name__}", f"it is {type(value).__name__}")


def the_normalizer_is_passed_on(trial: Trial) -> None:
    """It is the mini-batch's, not the number of targets."""
    device = trial.loaded()
    batch = trial.batch()
    batch.normalizer = 2.5
    found = step(device, batch).normalizer
    demand(found == 2.5, "the mini-batch's normalizer 2.5", f"it is {found}")


def no_targets_give_no_gradients(trial: Trial) -> None:
    """An empty mini-batch has a result like any other, before and after full ones."""
    device = trial.loaded()
    before = kept(step(device, trial.batch()))
    empty = trial.batch(cases.some_targets()[:0])
    empty.normalizer = 0.5
    result = step(device, empty)
    found = (result.loss_sum, any(result.counts.values()), result.normalizer, len(result.gradients))
    demand(
        found == (0.0, False, 0.5, 0),
        "loss sum 0, counts of 0, the normalizer 0.5 and no gradients for an empty mini-batch",
        f"got loss sum {result.loss_sum:g}, counts {dict(result.counts)}, the normalizer "
        f"{result.normalizer:g} and {len(result.gradients)} gradients",
    )
    same_bits(step(device, trial.batch()), before, "after an empty mini-batch")


def equal_steps_give_equal_bits(trial: Trial) -> None:
    """Again on the same device, and on another one opened anew."""
    model = trial.model()
    device = trial.loaded(model)
    first = kept(step(device, trial.batch()))
    for _ in range(3):
        step(device, trial.batch(cases.some_targets(9)))
        same_bits(step(device, trial.batch()), first, "the next time")
    same_bits(step(trial.loaded(model), trial.batch()), first, "on a newly opened device")


def a_result_stays_as_it_is(trial: Trial) -> None:
    """Later steps, updates and closing do not write to the gradients of an earlier one."""
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
    """The mini-batch is as it was, and after the step nothing reads it any more."""
    device = trial.loaded()
    wanted: StepResult | None = None
    for _ in range(2):
        batch = trial.batch()
        arrays = cases.host_arrays(batch)
        before = {name: array.copy() for name, array in arrays.items()}
        result = step(device, batch)
        wanted = wanted or kept(result)
        for name, array in cases.host_arrays(batch).items():
            same = np.array_equal(array, before[name])
            demand(same, f"the mini-batch's {name} unchanged", "it was written to")
        # Pooled buffers are handed out again when a step is over.
        for array in arrays.values():
            array[...] = 0
        same_bits(result, wanted, "when the buffers of mini-batches are used again")
    assert wanted is not None
    same_bits(step(device, trial.batch()), wanted, "when the buffers of mini-batches were used again")


def told_gradients_are_those_of_the_result(trial: Trial) -> None:
    """Each at most once a step, and never written after it was told."""
    device = trial.loaded()
    skip_unless(isinstance(device, TellsGradients), "it tells of no single gradients, and says so")
    assert isinstance(device, TellsGradients)
    told: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def hear(number: int, gradient: torch.Tensor) -> None:
        demand(number not in told, "one gradient of a parameter in a step", f"number {number} came again")
        told[number] = gradient, gradient.clone()

    device.tell_gradients(hear)
    for _ in range(2):
        told.clear()
        result = step(device, trial.batch())
        for number, (gradient, then) in told.items():
            same = torch.equal(gradient, then) and torch.equal(then, result.gradients[number])
            demand(same, f"gradient {number} of the result", "another one was told")


def times_are_plausible(trial: Trial) -> None:
    """Seconds of known stages, not longer than the call took."""
    device = trial.loaded()
    batch = trial.batch()
    step(device, batch)
    started = time.perf_counter()
    seconds = step(device, trial.batch()).seconds
    took = time.perf_counter() - started
    for stage, value in seconds.items():
        demand(stage in STAGES, f"times of {', '.join(STAGES)}", f"it gives one for {stage!r}")
        demand(
            0 <= value <= took + 0.01,
            f"0 to {took:.4g} seconds of {stage}, the time that the step took",
            f"it says {value:.4g}",
        )
