"""A layer whose messages are all equal, so that gradients tell which edge has won."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from hyrt.nn import SagaLayer


class Tied(SagaLayer):
    """The largest of messages that are all exactly zero, and whose derivatives differ."""

    accumulate = "max"

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.near = nn.Linear(in_features, out_features)
        self.far = nn.Linear(in_features, out_features)

    def apply_edge(self, edge):
        near, far = self.near(edge.dst), self.far(edge.src)
        return (near - near.detach()) + (far - far.detach())

    def apply_vertex(self, vertex, gathered):
        return gathered


def first_edges_gradients(grad: Tensor, x: Tensor, indptr: Any, columns: Any) -> list[Tensor]:
    """The gradients of the layer's parameters where each vertex's first edge wins.

    Parameters
    ----------
    grad
        [n, out] float64, the gradient of what was gathered.
    x
        [m, in] float64 rows of the sources, the destinations first.
    indptr, columns
        The edges by destination.
    """
    there = np.flatnonzero(np.diff(indptr))
    given, own = grad[there], x[there]
    sources = x[np.asarray(columns)[np.asarray(indptr)[there]].astype(np.int64)]
    return [given.T @ own, given.sum(0), given.T @ sources, given.sum(0)]
