"""Classification: one class of several for each target, by cross entropy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.objective.metrics import balanced_class_weights, evaluate_metrics
from hyrt.objective.objective import Objective


class Classification(Objective):
    """Softmax cross entropy; the highest score is the prediction.

    Parameters
    ----------
    class_weights
        `balanced` weighs a class by the inverse of its share of the training targets.
    label_smoothing
        The part e of each label that is spread over all C classes: the loss is (1 - e) times the cross
        entropy of the label, and e / C times that of every class (Szegedy et al., CVPR 2016). A weight
        multiplies all of it.

    Raises
    ------
    ValueError
        For other class weights, or a label smoothing outside [0, 1).
    """

    name = "classification"
    counts = ("correct", "targets")
    metrics = ("accuracy", "macro_f1", "roc_auc", "loss")
    lowest_is_best = ("loss",)

    def __init__(
        self, *, class_weights: Literal["none", "balanced"] = "none", label_smoothing: float = 0.0
    ) -> None:
        if class_weights not in ("none", "balanced"):
            raise ValueError(f"class_weights is {class_weights!r}: give none or balanced")
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing is {label_smoothing}: give at least 0 and less than 1")
        self._balanced = class_weights == "balanced"
        self._label_smoothing = label_smoothing

    @property
    def is_plain_classification(self) -> bool:
        # A class derived from this one has a loss of its own.
        return type(self) is Classification and not self._label_smoothing

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        losses = partial(
            torch.nn.functional.cross_entropy, scores, labels, label_smoothing=self._label_smoothing
        )
        return losses(reduction="sum") if weights is None else (losses(reduction="none") * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        return {"correct": (scores.argmax(1) == labels).sum(), "targets": len(labels)}

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        targets = counts.get("targets", 0)
        return {"accuracy": counts.get("correct", 0) / targets if targets else 0.0}

    def evaluate(self, scores: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        return evaluate_metrics(scores, labels)

    def num_scores(self, num_classes: int) -> int:
        return num_classes

    def why_not(self, metric: str, labels: NDArray[Any], num_classes: int) -> str:
        if metric != "roc_auc":
            return ""
        if num_classes != 2:
            return f"needs two classes, but there are {num_classes}: use macro_f1"
        there = np.unique(labels)
        if len(there) == 1:
            return (
                f"needs both classes among the validation vertices, which are all of class {there[0]}: "
                "use accuracy, or another data.split"
            )
        return ""

    def class_weights(self, labels: NDArray[Any], num_classes: int) -> NDArray[np.float32] | None:
        return balanced_class_weights(labels, num_classes) if self._balanced else None
