"""Link prediction objective: binary cross entropy or a ranking loss over vertex pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from hyrt.errors import listed
from hyrt.objective.links.asked_links import AskedLinks
from hyrt.objective.links.decoders import DECODERS
from hyrt.objective.links.link_metrics import HITS, link_metrics
from hyrt.objective.objective import Objective

_LOSSES = ("bce", "ranking")


class Links(Objective):
    """Each target is a link with K negative pairs; a decoder scores pairs of the model's output rows.

    The labels of a mini-batch are [n, 1 + K, 2] int64: per link, the rows of its source and destination,
    followed by the rows of K negative pairs. The scores are [vertices, C] rows.

    Parameters
    ----------
    decoder
        Name of a decoder in `hyrt.objective.links.decoders.DECODERS`.
    loss
        `bce`: mean binary cross entropy of a link and its K negative pairs. `ranking`: mean of log(1 +
        exp(negative - link)) over its K negative pairs (Rendle et al., UAI 2009).

    Raises
    ------
    ValueError
        If the decoder or the loss is unknown.
    """

    name = "links"
    labels = "links"
    counts = ("above", "pairs", "targets")
    metrics = ("roc_auc", "average_precision", "mrr", *(f"hits@{k}" for k in HITS), "loss")
    lowest_is_best = ("loss",)

    def __init__(self, *, decoder: str = "dot", loss: Literal["bce", "ranking"] = "bce") -> None:
        if decoder not in DECODERS:
            raise ValueError(f"decoder is {decoder!r}: give one of {listed(tuple(DECODERS))}")
        if loss not in _LOSSES:
            raise ValueError(f"loss is {loss!r}: give bce or ranking")
        self.decoder = DECODERS[decoder]
        """Score function of pairs."""
        self._loss = loss

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        pairs = self._scores(scores, labels)
        links, negatives = pairs[:, :1], pairs[:, 1:]
        softplus = torch.nn.functional.softplus
        if self._loss == "bce":
            link_losses = torch.cat([softplus(-links), softplus(negatives)], dim=1).mean(1)
        else:
            link_losses = softplus(negatives - links).mean(1)
        return link_losses.sum() if weights is None else (link_losses * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        pairs = self._scores(scores, labels)
        above = (pairs[:, :1] > pairs[:, 1:]).sum()
        return {"above": above, "pairs": labels.shape[0] * (labels.shape[1] - 1), "targets": len(labels)}

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        pairs = counts.get("pairs", 0)
        return {"links_above": counts.get("above", 0) / pairs if pairs else 0.0}

    def evaluate(self, scores: NDArray[Any], labels: Any) -> dict[str, float]:
        """Return all metrics of one split; `labels` are `AskedLinks`."""
        assert isinstance(labels, AskedLinks)
        return link_metrics(scores, labels, self.decoder.score)

    def _scores(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the [n, 1 + K] scores of pairs of rows."""
        # The gradient of an embedding lookup is summed in a fixed order on every device; that of indexing is
        # not.
        look_up = torch.nn.functional.embedding
        return self.decoder.score(look_up(labels[..., 0], rows), look_up(labels[..., 1], rows))
