"""Metrics of link prediction: ROC AUC, average precision, MRR, Hits@k and cross entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.objective.flag_metrics import average_precision, binary_cross_entropy
from hyrt.objective.links.asked_links import AskedLinks
from hyrt.objective.links.link_ranks import Score, link_ranks, pair_scores
from hyrt.objective.metrics import roc_auc

HITS = (1, 10, 50)
"""Values of k for Hits@k."""


def link_metrics(rows: NDArray[Any], asked: AskedLinks, score: Score) -> dict[str, float]:
    """Return all metrics of a split.

    Parameters
    ----------
    rows
        [V, C] float32.
    asked
        Positive and negative pairs, as indices of `rows`.
    score
        Score function of pairs of rows.

    Returns
    -------
    `roc_auc` and `average_precision` of links against negative pairs; `mrr` (mean of 1 / rank) and `hits@k`
    (fraction of ranks up to k), over both ends of each link; `loss`, the mean binary cross entropy of links
    and negative pairs. A metric is NaN if a score is NaN, or if it has no pairs to compare links with.
    """
    values = torch.from_numpy(np.asarray(rows, np.float32))
    with torch.no_grad():
        link_scores = pair_scores(values, asked.links, score)
        negative_scores = pair_scores(values, asked.negatives, score)
        ranks = link_ranks(values, asked, link_scores, score)
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
