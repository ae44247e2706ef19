"""Trial of an objective before training, so that its errors do not cost an epoch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from hyrt.checks import show
from hyrt.graph.labels.label_kind import made_up_labels
from hyrt.objective.objective import Objective
from hyrt.objective.registry import OBJECTIVES
from hyrt.objective.returned import check_loss, check_names, check_numbers, refusal

# Relative tolerance: a mean instead of a sum differs by a factor of two, rounding by much less.
_TOLERANCE = 1e-3
# Limit on half of the targets; the scores need targets x classes memory several times over.
_MAX_HALF_TARGETS = 1024


def check_objective(objective: Objective, metric: str, num_outputs: int) -> None:
    """Compute the loss, counts and metrics of an objective on a few placeholder targets.

    Parameters
    ----------
    objective
        The objective under test.
    metric
        Name of the metric that selects the best epoch.
    num_outputs
        Number of classes, flags or regression values of the dataset.

    Raises
    ------
    ConfigError
        With the objective, the distribution that declares it, and the problem.
    """
    name = objective.name
    check_names(objective)
    with OBJECTIVES.blamed(name, "num_scores"):
        num_scores = objective.num_scores(num_outputs)
    if num_scores is not None and not _is_count(num_scores):
        raise refusal(
            name, f"num_scores returns {show(num_scores)}: return a whole number from 1 on, or None"
        )
    half, width = min(max(num_outputs, 4), _MAX_HALF_TARGETS), num_scores or num_outputs
    scores = torch.cos(torch.arange(2 * half * width, dtype=torch.float32)).reshape(-1, width)
    labels, weights = (
        torch.from_numpy(made_up_labels(objective.labels, 2 * half, num_outputs)),
        torch.ones(2 * half),
    )
    leaf = scores.clone().requires_grad_()
    with OBJECTIVES.blamed(name, "loss_sum"):
        loss = check_loss(objective, objective.loss_sum(leaf, labels, weights))
    total = float(loss.detach())
    if not math.isfinite(total):
        raise refusal(
            name, f"loss_sum is {total} for scores between -1 and 1: return a finite number for finite scores"
        )
    with OBJECTIVES.blamed(name, "the gradient of loss_sum"):
        (gradient,) = torch.autograd.grad(loss, leaf)
    with OBJECTIVES.blamed(name, "loss_sum without weights"):
        check_loss(objective, objective.loss_sum(leaf, labels, None))
    if not torch.isfinite(gradient).all():
        raise refusal(
            name,
            "the gradient of loss_sum is not finite for scores between -1 and 1: compute it without dividing "
            "by 0 or roots of 0",
        )
    sum_of_halves = 0.0
    with OBJECTIVES.blamed(name, "loss_sum"):
        for half_rows in (slice(0, half), slice(half, None)):
            sum_of_halves += float(
                objective.loss_sum(scores[half_rows], labels[half_rows], weights[half_rows])
            )
    if not math.isclose(total, sum_of_halves, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise refusal(
            name,
            f"loss_sum is not a sum over targets: it is {total:g} for {2 * half} of them, but "
            f"{sum_of_halves:g} for their two halves together: return the sum of the losses of all targets",
        )
    with OBJECTIVES.blamed(name, "count"):
        counts = check_numbers(name, "count", objective.count(scores, labels))
    if set(counts) != set(objective.counts):
        raise refusal(
            name,
            f"count returns {', '.join(counts) or 'nothing'}, but the names in its counts are "
            f"{', '.join(objective.counts)}: return these",
        )
    if counts.get("targets") != len(labels):
        raise refusal(
            name,
            f"count returns {counts.get('targets')} as targets: return the number of targets, which is "
            f"{len(labels)}",
        )
    with OBJECTIVES.blamed(name, "training_metrics"):
        check_numbers(name, "training_metrics", objective.training_metrics(counts))
    with OBJECTIVES.blamed(name, "evaluate"):
        metrics = check_numbers(name, "evaluate", objective.evaluate(scores.numpy(), labels.numpy()))
    if metric not in metrics:
        raise refusal(
            name,
            f"evaluate returns {', '.join(metrics) or 'nothing'}, but not {metric}, which chooses the best "
            "epoch: return it",
        )


def _is_count(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return False
    return int(value) > 0
