"""Link prediction objective, in which a decoder scores pairs of vertices, and its metrics. The loss is binary
cross entropy or a ranking loss. The row of a vertex includes all terms that depend on it only
(`hyrt.nn.link_gnn`), so a decoder has no weights and costs little per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.errors import join_names
from hyrt.formatting import short_repr
from hyrt.graph.links.link_split import LinkEndpoints
from hyrt.graph.topology import Topology
from hyrt.objective.metrics import average_precision, binary_cross_entropy, roc_auc
from hyrt.objective.objective import Objective


@dataclass(frozen=True, slots=True)
class LinkQueries:
    """Positive and negative pairs of an evaluation, as indices of embedding rows.

    If `candidates` is None (all rows are candidates), `known_edges` and `ends` are set.
    """

    links: NDArray[np.int64]
    """Rows of the source and the destination of each link, [m, 2]."""
    negatives: NDArray[np.int64]
    """Rows of each negative pair, [n, 2]."""
    candidates: NDArray[np.int64] | None
    """Rows that replace the source or the destination, [m, 2, K], with -1 for unused entries. None ranks each
    link against all rows of `ends` that do not form a known edge.
    """
    known_edges: Topology | None = None
    """Known edges between rows, which have the same order as the vertices."""
    ends: LinkEndpoints | None = None
    """Ranges of the rows that may be sources and destinations."""

    __repr__ = short_repr


Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Function that scores pairs; see `hyrt.objective.link_prediction.Decoder.score`."""

# Maximum number of elements in a batch of gathered rows or scores.
_MAX_ELEMENTS = 1 << 23


def score_pairs(rows: torch.Tensor, pairs: NDArray[np.int64], score: Score) -> NDArray[np.float32]:
    """Return the scores [n] float32 of pairs [n, 2] of rows [V, C], computed in batches that limit memory."""
    out = np.empty(len(pairs), np.float32)
    step = max(1, _MAX_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(pairs), step):
        indices = torch.from_numpy(np.ascontiguousarray(pairs[start : start + step], np.int64))
        out[start : start + step] = score(rows[indices[:, 0]], rows[indices[:, 1]]).numpy()
    return out


def rank_links(
    rows: torch.Tensor, queries: LinkQueries, link_scores: NDArray[np.float32], score: Score
) -> NDArray[np.float64]:
    """Return the ranks of each link among links with other sources or other destinations, [m, 2] float64.

    The rank is 1 plus the number of candidates with a higher score. Candidates with an equal score count
    half, so that constant scores get the mean rank instead of the best. A rank is NaN if the score of the
    link or of a candidate is NaN. `rows` is [V, C] float32; `link_scores` is [m].
    """
    ranks = np.empty((len(queries.links), 2))
    row_elements = (
        rows.shape[0] if queries.candidates is None else queries.candidates.shape[2] * rows.shape[1]
    )
    step = max(1, _MAX_ELEMENTS // max(1, row_elements))
    for start in range(0, len(queries.links), step):
        part = slice(start, start + step)
        links, batch_link_scores = queries.links[part], torch.from_numpy(link_scores[part])[:, None]
        for end in (0, 1):
            fixed = rows[torch.from_numpy(links[:, 1 - end])][:, None]
            if queries.candidates is None:
                assert queries.known_edges is not None
                assert queries.ends is not None
                low, high = queries.ends.destinations if end else queries.ends.sources
                candidates = rows[None, low:high]
                excluded = _known_neighbors(queries.known_edges, links, end, rows.shape[0])[:, low:high]
                counts = torch.from_numpy(~excluded)
            else:
                chosen = queries.candidates[part, end]
                candidates = rows[torch.from_numpy(np.maximum(chosen, 0))]
                counts = torch.from_numpy(chosen >= 0)
            scores = _candidate_scores(fixed, candidates, end, score)
            above = ((scores > batch_link_scores) & counts).sum(1) + 0.5 * (
                (scores == batch_link_scores) & counts
            ).sum(1)
            unknown = batch_link_scores.isnan()[:, 0] | (scores.isnan() & counts).any(1)
            ranks[part, end] = torch.where(unknown, torch.nan, 1 + above.double()).numpy()
    return ranks


def _candidate_scores(fixed: torch.Tensor, candidates: torch.Tensor, end: int, score: Score) -> torch.Tensor:
    """Return scores [b, K] of `fixed` [b, 1, C] with candidates [b or 1, K, C] at endpoint `end`."""
    return score(fixed, candidates) if end else score(candidates, fixed)


def _known_neighbors(known: Topology, links: NDArray[np.int64], end: int, num: int) -> NDArray[np.bool_]:
    """Return a mask [b, V] of the vertices that form a known edge as endpoint `end` of a link, and of the
    link's own endpoints.
    """
    edges = known.transposed if end else known
    out = np.zeros((len(links), num), np.bool_)
    for i, fixed in enumerate(links[:, 1 - end]):
        out[i, edges.indices[edges.indptr[fixed] : edges.indptr[fixed + 1]]] = True
    rows = np.arange(len(links))
    out[rows, links[:, 0]] = out[rows, links[:, 1]] = True
    return out


HITS = (1, 10, 50)
"""Values of k for which Hits@k is computed."""


def link_metrics(rows: NDArray[Any], queries: LinkQueries, score: Score) -> dict[str, float]:
    """Return all metrics of a split for the rows [V, C] float32.

    `roc_auc` and `average_precision` compare links with negative pairs. `mrr` (mean of 1 / rank) and `hits@k`
    (fraction of ranks up to k) cover both endpoints of each link. `loss` is the mean binary cross entropy of
    links and negative pairs. A metric is NaN if a score is NaN, or if there are no pairs for comparison.
    """
    values = torch.from_numpy(np.asarray(rows, np.float32))
    with torch.no_grad():
        link_scores = score_pairs(values, queries.links, score)
        negative_scores = score_pairs(values, queries.negatives, score)
        ranks = rank_links(values, queries, link_scores, score)
    scores = np.concatenate([link_scores, negative_scores])
    labels = np.repeat([1, 0], [len(link_scores), len(negative_scores)])
    both = len(link_scores) > 0 and len(negative_scores) > 0
    return {
        "roc_auc": roc_auc(scores, labels) if both else float("nan"),
        "average_precision": average_precision(scores, labels) if both else float("nan"),
        "mrr": _mean(1 / ranks, ranks),
        **{f"hits@{k}": _mean(ranks <= k, ranks) for k in HITS},
        "loss": binary_cross_entropy(scores, labels),
    }


def _mean(values: NDArray[Any], ranks: NDArray[np.float64]) -> float:
    """Return the mean of `values`; NaN if `ranks` is empty or contains NaN."""
    return float(np.mean(values)) if len(ranks) and not np.isnan(ranks).any() else float("nan")


@dataclass(frozen=True, slots=True)
class Decoder:
    """Score function of vertex pairs for embeddings of width D, whose decoder input rows have width C."""

    columns: Callable[[int], int]
    """Function that returns C for a given D."""
    score: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    """Function that returns scores [...] of source and destination rows [..., C]; shapes are broadcast."""

    __repr__ = short_repr


def _dot(source: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
    if source.ndim == 3 and source.shape[1] == 1:
        # One source row is compared with many destinations: avoid the array of element-wise products.
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
"""Decoders by name. `dot`: u . v, with rows u. `distmult`: u . (r * v), with rows [r * u | u] (Yang et al.,
ICLR 2015). `transe`: -|u + r - v|, with rows [u + r | u] (Bordes et al., NeurIPS 2013). `mlp`: w . relu(A u +
B v + b) + c, with rows [A u + b | B u | w | c].
"""


_LOSSES = ("bce", "ranking")


class LinkPrediction(Objective):
    """Objective of link prediction. Each target is a link with K negative pairs, and a decoder scores pairs
    of the model's output rows.

    The labels of a mini-batch are [n, 1 + K, 2] int64: for each link, the rows of its source and destination,
    then those of its K negative pairs. The scores are rows [vertices, C].

    `decoder` is a name in `DECODERS`. `loss` is `bce`, the mean binary cross entropy of a link and its K
    negative pairs, or `ranking`, the mean of log(1 + exp(negative - link)) over the negative pairs (Rendle et
    al., UAI 2009). Raises ValueError if the decoder or the loss is unknown.
    """

    name = "links"
    labels = "links"
    counts = ("above", "pairs", "targets")
    metrics = ("roc_auc", "average_precision", "mrr", *(f"hits@{k}" for k in HITS), "loss")
    lowest_is_best = ("loss",)

    def __init__(self, *, decoder: str = "dot", loss: Literal["bce", "ranking"] = "bce") -> None:
        if decoder not in DECODERS:
            raise ValueError(f"decoder is {decoder!r}: choose one of {join_names(tuple(DECODERS))}")
        if loss not in _LOSSES:
            raise ValueError(f"loss is {loss!r}: choose bce or ranking")
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
        """Return all metrics of a split; `labels` are `LinkQueries`."""
        assert isinstance(labels, LinkQueries)
        return link_metrics(scores, labels, self.decoder.score)

    def _scores(self, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the scores [n, 1 + K] of pairs of rows."""
        # `embedding` sums gradients in a fixed order on every device, unlike indexing.
        look_up = torch.nn.functional.embedding
        return self.decoder.score(look_up(labels[..., 0], rows), look_up(labels[..., 1], rows))
