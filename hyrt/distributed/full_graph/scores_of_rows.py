"""Distributed evaluation during full-graph training, from the matrices of training."""

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
    """Scores vertices with a forward pass of all ranks; see `hyrt.inference.shared_scores.SharedScores`.

    Parameters
    ----------
    grid
        The ranks.
    own
        Rows of this rank's block; its `homes` are blocks.
    group
        The ranks, for the thread that evaluates.
    otherwise
        Fallback if the graph is not on the devices yet, or if neighbours are sampled.
    agree
        Called by all ranks before each pass.
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
        self._local = own
        self._group = group
        self._fallback = otherwise
        self._agree = agree

    def scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        blocks = self._local.homes[vertices]
        self._agree()
        check()
        local_ids = self._local.places[vertices[blocks == self._grid.row]]
        # All replicas of the block compute its scores, and only one replica sends the scores.
        scores = scores_at(local_ids)
        if scores is None:
            return self._fallback.scores(model, vertices, workers, check)
        sent = scores if self._grid.column == 0 else scores[:0]
        return at_first(sent, blocks.astype(np.int64) * self._grid.replication, self._group)

    def tell(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        return self._fallback.tell(metrics)
