"""Naive migration strategy, in which models carry partial aggregates to the features, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.distributed.strategies.strategy import (
    REFUSED_WITHOUT_ROWS,
    InputBlock,
    Placement,
    Seeds,
    Traffic,
    place_without_migration,
    split_in_order,
)
from hyrt.sampling.block import Block


@dataclass(frozen=True, slots=True)
class NaiveMigrationStrategy:
    """Strategy in which models visit the owners of their input rows and then return (HopGNN section 3.2).

    At each rank, the local rows are added to the first layer's aggregates, which migrate to the next rank
    with the model and its gradient sums. When a model is back at its first rank, it has all aggregates, and
    needs no remote data for the later layers and the backward pass. Edges are not sent: every rank can sample
    them.

    Parameters
    ----------
    carries_sources
        Whether the model carries the visited input rows, because its first layer is not a sum of rows before
        any weight (attention, or a maximum).
    """

    carries_sources: bool = False
    name = "naive-migration"
    description = "models with partial aggregates, to every rank that has rows of their mini-batch and back"
    refuses = REFUSED_WITHOUT_ROWS
    draws_locally = False

    def place(self, seeds: Seeds) -> Placement:
        """Split the seeds in sampling order into one part per rank, where a model starts and ends
        its route.
        """
        return place_without_migration(split_in_order(len(seeds.owners), seeds.num_ranks), seeds.num_ranks)

    def traffic(self, placement: Placement, owners: NDArray[Any], sampled: InputBlock) -> Traffic:
        """Count each model's migrations, and the nonzero aggregates (or visited sources) that it carries."""
        num = placement.num_ranks
        models, partials = np.zeros((num, num), np.int64), np.zeros((num, num), np.int64)
        for model in range(num):
            positions = placement.positions_of_rank(model)
            if not len(positions):
                continue
            block = sampled(positions)
            assert block.sources is not None
            first = first_visits(block, owners, model, num)
            if self.carries_sources:
                first = (owners[block.sources].astype(np.int64) - model) % num
            location = model
            for offset in range(1, num):
                rank = (model + offset) % num
                if not (owners[block.sources] == rank).any():
                    continue
                models[location, rank] += 1
                partials[location, rank] += int((first < offset).sum())
                location = rank
            if location != model:
                models[location, model] += 1
                partials[location, model] += len(first)
        return replace(Traffic.zero(num), models=models, partials=partials)


def first_visits(block: Block, owners: NDArray[Any], start: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the first stop on a route from rank `start` that owns a source of each destination, [num_dst].

    Stops are int64 from 0 to N - 1. Each destination is also its own source. `owners` [V] are ranks.
    """
    assert block.sources is not None
    stops = (owners[block.sources].astype(np.int64) - start) % num_ranks
    first = stops[: block.num_dst].copy()
    rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    np.minimum.at(first, rows, stops[block.columns])
    return first
