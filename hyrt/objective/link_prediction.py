"""Link prediction objective: binary cross entropy or a ranking loss over pairs, which a decoder scores.

Terms that depend on one vertex only are already in its row (`hyrt.nn.link_gnn`), so a decoder has no weights
and costs little per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from numpy.typing import NDArray

from hyrt.errors import join_names
from hyrt.formatting import short_repr
from hyrt.objective.link_metrics import HITS, LinkQueries, link_metrics
from hyrt.objective.objective import Objective


@dataclass(frozen=True, slots=True)
class Decoder:
    """Score function of vertex pairs, for embeddings of width D and decoder input rows of width C."""

    columns: Callable[[int], int]
    """Return C for a given D."""
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Return [...] scores from [..., C] rows of sources and of destinations; shapes are broadcast."""

    __repr__ = short_repr


def _dot(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    if source.ndim == 3 and source.shape[1] == 1:
        # One source per row against many destinations: avoid the array of elementwise products.
        products: torch.Tensor = torch.matmul(destination, source.squeeze(1).unsqueeze(-1))
        return torch.squeeze(products, -1)
    return torch.sum(source * destination, -1)


def _distmult(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 2
    return _dot(source[..., :width], destination[..., width:])


def _transe(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 2
    distance: torch.Tensor = torch.linalg.vector_norm(source[..., :width] - destination[..., width:], dim=-1)
    return -distance


def _mlp(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    width = source.shape[-1] // 3
    hidden = (source[..., :width] + destination[..., width : 2 * width]).relu()
    return (hidden * source[..., 2 * width : 3 * width]).sum(-1) + source[..., 3 * width]


DECODERS: dict[str, Decoder] = {
    "dot": Decoder(lambda width: width, _dot),
    "distmult": Decoder(lambda width: 2 * width, _distmult),
    "transe": Decoder(lambda width: 2 * width, _transe),
    "mlp": Decoder(lambda width: 3 * width + 1, _mlp),
}
"""`dot`: u . v, from rows u and v. `distmult`: u . (r * v), from rows [r * u | u] (Yang et al., ICLR 2015).
`transe`: -|u + r - v|, from rows [u + r | u] (Bordes et al., NeurIPS 2013). `mlp`: w . relu(A u + B v + b) +
c, from rows [A u + b | B u | w | c].
"""


_LOSSES = ("bce", "ranking")


class LinkPrediction(Objective):
    """Link prediction: each target is a link with K negative pairs; a decoder scores pairs of the model's
    output rows.

    The labels of a mini-batch are [n, 1 + K, 2] int64: per link, the rows of its source and destination,
    followed by the rows of K negative pairs. The scores are [vertices, C] rows.

    `decoder` is a name in `DECODERS`. `loss` is `bce`, the mean binary cross entropy of a link and its K
    negative pairs, or `ranking`, the mean of log(1 + exp(negative - link)) over its K negative pairs (Rendle
    et al., UAI 2009). Raises ValueError if the decoder or the loss is unknown.
    """

    name = "links"
    labels = "links"
    counts = ("above", "pairs", "targets")
    metrics = ("roc_auc", "average_precision", "mrr", *(f"hits@{k}" for k in HITS), "loss")
    lowest_is_best = ("loss",)

    def __init__(self, *, decoder: str = "dot", loss: Literal["bce", "ranking"] = "bce") -> None:
        if decoder not in DECODERS:
            raise ValueError(f"decoder is {decoder!r}: give one of {join_names(tuple(DECODERS))}")
        if loss not in _LOSSES:
            raise ValueError(f"loss is {loss!r}: give bce or ranking")
        self.decoder = DECODERS[decoder]
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
        """Return all metrics of one split; `labels` are `LinkQueries`."""
        assert isinstance(labels, LinkQueries)
        return link_metrics(scores, labels, self.decoder.score)

    def _scores(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the [n, 1 + K] scores of pairs of rows."""
        # On every device, embedding sums gradients in a fixed order; indexing does not.
        look_up = torch.nn.functional.embedding
        return self.decoder.score(look_up(labels[..., 0], rows), look_up(labels[..., 1], rows))
