"""Rank of each link among its candidates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.objective.links.asked_links import AskedLinks

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""See `hyrt.objective.links.decoders.Decoder.score`."""

# Maximum number of elements in one batch of gathered rows or scores.
_MAX_ELEMENTS = 1 << 23


def pair_scores(rows: torch.Tensor, pairs: NDArray[np.int64], score: Score) -> NDArray[np.float32]:
    """Return the [n] float32 scores of [n, 2] pairs of [V, C] rows, computed in batches of bounded memory."""
    out = np.empty(len(pairs), np.float32)
    step = max(1, _MAX_ELEMENTS // max(1, rows.shape[1]))
    for start in range(0, len(pairs), step):
        indices = torch.from_numpy(np.ascontiguousarray(pairs[start : start + step], np.int64))
        out[start : start + step] = score(rows[indices[:, 0]], rows[indices[:, 1]]).numpy()
    return out


def link_ranks(
    rows: torch.Tensor, asked: AskedLinks, of_links: NDArray[np.float32], score: Score
) -> NDArray[np.float64]:
    """Return the rank of each link among other sources, and among other destinations.

    The rank is 1 plus the number of candidates with a higher score; equal scores count half, so that a
    constant score gets the mean rank instead of the best. It is NaN if the score of the link or of a
    candidate is NaN.

    Parameters
    ----------
    rows
        [V, C] float32.
    asked
        The links and their candidates.
    of_links
        [m] scores of the links.
    score
        Score function of pairs of rows.

    Returns
    -------
    [m, 2] float64.
    """
    ranks = np.empty((len(asked.links), 2))
    row_elements = rows.shape[0] if asked.candidates is None else asked.candidates.shape[2] * rows.shape[1]
    step = max(1, _MAX_ELEMENTS // max(1, row_elements))
    for start in range(0, len(asked.links), step):
        part = slice(start, start + step)
        links, batch_link_scores = asked.links[part], torch.from_numpy(of_links[part])[:, None]
        for end in (0, 1):
            fixed = rows[torch.from_numpy(links[:, 1 - end])][:, None]
            if asked.candidates is None:
                assert asked.known is not None
                assert asked.ends is not None
                low, high = asked.ends.destinations if end else asked.ends.sources
                candidates = rows[None, low:high]
                excluded = _known_neighbors(asked.known, links, end, rows.shape[0])[:, low:high]
                counts = torch.from_numpy(~excluded)
            else:
                chosen = asked.candidates[part, end]
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
    """Return [b, K] scores of fixed rows [b, 1, C] with rows [b or 1, K, C] in place of end `end`."""
    return score(fixed, candidates) if end else score(candidates, fixed)


def _known_neighbors(known: Topology, links: NDArray[np.int64], end: int, num: int) -> NDArray[np.bool_]:
    """Return [b, V]: vertices that form a known edge in place of end `end`, and both ends themselves."""
    edges = known.transposed if end else known
    out = np.zeros((len(links), num), np.bool_)
    for i, fixed in enumerate(links[:, 1 - end]):
        out[i, edges.indices[edges.indptr[fixed] : edges.indptr[fixed + 1]]] = True
    rows = np.arange(len(links))
    out[rows, links[:, 0]] = out[rows, links[:, 1]] = True
    return out
