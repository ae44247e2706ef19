"""How several processes evaluate a model together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids

Metrics = Mapping[str, Mapping[str, float]]


ScoresAt = Callable[[Ids], "NDArray[np.float32] | None"]
"""Gives the scores [n, C] of [n] vertices, or None."""


class SharedScores(Protocol):
    """Scores vertices together with other processes, all of which call the same methods in the same order."""

    def scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        """The scores of some vertices.

        Parameters
        ----------
        model
            The model, with equal weights in all processes.
        vertices
            [n] the vertices, the same in all processes.
        workers
            The threads that compute.
        check
            Called now and then; it may raise, in all processes at once.
        scores_at
            Asked for the scores of rows that a device of this process computes; gives None where none does.

        Returns
        -------
        [n, C] float32 in one of the processes, which computes the metrics; None in the others.
        """
        ...

    def tell(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        """The metrics, in all processes; `metrics` are given by the one that has computed them."""
        ...
