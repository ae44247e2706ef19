"""Checks of the return values of third-party objectives; errors name the objective and the method."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ConfigError
from hyrt.objective.objective import Objective
from hyrt.objective.registry import OBJECTIVES


def refusal(name: str, problem: str) -> ConfigError:
    """Return an error about an objective, with the distribution that declares it."""
    return ConfigError(f"{OBJECTIVES.named(name)}: {problem}")


def check_names(objective: Objective) -> None:
    """Check that `counts`, `metrics` and `lowest_is_best` are tuples or lists of names.

    Raises
    ------
    ConfigError
        With the objective and the attribute.
    """
    for attribute in ("counts", "metrics", "lowest_is_best"):
        names = getattr(objective, attribute)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise refusal(
                objective.name, f"{attribute} is {show(names)}: set it to a tuple of names, such as ('loss',)"
            )


def check_loss(objective: Objective, loss: Any) -> torch.Tensor:
    """Return the loss sum as a differentiable scalar.

    Raises
    ------
    ConfigError
        With the objective and the returned value.
    """
    remedy = "return one number of float32 as a tensor, computed from the scores"
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise refusal(objective.name, f"loss_sum returns {show(loss)}, not a scalar tensor: {remedy}")
    if not loss.requires_grad:
        raise refusal(
            objective.name, f"loss_sum returns a number that does not depend on the scores: {remedy}"
        )
    return loss.reshape(())


def check_numbers(name: str, method: str, values: Any) -> dict[str, float]:
    """Return the values as Python numbers by name.

    Raises
    ------
    ConfigError
        With the objective, the method and the returned value.
    """
    if not isinstance(values, Mapping):
        raise refusal(name, f"{method} returns {show(values)}: return a dict of numbers by name")
    numbers_by_name: dict[str, float] = {}
    for key, value in values.items():
        is_scalar = isinstance(value, torch.Tensor | np.ndarray) and math.prod(value.shape) == 1
        number = value.item() if is_scalar else value
        if not isinstance(key, str):
            raise refusal(name, f"{method} returns {show(key)} as a name: return a dict of numbers by name")
        if not isinstance(number, numbers.Real):
            raise refusal(name, f"{method} returns {show(value)} as {key}: return a number")
        numbers_by_name[key] = number  # type: ignore[assignment]
    return numbers_by_name


def check_class_weights(name: str, weights: Any, num_classes: int) -> NDArray[np.float32] | None:
    """Return the class weights as contiguous float32, or None.

    Raises
    ------
    ConfigError
        With the objective and the returned value.
    """
    if weights is None:
        return None
    is_array = isinstance(weights, np.ndarray) and weights.dtype.kind in "iuf"
    if not is_array or weights.shape != (num_classes,) or not (np.isfinite(weights) & (weights >= 0)).all():
        shown = show(weights)
        if is_array and weights.shape == (num_classes,):
            shown = "numbers that are negative or not finite"
        raise refusal(
            name,
            f"class_weights returns {shown}: return None, or a numpy array of {num_classes:,} finite numbers "
            "of at least 0",
        )
    return np.ascontiguousarray(weights, np.float32)
