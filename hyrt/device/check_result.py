"""What a device hands back, before it enters the step: a wrong sum must not become a wrong model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from hyrt.device import StepResult
from hyrt.errors import DeviceFault
from hyrt.sampling.minibatch import MiniBatch

# Normalizers are sums of a mini-batch's weights, in whatever order a device adds them.
_CLOSE = 1e-4


def check_result(
    name: str, result: Any, batch: MiniBatch, parameters: Sequence[torch.Tensor], counts: Sequence[str]
) -> None:
    """Refuse a result that does not belong to the mini-batch or the model.

    Parameters
    ----------
    name
        The name of the device.
    result
        The result that `propagate` returned.
    batch
        The mini-batch that it was given.
    parameters
        The master weights, in the order of `load`.
    counts
        The names of what the objective counts, of which a mini-batch without targets may lack any.

    Raises
    ------
    DeviceFault
        Naming what is wrong with it.
    """
    if not isinstance(result, StepResult):
        raise DeviceFault(f"{name}: propagate returned {type(result).__name__}, not a StepResult")
    targets = batch.num_losses
    wrong = set(result.counts) ^ set(counts) if targets else set(result.counts) - set(counts)
    if wrong:
        found = ", ".join(result.counts) or "nothing"
        raise DeviceFault(f"{name}: propagate counted {found}, but the objective counts {', '.join(counts)}")
    counted = result.counts.get("targets", 0)
    if counted != targets:
        raise DeviceFault(f"{name}: propagate counted {counted:g} targets in a mini-batch of {targets}")
    if not math.isclose(result.normalizer, batch.normalizer, rel_tol=_CLOSE):
        raise DeviceFault(
            f"{name}: propagate returned the normalizer {result.normalizer:g}, but the mini-batch has "
            f"{batch.normalizer:g}"
        )
    if not targets:
        return
    if len(result.gradients) != len(parameters):
        raise DeviceFault(
            f"{name}: propagate returned {len(result.gradients)} gradients for {len(parameters)} parameters"
        )
    for number, (gradient, parameter) in enumerate(zip(result.gradients, parameters, strict=True)):
        if not isinstance(gradient, torch.Tensor) or gradient.shape != parameter.shape:
            is_tensor = isinstance(gradient, torch.Tensor)
            found = f"has shape {tuple(gradient.shape)}" if is_tensor else f"is {type(gradient).__name__}"
            raise DeviceFault(
                f"{name}: gradient {number} {found}, but its parameter has shape {tuple(parameter.shape)}"
            )
        if gradient.dtype != parameter.dtype or gradient.device.type != "cpu":
            raise DeviceFault(
                f"{name}: gradient {number} is {gradient.dtype} on {gradient.device}, not {parameter.dtype} "
                "on the host"
            )
