"""Checks of a device's results before they are added up, so that no wrong sum corrupts the model."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hyrt.checks import show
from hyrt.device import StepResult
from hyrt.errors import DeviceFaultError
from hyrt.sampling.minibatch import MiniBatch

# Relative tolerance for normalizers, because devices add up a mini-batch's weights in different orders.
_CLOSE = 1e-4
_REMEDY = "update or fix its backend (hyrt.testing.check_device tests backends)"


def check_result(
    name: str, result: Any, batch: MiniBatch, parameters: Sequence[torch.Tensor], counts: Sequence[str]
) -> None:
    """Raise DeviceFaultError if a result does not match the mini-batch or the model.

    `parameters` are the master weights, in the order of `load`. `counts` are the names of the objective's
    counts, which a result without targets may omit.
    """
    if not isinstance(result, StepResult):
        raise DeviceFaultError(
            f"{name}: propagate returned {type(result).__name__}, not a StepResult: {_REMEDY}"
        )
    for field in ("loss_sum", "normalizer"):
        _check_number(name, field, getattr(result, field))
    for field, kind in (("counts", Mapping), ("gradients", Sequence), ("seconds", Mapping)):
        if not isinstance(value := getattr(result, field), kind):
            raise DeviceFaultError(
                f"{name}: propagate returned {show(value)} as {field}, not a {kind.__name__.lower()}: "
                f"{_REMEDY}"
            )
    for field in ("counts", "seconds"):
        for key, value in getattr(result, field).items():
            _check_number(name, f"{field}[{show(key)}]", value)
    targets = batch.num_losses
    wrong = set(result.counts) ^ set(counts) if targets else set(result.counts) - set(counts)
    if wrong:
        found = ", ".join(result.counts) or "nothing"
        raise DeviceFaultError(
            f"{name}: propagate counted {found}, but the objective counts {', '.join(counts)}: {_REMEDY}"
        )
    counted = result.counts.get("targets", 0)
    if counted != targets:
        raise DeviceFaultError(
            f"{name}: propagate counted {counted:g} targets in a mini-batch of {targets}: {_REMEDY}"
        )
    if not math.isclose(result.normalizer, batch.normalizer, rel_tol=_CLOSE):
        raise DeviceFaultError(
            f"{name}: propagate returned the normalizer {result.normalizer:g}, but the mini-batch has "
            f"{batch.normalizer:g}: {_REMEDY}"
        )
    if not targets:
        return
    if len(result.gradients) != len(parameters):
        raise DeviceFaultError(
            f"{name}: propagate returned {len(result.gradients)} gradients for {len(parameters)} "
            f"parameters: {_REMEDY}"
        )
    for number, (gradient, parameter) in enumerate(zip(result.gradients, parameters, strict=True)):
        if not isinstance(gradient, torch.Tensor) or gradient.shape != parameter.shape:
            is_tensor = isinstance(gradient, torch.Tensor)
            found = f"has shape {tuple(gradient.shape)}" if is_tensor else f"is {type(gradient).__name__}"
            raise DeviceFaultError(
                f"{name}: gradient {number} {found}, but its parameter has shape {tuple(parameter.shape)}: "
                f"{_REMEDY}"
            )
        if gradient.dtype != parameter.dtype or gradient.device.type != "cpu" or gradient.is_sparse:
            raise DeviceFaultError(
                f"{name}: gradient {number} is {gradient.dtype} on {gradient.device}, not {parameter.dtype} "
                f"on the host: {_REMEDY}"
            )


def _check_number(name: str, field: str, value: Any) -> None:
    """Raise DeviceFaultError if a value is no number. Infinity and NaN are reported later, as divergence."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise DeviceFaultError(
            f"{name}: propagate returned {show(value)} as {field}, not a number: {_REMEDY}"
        )
