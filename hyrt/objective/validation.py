"""Checks of scores, labels and the return values of third-party objectives."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.errors import ArgumentError, ConfigError
from hyrt.graph.labels import LabelKind
from hyrt.objective.objective import OBJECTIVES, Objective

_LABELS: dict[str, tuple[int, str, str]] = {
    "classes": (1, "iu", "the class of each target as whole numbers [n]"),
    "flags": (2, "iubf", "0, 1 or -1 for each label of a target as numbers [n, K]"),
    "numbers": (2, "f", "the numbers of each target as floats [n, K]"),
}


def _kind(value: Any) -> str:
    """Return the letter of numpy's dtype kind for a tensor or array; "" for any other value."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return "f"
        if value.dtype in (torch.bool, torch.uint8):
            return "b" if value.dtype == torch.bool else "u"
        return "i" if value.dtype in (torch.int8, torch.int16, torch.int32, torch.int64) else "?"
    return value.dtype.kind if isinstance(value, np.ndarray) else ""


def check_labels(labels: Any, kind: LabelKind) -> None:
    """Raise ArgumentError if the labels are not an array or tensor of their kind."""
    ndim, letters, description = _LABELS[kind]
    if not _kind(labels) or _kind(labels) not in letters or labels.ndim != ndim:
        raise ArgumentError(f"labels is {show(labels)}: give {description}")
    if kind == "classes" and isinstance(labels, torch.Tensor) and labels.dtype != torch.int64:
        raise ArgumentError(f"labels is {show(labels)}: give classes as torch.int64")
    is_on_device = isinstance(labels, torch.Tensor) and labels.device.type != "cpu"
    if (
        kind == "flags"
        and not is_on_device
        and math.prod(labels.shape)
        and not -1 <= labels.min() <= labels.max() <= 1
    ):
        raise ArgumentError("labels are not all 0, 1 or -1 (not known): give one of these for each label")


def check_scores(scores: Any, labels: Any, kind: LabelKind, weights: Any = None) -> None:
    """Raise ArgumentError unless scores [n, C], labels of kind `kind` and weights ([n] or None) fit together.

    Scores and labels must both be tensors or both be arrays.
    """
    check_labels(labels, kind)
    if _kind(scores) != "f" or isinstance(scores, torch.Tensor) != isinstance(labels, torch.Tensor):
        container = "tensor" if isinstance(labels, torch.Tensor) else "numpy array"
        raise ArgumentError(f"scores is {show(scores)}: give a {container} of floats [n, C], like the labels")
    if scores.ndim != 2 or len(scores) != len(labels):
        raise ArgumentError(
            f"scores is {show(scores)} for {len(labels):,} labels: give [n, C], a row for each"
        )
    if kind != "classes":
        if scores.shape != labels.shape:
            noun = "labels" if kind == "flags" else "numbers"
            raise ArgumentError(
                f"the model returns {scores.shape[1]} scores for {labels.shape[1]} {noun} of a target: "
                f"return one score for each {noun[:-1]}"
            )
    # On other devices, reading the values would wait for all queued work.
    elif len(labels) and (not isinstance(labels, torch.Tensor) or labels.device.type == "cpu"):
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= scores.shape[1]:
            raise ArgumentError(
                f"labels are from {low} to {high} for scores of {scores.shape[1]} classes: give labels from "
                f"0 to {scores.shape[1] - 1}, or return a score for each class"
            )
    if weights is not None and (_kind(weights) != "f" or tuple(weights.shape) != (len(labels),)):
        raise ArgumentError(
            f"weights is {show(weights)} for {len(labels):,} targets: give one float each, or None"
        )


def objective_error(name: str, problem: str) -> ConfigError:
    """Return a ConfigError that names the objective and the distribution that declares it."""
    return ConfigError(f"{OBJECTIVES.describe(name)}: {problem}")


def check_names(objective: Objective) -> None:
    """Raise ConfigError unless `counts`, `metrics` and `lowest_is_best` are tuples or lists of names."""
    for attribute in ("counts", "metrics", "lowest_is_best"):
        names = getattr(objective, attribute)
        if not isinstance(names, tuple | list) or not all(isinstance(name, str) for name in names):
            raise objective_error(
                objective.name, f"{attribute} is {show(names)}: set it to a tuple of names, such as ('loss',)"
            )


def check_loss(objective: Objective, loss: Any) -> torch.Tensor:
    """Return the loss sum if it is a differentiable scalar; otherwise raise ConfigError."""
    remedy = "return one number of float32 as a tensor, computed from the scores"
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or not loss.is_floating_point():
        raise objective_error(objective.name, f"loss_sum returns {show(loss)}, not a scalar tensor: {remedy}")
    if not loss.requires_grad:
        raise objective_error(
            objective.name, f"loss_sum returns a number that does not depend on the scores: {remedy}"
        )
    return loss.reshape(())


def check_numbers(name: str, method: str, values: Any) -> dict[str, float]:
    """Return the values that a method returned, as Python numbers by name; raise ConfigError for other
    values.
    """
    if not isinstance(values, Mapping):
        raise objective_error(name, f"{method} returns {show(values)}: return a dict of numbers by name")
    numbers_by_name: dict[str, float] = {}
    for key, value in values.items():
        is_scalar = isinstance(value, torch.Tensor | np.ndarray) and math.prod(value.shape) == 1
        number = value.item() if is_scalar else value
        if not isinstance(key, str):
            raise objective_error(
                name, f"{method} returns {show(key)} as a name: return a dict of numbers by name"
            )
        if not isinstance(number, numbers.Real):
            raise objective_error(name, f"{method} returns {show(value)} as {key}: return a number")
        numbers_by_name[key] = number  # type: ignore[assignment]
    return numbers_by_name


def check_class_weights(name: str, weights: Any, num_classes: int) -> NDArray[np.float32] | None:
    """Return the class weights as contiguous float32, or None; raise ConfigError if they are invalid."""
    if weights is None:
        return None
    is_array = isinstance(weights, np.ndarray) and weights.dtype.kind in "iuf"
    if not is_array or weights.shape != (num_classes,) or not (np.isfinite(weights) & (weights >= 0)).all():
        shown = show(weights)
        if is_array and weights.shape == (num_classes,):
            shown = "numbers that are negative or not finite"
        raise objective_error(
            name,
            f"class_weights returns {shown}: return None, or a numpy array of {num_classes:,} finite numbers "
            "of at least 0",
        )
    return np.ascontiguousarray(weights, np.float32)
