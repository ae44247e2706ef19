"""Classification objective: one class per target, with softmax cross entropy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import check_int, check_number, check_range
from hyrt.errors import ConfigError
from hyrt.objective.metrics import (
    balanced_class_weights,
    check_labels,
    check_scores,
    check_weights,
    classification_metrics,
    scale_class_weights,
)
from hyrt.objective.objective import Objective


class Classification(Objective):
    """Objective with softmax cross entropy. The class with the highest score is the prediction.

    `class_weights`: with `balanced`, the weight of a class is the inverse of its share of the training
    targets. A list has one weight per class, and is scaled to mean 1 over the training targets. The loss of a
    target is multiplied by the weight of its class.

    `label_smoothing`: fraction e of each label that is distributed over all C classes. The loss is (1 - e)
    times the cross entropy of the label plus e / C times the cross entropy of every class (Szegedy et al.,
    CVPR 2016).

    Raises ValueError if class weights are invalid, or if the label smoothing is not in [0, 1).
    """

    name = "classification"
    counts = ("correct", "targets")
    metrics = ("accuracy", "macro_f1", "roc_auc", "loss")
    lowest_is_best = ("loss",)

    def __init__(
        self,
        *,
        class_weights: Literal["none", "balanced"] | Sequence[float] = "none",
        label_smoothing: float = 0.0,
    ) -> None:
        check_weights(class_weights)
        if not 0 <= check_number("label_smoothing", label_smoothing) < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}: use at least 0 and less than 1")
        self._class_weights = class_weights
        self._label_smoothing = label_smoothing

    @property
    def is_plain_classification(self) -> bool:
        # A subclass may have overridden the loss.
        return type(self) is Classification and not self._label_smoothing

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        check_scores(scores, labels, "classes", weights)
        losses = partial(
            torch.nn.functional.cross_entropy, scores, labels, label_smoothing=self._label_smoothing
        )
        return losses(reduction="sum") if weights is None else (losses(reduction="none") * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        check_scores(scores, labels, "classes")
        return {"correct": (scores.argmax(1) == labels).sum(), "targets": len(labels)}

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        targets = counts.get("targets", 0)
        return {"accuracy": counts.get("correct", 0) / targets if targets else 0.0}

    def evaluate(self, scores: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        return classification_metrics(scores, labels)

    def num_scores(self, num_classes: int) -> int:
        return num_classes

    def metric_problem(self, metric: str, labels: NDArray[Any], num_classes: int) -> str:
        if metric != "roc_auc":
            return ""
        if num_classes != 2:
            return f"needs two classes, but there are {num_classes}: use macro_f1"
        classes = np.unique(labels)
        if len(classes) == 1:
            return (
                f"needs both classes among the validation vertices, but all have class {classes[0]}: "
                "use accuracy, or choose another data.split"
            )
        return ""

    def fit_to_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        check_labels(labels, "classes")
        check_int("num_outputs", num_outputs, 1)
        return self

    def class_weights(self, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32] | None:
        check_labels(labels, "classes")
        check_range("labels", labels, check_int("num_classes", num_classes), "classes")
        if isinstance(self._class_weights, str) and self._class_weights == "none":
            return None
        if self._class_weights == "balanced":
            return balanced_class_weights(labels, num_classes)
        weights = np.asarray(self._class_weights, np.float64)
        if len(weights) != num_classes:
            raise ConfigError(
                f"train.class_weights has {len(weights)} numbers for {num_classes} classes: set one per class"
            )
        return scale_class_weights(weights, labels)
