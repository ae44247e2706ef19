"""What the scores of links are worth: ROC AUC, average precision, MRR, Hits@k, cross entropy."""

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
"""The k of Hits@k."""


def link_metrics(rows: NDArray[Any], asked: AskedLinks, score: Score) -> dict[str, float]:
    """All metrics of a split.

    Parameters
    ----------
    rows
        [V, C] float32.
    asked
        The links and the pairs that are none, as rows of these.
    score
        Scores pairs of rows.

    Returns
    -------
    `roc_auc` and `average_precision` of links against pairs that are none; `mrr` and `hits@k`, the mean of
    1 / rank and the share of ranks up to k, over both ends of each link; `loss`, the mean binary cross
    entropy of links and pairs that are none. A metric of scores that are nan is nan, and so is one that
    compares links with nothing.
    """
    values = torch.from_numpy(np.asarray(rows, np.float32))
    with torch.no_grad():
        of_links = pair_scores(values, asked.links, score)
        others = pair_scores(values, asked.negatives, score)
        ranks = link_ranks(values, asked, of_links, score)
    scores = np.concatenate([of_links, others])
    labels = np.repeat([1, 0], [len(of_links), len(others)])
    both = len(of_links) > 0 and len(others) > 0
    return {
        "roc_auc": roc_auc(scores, labels) if both else float("nan"),
        "average_precision": average_precision(scores, labels) if both else float("nan"),
        "mrr": _mean(1 / ranks, ranks),
        **{f"hits@{k}": _mean(ranks <= k, ranks) for k in HITS},
        "loss": binary_cross_entropy(scores, labels),
    }


def _mean(values: NDArray[Any], ranks: NDArray[np.float64]) -> float:
    """Return the mean of values of ranks; nan if there is no rank, or one is nan."""
    return float(np.mean(values)) if len(ranks) and not np.isnan(ranks).any() else float("nan")
