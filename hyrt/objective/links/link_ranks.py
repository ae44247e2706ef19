"""The place of each link among what else its ends could be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.graph.topology import Topology
from hyrt.objective.links.asked_links import AskedLinks

Score = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""See `hyrt.objective.links.decoders.Decoder.score`."""

# Numbers of the rows that are gathered, or of the scores that are made, at once.
_NUMBERS_AT_ONCE = 1 << 23


def pair_scores(rows: torch.Tensor, pairs: NDArray[np.int64], score: Score) -> NDArray[np.float32]:
    """[n] float32 scores of [n, 2] pairs of [V, C] rows, in pieces of bounded memory."""
    out = np.empty(len(pairs), np.float32)
    step = max(1, _NUMBERS_AT_ONCE // max(1, rows.shape[1]))
    for start in range(0, len(pairs), step):
        at = torch.from_numpy(np.ascontiguousarray(pairs[start : start + step], np.int64))
        out[start : start + step] = score(rows[at[:, 0]], rows[at[:, 1]]).numpy()
    return out


def link_ranks(
    rows: torch.Tensor, asked: AskedLinks, of_links: NDArray[np.float32], score: Score
) -> NDArray[np.float64]:
    """The rank of each link with another source, and with another destination.

    A link's rank is 1 more than the number of candidates that score above it; those with its own score count
    half (so a constant score has the mean rank, and not the best one). If its own score or that of a
    candidate is nan, so is the rank.

    Parameters
    ----------
    rows
        [V, C] float32.
    asked
        The links, and their candidates.
    of_links
        [m] their scores.
    score
        Scores pairs of rows.

    Returns
    -------
    [m, 2] float64.
    """
    ranks = np.empty((len(asked.links), 2))
    many = rows.shape[0] if asked.candidates is None else asked.candidates.shape[2] * rows.shape[1]
    step = max(1, _NUMBERS_AT_ONCE // max(1, many))
    for start in range(0, len(asked.links), step):
        part = slice(start, start + step)
        links, own = asked.links[part], torch.from_numpy(of_links[part])[:, None]
        for end in (0, 1):
            kept = rows[torch.from_numpy(links[:, 1 - end])][:, None]
            if asked.candidates is None:
                assert asked.known is not None
                assert asked.ends is not None
                low, high = asked.ends.destinations if end else asked.ends.sources
                others = rows[None, low:high]
                wrong = _known(asked.known, links, end, rows.shape[0])[:, low:high]
                counts = torch.from_numpy(~wrong)
            else:
                chosen = asked.candidates[part, end]
                others = rows[torch.from_numpy(np.maximum(chosen, 0))]
                counts = torch.from_numpy(chosen >= 0)
            scores = _scores(kept, others, end, score)
            above = ((scores > own) & counts).sum(1) + 0.5 * ((scores == own) & counts).sum(1)
            unknown = own.isnan()[:, 0] | (scores.isnan() & counts).any(1)
            ranks[part, end] = torch.where(unknown, torch.nan, 1 + above.double()).numpy()
    return ranks


def _scores(kept: torch.Tensor, others: torch.Tensor, end: int, score: Score) -> torch.Tensor:
    """[b, K] scores of [b, 1, C] rows that stay with [b or 1, K, C] others in place of an end."""
    return score(kept, others) if end else score(others, kept)


def _known(known: Topology, links: NDArray[np.int64], end: int, num: int) -> NDArray[np.bool_]:
    """[b, V] the vertices that make a known edge in place of an end, and the ends themselves."""
    edges = known.transposed if end else known
    out = np.zeros((len(links), num), np.bool_)
    for i, kept in enumerate(links[:, 1 - end]):
        out[i, edges.indices[edges.indptr[kept] : edges.indptr[kept + 1]]] = True
    rows = np.arange(len(links))
    out[rows, links[:, 0]] = out[rows, links[:, 1]] = True
    return out
