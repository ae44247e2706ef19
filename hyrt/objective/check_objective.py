"""Trial of an objective before training, so that its errors do not cost an epoch."""

from __future__ import annotations

import math

import torch

from hyrt.errors import ConfigError
from hyrt.graph.labels.label_kind import made_up_labels
from hyrt.objective.objective import Objective
from hyrt.objective.on_host import numbers
from hyrt.objective.registry import OBJECTIVES

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
    half, width = (
        min(max(num_outputs, 4), _MAX_HALF_TARGETS),
        objective.num_scores(num_outputs) or num_outputs,
    )
    scores = torch.cos(torch.arange(2 * half * width, dtype=torch.float32)).reshape(-1, width)
    labels, weights = (
        torch.from_numpy(made_up_labels(objective.labels, 2 * half, num_outputs)),
        torch.ones(2 * half),
    )
    name = objective.name
    leaf = scores.clone().requires_grad_()
    with OBJECTIVES.blamed(name, "loss_sum"):
        loss = objective.loss_sum(leaf, labels, weights)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        found = f"shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise ConfigError(f"{OBJECTIVES.named(name)}: loss_sum returns {found}, not a scalar tensor")
    with OBJECTIVES.blamed(name, "the gradient of loss_sum"):
        torch.autograd.grad(loss, leaf)
    sum_of_halves = 0.0
    with OBJECTIVES.blamed(name, "loss_sum"):
        for half_rows in (slice(0, half), slice(half, None)):
            sum_of_halves += float(
                objective.loss_sum(scores[half_rows], labels[half_rows], weights[half_rows])
            )
    total = float(loss.detach())
    if not math.isfinite(total):
        raise ConfigError(f"{OBJECTIVES.named(name)}: loss_sum is {total} for scores between -1 and 1")
    if not math.isclose(total, sum_of_halves, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: loss_sum is not a sum over targets: it is {total:g} for "
            f"{2 * half} of them, but {sum_of_halves:g} for their two halves together"
        )
    with OBJECTIVES.blamed(name, "count"):
        counts = numbers(objective.count(scores, labels))
    if set(counts) != set(objective.counts):
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: count returns {', '.join(counts) or 'nothing'}, but the names in its "
            f"counts are {', '.join(objective.counts)}"
        )
    if counts.get("targets") != len(labels):
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: count must return the number of targets as targets, which is "
            f"{len(labels)} and not {counts.get('targets')}"
        )
    with OBJECTIVES.blamed(name, "training_metrics"):
        objective.training_metrics(counts)
    with OBJECTIVES.blamed(name, "evaluate"):
        metrics = objective.evaluate(scores.numpy(), labels.numpy())
    if metric not in metrics:
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: evaluate returns {', '.join(metrics) or 'nothing'}, but not "
            f"{metric}, which chooses the best epoch"
        )
