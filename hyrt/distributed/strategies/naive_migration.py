"""Models travel to the features layer by layer, with what they have aggregated so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.placement import Placement, drawn_pieces, stay
from hyrt.distributed.strategies.strategy import InputBlock, Roots
from hyrt.distributed.strategies.traffic import Traffic
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class NaiveMigration:
    """A model visits all ranks that have input rows of its mini-batch, and comes back (HopGNN section 3.2).

    At each rank the first layer's aggregates grow by the rows that are there; they travel with the model, and
    with the sums of its gradients, to the next. Back where it began, the model has all aggregates, and needs
    nothing else for the other layers and for the backward pass. The edges need not travel: every rank can
    sample them.

    Parameters
    ----------
    of_sources
        Whether the model carries the input rows that it has met, because its first layer is no sum of rows
        that come before any weight (attention, or a maximum).
    """

    of_sources: bool = False
    name = "naive-migration"
    description = "models with partial aggregates, to every rank that has rows of their mini-batch and back"
    draws_locally = False

    def place(self, roots: Roots) -> Placement:
        """The order drawn, cut into one piece a rank: where each model begins and ends."""
        return stay(drawn_pieces(len(roots.homes), roots.num_ranks), roots.num_ranks)

    def traffic(self, placement: Placement, homes: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Every model's round, with the first layer's destinations that have met a source, or the sources."""
        num = placement.num_ranks
        models, partials = np.zeros((num, num), np.int64), np.zeros((num, num), np.int64)
        for model in range(num):
            mine = placement.of_rank(model)
            if not len(mine):
                continue
            block = sampled(mine)
            assert block.sources is not None
            first = first_visits(block, homes, model, num)
            if self.of_sources:
                first = (homes[block.sources].astype(np.int64) - model) % num
            there = model
            for offset in range(1, num):
                rank = (model + offset) % num
                if not (homes[block.sources] == rank).any():
                    continue
                models[there, rank] += 1
                partials[there, rank] += int((first < offset).sum())
                there = rank
            if there != model:
                models[there, model] += 1
                partials[there, model] += len(first)
        return replace(Traffic.none(num), models=models, partials=partials)


def first_visits(block: Block, homes: NDArray[Any], start: int, num_ranks: int) -> NDArray[np.int64]:
    """At which stop of a round each destination meets its first source.

    Parameters
    ----------
    block
        The input's block; a destination is a source of its own.
    homes
        [V] the rank that has each vertex's features.
    start
        The rank at which the round begins.
    num_ranks
        The number of ranks.

    Returns
    -------
    [num_dst] int64, in 0..N-1.
    """
    assert block.sources is not None
    stops = (homes[block.sources].astype(np.int64) - start) % num_ranks
    first = stops[: block.num_dst].copy()
    rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    np.minimum.at(first, rows, stops[block.columns])
    return first
