"""Link prediction: which pairs of vertices are linked, by binary cross entropy or by ranking."""

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
    """Each target is a link with pairs that are none; a decoder scores pairs of the rows that a model gives.

    The labels of a mini-batch are [n, 1 + K, 2] int64: of each of n links, the rows of its source and its
    destination, then those of K pairs that are no links. The scores are [vertices, C] rows.

    Parameters
    ----------
    decoder
        What a pair scores: see `hyrt.objective.links.decoders.DECODERS`.
    loss
        `bce`: the mean binary cross entropy of a link and its K pairs. `ranking`: the mean of
        log(1 + exp(pair - link)) over its K pairs (Rendle et al., UAI 2009).

    Raises
    ------
    ValueError
        For another decoder or another loss.
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
        """What a pair scores."""
        self._loss = loss

    def loss_sum(
        self, scores: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> torch.Tensor:
        pairs = self._scores(scores, labels)
        links, others = pairs[:, :1], pairs[:, 1:]
        softplus = torch.nn.functional.softplus
        if self._loss == "bce":
            of_links = torch.cat([softplus(-links), softplus(others)], dim=1).mean(1)
        else:
            of_links = softplus(others - links).mean(1)
        return of_links.sum() if weights is None else (of_links * weights).sum()

    def count(self, scores: torch.Tensor, labels: torch.Tensor) -> dict[str, int | torch.Tensor]:
        pairs = self._scores(scores, labels)
        above = (pairs[:, :1] > pairs[:, 1:]).sum()
        return {"above": above, "pairs": labels.shape[0] * (labels.shape[1] - 1), "targets": len(labels)}

    def training_metrics(self, counts: Mapping[str, float]) -> dict[str, float]:
        pairs = counts.get("pairs", 0)
        return {"links_above": counts.get("above", 0) / pairs if pairs else 0.0}

    def evaluate(self, scores: NDArray[Any], labels: Any) -> dict[str, float]:
        """All metrics of one split; `labels` are `AskedLinks`."""
        assert isinstance(labels, AskedLinks)
        return link_metrics(scores, labels, self.decoder.score)

    def _scores(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """[n, 1 + K] scores of pairs of rows."""
        # The gradient of a lookup is added up in a fixed order on every device, unlike that of an index.
        look_up = torch.nn.functional.embedding
        return self.decoder.score(look_up(labels[..., 0], rows), look_up(labels[..., 1], rows))
