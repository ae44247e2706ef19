"""Evaluation where ranks train a whole graph: the scores come from the matrices of the training."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.rank_grid import RankGrid
from hyrt.distributed.rank_group import RankGroup
from hyrt.distributed.rows.own_rows import OwnRows
from hyrt.distributed.scores_by_home import ScoresByHome, at_first
from hyrt.inference.shared_scores import Metrics, ScoresAt
from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids


class ScoresOfRows:
    """Scores vertices by a forward pass of all ranks; see `hyrt.inference.shared_scores.SharedScores`.

    Parameters
    ----------
    grid
        The ranks.
    own
        The rows of this rank's block; homes are blocks.
    group
        The ranks, for the thread that evaluates.
    otherwise
        Scores where no device has the graph yet, or not all neighbours count.
    agree
        Called before each pass, by all ranks.
    """

    def __init__(
        self,
        grid: RankGrid,
        own: OwnRows,
        group: RankGroup,
        otherwise: ScoresByHome,
        agree: Callable[[], None],
    ) -> None:
        self._grid = grid
        self._own = own
        self._group = group
        self._otherwise = otherwise
        self._agree = agree

    def scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        blocks = self._own.homes[vertices]
        self._agree()
        check()
        mine = self._own.places[vertices[blocks == self._grid.row]]
        # All ranks that have the block compute its scores, and one of them tells.
        found = scores_at(mine)
        if found is None:
            return self._otherwise.scores(model, vertices, workers, check)
        told = found if self._grid.column == 0 else found[:0]
        return at_first(told, blocks.astype(np.int64) * self._grid.replication, self._group)

    def tell(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        return self._otherwise.tell(metrics)
