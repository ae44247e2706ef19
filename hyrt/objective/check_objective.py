"""An objective tried before a run trains for it: what it cannot do should not cost an epoch to find out."""

from __future__ import annotations

import math

import torch

from hyrt.errors import ConfigError
from hyrt.graph.labels.label_kind import made_up_labels
from hyrt.objective.objective import Objective
from hyrt.objective.on_host import numbers
from hyrt.objective.registry import OBJECTIVES

# A mean in place of a sum differs by half; the two halves' rounding by far less.
_CLOSE = 1e-3
# Of half of the targets: those times the classes are scores, several times over.
_MOST_TARGETS = 1024


def check_objective(objective: Objective, metric: str, num_outputs: int) -> None:
    """Let an objective compute the loss, the counts and the metrics of a few made-up targets.

    Parameters
    ----------
    objective
        What is to be trained for.
    metric
        The one of its metrics that chooses the best epoch.
    num_outputs
        The number of classes, flags or numbers of the dataset.

    Raises
    ------
    ConfigError
        Naming the objective, the distribution that declares it, and what is wrong with it.
    """
    half, width = min(max(num_outputs, 4), _MOST_TARGETS), objective.num_scores(num_outputs) or num_outputs
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
    halves = 0.0
    with OBJECTIVES.blamed(name, "loss_sum"):
        for part in (slice(0, half), slice(half, None)):
            halves += float(objective.loss_sum(scores[part], labels[part], weights[part]))
    whole = float(loss.detach())
    if not math.isfinite(whole):
        raise ConfigError(f"{OBJECTIVES.named(name)}: loss_sum is {whole} for scores between -1 and 1")
    if not math.isclose(whole, halves, rel_tol=_CLOSE, abs_tol=_CLOSE):
        raise ConfigError(
            f"{OBJECTIVES.named(name)}: loss_sum is not a sum over targets: it is {whole:g} for "
            f"{2 * half} of them, but {halves:g} for their two halves together"
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
