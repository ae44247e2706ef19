"""The focal loss, for `hyrt run ... train.objective=focal 'train.objective_options={gamma: 2}'`."""

from __future__ import annotations

from typing import Any

import torch

from hyrt.objective.classification import Classification


class Focal(Classification):
    """Cross entropy times (1 - p)^gamma, with p the probability of the label: easy targets count less.

    Lin et al., "Focal Loss for Dense Object Detection", 2017. Counts, metrics and class weights are those of
    classification.
    """

    name = "focal"

    def __init__(self, *, gamma: float = 2.0, **options: Any) -> None:
        super().__init__(**options)
        if not gamma >= 1:
            raise ValueError(f"gamma is {gamma!r}: give a number of at least 1")
        self.gamma = gamma

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        logs = torch.log_softmax(scores, dim=1).gather(1, labels[:, None])[:, 0]
        losses = -((1 - logs.exp()) ** self.gamma) * logs
        return losses.sum() if weights is None else (losses * weights).sum()
