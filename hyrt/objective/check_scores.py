"""Checks of scores and labels: tensors in training, arrays in evaluations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hyrt.checks import show
from hyrt.errors import ArgumentError
from hyrt.graph.labels.label_kind import LabelKind

_LABELS: dict[str, tuple[int, str, str]] = {
    "classes": (1, "iu", "the class of each target as whole numbers [n]"),
    "flags": (2, "iubf", "0, 1 or -1 for each label of a target as numbers [n, K]"),
    "numbers": (2, "f", "the numbers of each target as floats [n, K]"),
}


def _kind(value: Any) -> str:
    """Return numpy's kind letter for a tensor or array; "" for any other value."""
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
    """Check that scores, labels and weights of targets fit together.

    Parameters
    ----------
    scores
        [n, C] floats, as a tensor or an array.
    labels
        Labels of kind `kind`; a tensor if the scores are one.
    kind
        Kind of the labels.
    weights
        [n] floats, or None.

    Raises
    ------
    ArgumentError
        If one of them is invalid.
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
