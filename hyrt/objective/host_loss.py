"""Loss and gradient on the host, for devices that only compute scores, and trial of an objective before
training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.checks import show
from hyrt.formatting import short_repr
from hyrt.graph.labels import placeholder_labels
from hyrt.objective.metrics import check_loss, check_names, check_numbers, objective_error
from hyrt.objective.objective import OBJECTIVES, Objective


@dataclass(frozen=True, slots=True)
class HostLoss:
    """Sum of weighted losses, counts and gradient for the targets of a mini-batch."""

    loss_sum: float
    counts: dict[str, float]
    gradient: NDArray[np.float32]
    """Gradient of the loss sum with respect to the scores, [n, C] float32."""

    __repr__ = short_repr


def compute_host_loss(
    objective: Objective, scores: NDArray[np.float32], labels: NDArray[Any], weights: NDArray[Any] | None
) -> HostLoss:
    """Compute loss sum, counts and gradient from the scores of a mini-batch.

    Parameters
    ----------
    objective
        Objective of the run.
    scores
        Scores [n, C], float32.
    labels
        Labels of the targets; see `Objective.labels`.
    weights
        Weights of the targets [n], float32; None if all are 1.
    """
    leaf = torch.from_numpy(scores).requires_grad_()
    targets = torch.from_numpy(labels)
    with OBJECTIVES.wrap_errors(objective.name, "loss_sum"):
        weight_tensor = None if weights is None else torch.from_numpy(weights)
        loss = check_loss(objective, objective.loss_sum(leaf, targets, weight_tensor))
    with OBJECTIVES.wrap_errors(objective.name, "the gradient of loss_sum"):
        (gradient,) = torch.autograd.grad(loss, leaf)
    counts = compute_host_counts(objective, leaf.detach(), targets)
    return HostLoss(float(loss.detach()), counts, np.ascontiguousarray(gradient.numpy(), np.float32))


def compute_host_counts(objective: Objective, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Return the counts of an objective as Python numbers.

    Raises ConfigError with the name of the objective if it fails or returns anything but numbers.
    """
    with OBJECTIVES.wrap_errors(objective.name, "count"):
        counts = objective.count(scores, labels)
    return check_numbers(objective.name, "count", counts)


def counts_to_numbers(counts: Mapping[str, int | torch.Tensor]) -> dict[str, float]:
    """Convert the result of `Objective.count` to Python numbers."""
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value for name, value in counts.items()
    }


# Relative tolerance. A mean instead of a sum changes the result by a factor of two, rounding by far less.
_TOLERANCE = 1e-3
# Maximum of half the number of placeholder targets. Memory use is several times targets x classes.
_MAX_HALF_TARGETS = 1024


def check_objective(objective: Objective, metric: str, num_outputs: int) -> None:
    """Compute loss, counts and metrics of an objective for a few placeholder targets, to check it.

    `num_outputs` is the number of classes, flags or regression values of the dataset, and `metric` selects
    the best epoch. Raises ConfigError with the objective, the distribution that declares it, and the problem.
    """
    name = objective.name
    check_names(objective)
    with OBJECTIVES.wrap_errors(name, "num_scores"):
        num_scores = objective.num_scores(num_outputs)
    if num_scores is not None and not _is_count(num_scores):
        raise objective_error(
            name, f"num_scores returns {show(num_scores)}: return None, or an integer of at least 1"
        )
    half, width = min(max(num_outputs, 4), _MAX_HALF_TARGETS), num_scores or num_outputs
    scores = torch.cos(torch.arange(2 * half * width, dtype=torch.float32)).reshape(-1, width)
    labels, weights = (
        torch.from_numpy(placeholder_labels(objective.labels, 2 * half, num_outputs)),
        torch.ones(2 * half),
    )
    leaf = scores.clone().requires_grad_()
    with OBJECTIVES.wrap_errors(name, "loss_sum"):
        loss = check_loss(objective, objective.loss_sum(leaf, labels, weights))
    total = float(loss.detach())
    if not math.isfinite(total):
        raise objective_error(
            name, f"loss_sum is {total} for scores between -1 and 1: return a finite number for finite scores"
        )
    with OBJECTIVES.wrap_errors(name, "the gradient of loss_sum"):
        (gradient,) = torch.autograd.grad(loss, leaf)
    with OBJECTIVES.wrap_errors(name, "loss_sum without weights"):
        check_loss(objective, objective.loss_sum(leaf, labels, None))
    if not torch.isfinite(gradient).all():
        raise objective_error(
            name,
            "the gradient of loss_sum is not finite for scores between -1 and 1: compute it without dividing "
            "by 0 or taking roots of 0",
        )
    sum_of_halves = 0.0
    with OBJECTIVES.wrap_errors(name, "loss_sum"):
        for half_rows in (slice(0, half), slice(half, None)):
            sum_of_halves += float(
                objective.loss_sum(scores[half_rows], labels[half_rows], weights[half_rows])
            )
    if not math.isclose(total, sum_of_halves, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise objective_error(
            name,
            f"loss_sum is not a sum over targets, because it is {total:g} for {2 * half} targets, but "
            f"{sum_of_halves:g} for their two halves together: return the sum of all targets' losses",
        )
    with OBJECTIVES.wrap_errors(name, "count"):
        counts = check_numbers(name, "count", objective.count(scores, labels))
    if set(counts) != set(objective.counts):
        raise objective_error(
            name,
            f"count returns {', '.join(counts) or 'nothing'}, but the attribute counts declares "
            f"{', '.join(objective.counts)}: return a number for each of these names, and no others",
        )
    if counts.get("targets") != len(labels):
        raise objective_error(
            name,
            f"count returns targets={counts.get('targets')} for {len(labels)} targets: return len(labels) as "
            "targets",
        )
    with OBJECTIVES.wrap_errors(name, "training_metrics"):
        check_numbers(name, "training_metrics", objective.training_metrics(counts))
    with OBJECTIVES.wrap_errors(name, "evaluate"):
        metrics = check_numbers(name, "evaluate", objective.evaluate(scores.numpy(), labels.numpy()))
    if metric not in metrics:
        raise objective_error(
            name,
            f"evaluate returns {', '.join(metrics) or 'nothing'}, but not {metric}, which selects the best "
            "epoch: return this metric as well",
        )


def _is_count(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) > 0
