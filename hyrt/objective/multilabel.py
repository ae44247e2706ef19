"""Multi-label objective: K independent labels per target, with binary cross entropy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import check_int
from hyrt.errors import ConfigError
from hyrt.objective.metrics import (
    check_labels,
    check_scores,
    check_weights,
    mean_known_entries,
    micro_f1,
    multilabel_metrics,
)
from hyrt.objective.objective import Objective


class MultiLabel(Objective):
    """Objective with binary cross entropy of each label. A score above 0 is a positive prediction.

    The loss of a target is the sum over its known labels, divided by the mean number of known labels per
    training target. Its average over all targets is therefore the mean over all known labels.

    `class_weights` multiply the loss of labels that are 1. With `balanced`, the weight is the number of
    negative training targets divided by the number of positive ones. A list has one weight per label. Raises
    ValueError if the weights are invalid.
    """

    name = "multilabel"
    labels = "flags"
    counts = ("hits", "wrong", "missed", "targets")
    metrics = ("micro_f1", "macro_f1", "mean_average_precision", "roc_auc", "loss")
    lowest_is_best = ("loss",)

    def __init__(self, *, class_weights: Literal["none", "balanced"] | Sequence[float] = "none") -> None:
        check_weights(class_weights)
        self._class_weights = class_weights
        self._positive: torch.Tensor | None = None
        self._known: float | None = None

    def fit_to_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        check_labels(labels, "flags")
        check_int("num_outputs", num_outputs, 1)
        fitted = copy.copy(self)
        fitted._known = mean_known_entries(labels >= 0)
        if self._class_weights == "none":
            return fitted
        if self._class_weights == "balanced":
            num_positive = np.count_nonzero(labels == 1, axis=0)
            # A label without positive training targets would have an infinite and useless weight.
            weights = np.where(
                num_positive > 0, np.count_nonzero(labels == 0, axis=0) / np.maximum(num_positive, 1), 1.0
            )
        else:
            weights = np.asarray(self._class_weights, np.float64)
            if len(weights) != num_outputs:
                raise ConfigError(
                    f"train.class_weights has {len(weights)} numbers for {num_outputs} labels: set one "
                    "per label"
                )
        fitted._positive = torch.from_numpy(weights.astype(np.float32))
        return fitted

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        check_scores(scores, labels, "flags", weights)
        known = labels >= 0
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            scores,
            labels.clamp(min=0).to(scores.dtype),
            reduction="none",
            pos_weight=None if self._positive is None else self._positive.to(scores.device),
        )
        target_losses = torch.where(known, losses, 0).sum(1) / (self._known or labels.shape[1])
        return target_losses.sum() if weights is None else (target_losses * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        check_scores(scores, labels, "flags")
        predicted = scores > 0
        return {
            "hits": (predicted & (labels == 1)).sum(),
            "wrong": (predicted & (labels == 0)).sum(),
            "missed": (~predicted & (labels == 1)).sum(),
            "targets": len(labels),
        }

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        return {"micro_f1": micro_f1(counts)}

    def evaluate(self, scores: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        return multilabel_metrics(scores, labels)

    def num_scores(self, num_classes: int) -> int:
        return num_classes

    def metric_problem(self, metric: str, labels: NDArray[Any], num_classes: int) -> str:
        if not len(labels):
            return ""
        has_positive, has_negative = (labels == 1).any(axis=0), (labels == 0).any(axis=0)
        if metric in ("mean_average_precision", "macro_f1") and not has_positive.any():
            return "needs a label that some validation vertex has: use loss, or choose another data.split"
        if metric == "roc_auc" and not (has_positive & has_negative).any():
            return (
                "needs a label that some validation vertices have and others do not: use micro_f1, or "
                "choose another data.split"
            )
        return ""
