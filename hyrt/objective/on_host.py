"""Loss and gradient of an objective, computed on the host for devices that only have the scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.objective.objective import Objective
from hyrt.objective.registry import OBJECTIVES
from hyrt.objective.returned import check_loss, check_numbers
from hyrt.quantities import one_line


@dataclass(frozen=True, slots=True)
class HostLoss:
    """Loss sum, counts and gradient of a mini-batch's targets."""

    loss_sum: float
    """Sum of the weighted losses."""
    counts: dict[str, float]
    """Counts, with the keys `Objective.counts`."""
    gradient: NDArray[np.float32]
    """[n, C] float32 gradient of the loss sum with respect to the scores."""

    __repr__ = one_line


def loss_on_host(
    objective: Objective, scores: NDArray[np.float32], labels: NDArray[Any], weights: NDArray[Any] | None
) -> HostLoss:
    """Compute loss sum and counts from scores, and the gradient with respect to the scores.

    Parameters
    ----------
    objective
        The objective of the run.
    scores
        [n, C] float32.
    labels
        Labels of the targets; see `Objective.labels`.
    weights
        [n] float32; None if each weight is 1.
    """
    leaf = torch.from_numpy(scores).requires_grad_()
    targets = torch.from_numpy(labels)
    with OBJECTIVES.blamed(objective.name, "loss_sum"):
        weight_tensor = None if weights is None else torch.from_numpy(weights)
        loss = check_loss(objective, objective.loss_sum(leaf, targets, weight_tensor))
    with OBJECTIVES.blamed(objective.name, "the gradient of loss_sum"):
        (gradient,) = torch.autograd.grad(loss, leaf)
    counts = count_on_host(objective, leaf.detach(), targets)
    return HostLoss(float(loss.detach()), counts, np.ascontiguousarray(gradient.numpy(), np.float32))


def count_on_host(objective: Objective, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Return the counts of an objective as Python numbers.

    Raises
    ------
    ConfigError
        If the objective fails or returns other values than numbers; with the objective.
    """
    with OBJECTIVES.blamed(objective.name, "count"):
        counts = objective.count(scores, labels)
    return check_numbers(objective.name, "count", counts)


def numbers(counts: Mapping[str, int | torch.Tensor]) -> dict[str, float]:
    """Convert the result of `Objective.count` to Python numbers."""
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value for name, value in counts.items()
    }
