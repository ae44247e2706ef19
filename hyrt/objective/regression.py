"""Regression: K numbers for each target, by their squared or absolute error."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import check_whole, check_word
from hyrt.objective.check_scores import check_labels, check_scores
from hyrt.objective.known_entries import known_per_target
from hyrt.objective.number_metrics import number_metrics
from hyrt.objective.objective import Objective


class Regression(Objective):
    """The scores are the prediction; the loss is its mean squared or mean absolute error.

    A target's loss is the sum over its known numbers, divided by the mean number of known ones of a training
    target: the loss of all targets is the mean over all known numbers.

    Parameters
    ----------
    loss
        `mse` for the squared error, `mae` for the absolute one.

    Raises
    ------
    ValueError
        For another loss.
    """

    name = "regression"
    labels = "numbers"
    counts = ("squared", "absolute", "known", "targets")
    metrics = ("mse", "mae", "r2")
    lowest_is_best = ("mse", "mae")

    def __init__(self, *, loss: Literal["mse", "mae"] = "mse") -> None:
        self._loss = check_word("loss", loss, ("mse", "mae"))
        self._known: float | None = None

    def with_targets(self, labels: NDArray[Any], num_outputs: int) -> Self:
        check_labels(labels, "numbers")
        check_whole("num_outputs", num_outputs, 1)
        fitted = copy.copy(self)
        fitted._known = known_per_target(~np.isnan(labels))
        return fitted

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        check_scores(scores, labels, "numbers", weights)
        off = _errors(scores, labels)
        losses = off.square() if self._loss == "mse" else off.abs()
        of_targets = losses.sum(1) / (self._known or labels.shape[1])
        return of_targets.sum() if weights is None else (of_targets * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        check_scores(scores, labels, "numbers")
        off = _errors(scores, labels)
        # Not every device has numbers of 64 bits.
        off = off.double() if off.device.type == "cpu" else off
        return {
            "squared": off.square().sum(),
            "absolute": off.abs().sum(),
            "known": (~labels.isnan()).sum(),
            "targets": len(labels),
        }

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        known = counts.get("known", 0)
        names = {"mse": "squared", "mae": "absolute"}
        return {name: counts.get(sums, 0) / known if known else 0.0 for name, sums in names.items()}

    def evaluate(self, scores: NDArray[Any], labels: NDArray[Any]) -> dict[str, float]:
        return number_metrics(scores, labels)

    def num_scores(self, num_classes: int) -> int:
        return num_classes

    def why_not(self, metric: str, labels: NDArray[Any], num_classes: int) -> str:
        if metric == "r2" and len(labels) == 1:
            return "needs two validation vertices, and there is one: use mse, or another data.split"
        return ""


def _errors(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """[n, K] what the scores are off by; 0 where the number is not known."""
    unknown = labels.isnan()
    return torch.where(unknown, 0, scores - labels.masked_fill(unknown, 0))
