"""Protocol for evaluations by several processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Ids

Metrics = Mapping[str, Mapping[str, float]]


ScoresAt = Callable[[Ids], "NDArray[np.float32] | None"]
"""Function that returns the scores [n, C] of [n] vertices, or None."""


class DistributedScorer(Protocol):
    """Scorer shared by several processes; all processes call the same methods in the same order."""

    def compute_scores(
        self,
        model: torch.nn.Module,
        vertices: Ids,
        workers: Workers,
        check: Callable[[], None],
        scores_at: ScoresAt,
    ) -> NDArray[np.float32] | None:
        """Return the scores of vertices.

        Parameters
        ----------
        model
            The model, with equal weights in all processes.
        vertices
            [n] vertices, equal in all processes.
        workers
            Thread team.
        check
            Called regularly; may raise, in all processes at once.
        scores_at
            Returns scores that a device of this process has computed, or None.

        Returns
        -------
        [n, C] float32 in the process that computes the metrics; None in all others.
        """
        ...

    def broadcast_metrics(self, metrics: Metrics | None) -> dict[str, dict[str, float]]:
        """Broadcast the metrics; `metrics` is None except in the process that computed them."""
        ...
