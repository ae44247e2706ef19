"""Regression objective: K values per target, with squared or absolute error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import check_choice, check_int
from hyrt.objective.metrics import check_labels, check_scores, mean_known_entries, regression_metrics
from hyrt.objective.objective import Objective


class Regression(Objective):
    """Objective with mean squared (`loss="mse"`) or absolute error (`"mae"`). The scores are the predictions.

    The loss of a target is the sum over its known values, divided by the mean number of known values per
    training target. Its average over all targets is therefore the mean over all known values. Raises
    ValueError if `loss` is neither.
    """

    name = "regression"
    labels = "numbers"
    counts = ("squared", "absolute", "known", "targets")
    metrics = ("mse", "mae", "r2")
    lowest_is_best = ("mse", "mae")

    def __init__(self, *, loss: Literal["mse", "mae"] = "mse") -> None:
        self._loss = check_choice("loss", loss, ("mse", "mae"))
        self._known: float | None = None

    def fit_to_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        check_labels(labels, "numbers")
        check_int("num_outputs", num_outputs, 1)
        fitted = copy.copy(self)
        fitted._known = mean_known_entries(~np.isnan(labels))
        return fitted

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        check_scores(scores, labels, "numbers", weights)
        errors = _errors(scores, labels)
        losses = errors.square() if self._loss == "mse" else errors.abs()
        target_losses = losses.sum(1) / (self._known or labels.shape[1])
        return target_losses.sum() if weights is None else (target_losses * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        check_scores(scores, labels, "numbers")
        errors = _errors(scores, labels)
        # Some devices do not support float64.
        errors = errors.double() if errors.device.type == "cpu" else errors
        return {
            "squared": errors.square().sum(),
            "absolute": errors.abs().sum(),
            "known": (~labels.isnan()).sum(),
            "targets": len(labels),
        }

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        known = counts.get("known", 0)
        names = {"mse": "squared", "mae": "absolute"}
        return {name: counts.get(sums, 0) / known if known else 0.0 for name, sums in names.items()}

    def evaluate(self, scores: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        return regression_metrics(scores, labels)

    def num_scores(self, num_classes: int) -> int:
        return num_classes

    def metric_problem(self, metric: str, labels: NDArray[Any], num_classes: int) -> str:
        if metric == "r2" and len(labels) == 1:
            return (
                "needs two validation vertices, but there is only one: use mse, or choose another data.split"
            )
        return ""


def _errors(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the errors [n, K] of the scores; 0 for unknown labels."""
    unknown = labels.isnan()
    return torch.where(unknown, 0, scores - labels.masked_fill(unknown, 0))
