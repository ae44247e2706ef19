"""The edges into one rank's vertices, and what their sources' rows come with."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import Exchange
from hyrt.distributed.full_graph.handed_out import hand_out
from hyrt.distributed.full_graph.part_edges import PartEdges
from hyrt.distributed.full_graph.product_times import ProductTimes
from hyrt.distributed.rank_group import RankGroup
from hyrt.fullgraph.destinations import Destinations
from hyrt.quantities import one_line

Array = NDArray[Any]

ROWS = "rows"
GRADIENTS = "row gradients"
SUMS = "partial sums"
"""The purposes for which bytes are counted."""


@dataclass(frozen=True)
class SpreadEdges:
    """One rank's edges, and the other ranks."""

    edges: PartEdges
    """The edges."""
    exchange: Exchange
    """Brings the rows of remote vertices."""
    replicas: RankGroup | None
    """The ranks that have the same block, in the order of the grid's columns; None where there is one."""
    times: ProductTimes = field(default_factory=ProductTimes)
    """How long products take."""

    __repr__ = one_line

    @cached_property
    def own(self) -> Destinations:
        """The rank's vertices as those at which is gathered."""
        num, every = self.edges.num_own, self.edges.num_rows
        positions = np.full(every, -1, np.int32)
        positions[:num] = np.arange(num, dtype=np.int32)
        return Destinations(np.arange(num), positions, None)

    def with_room(self, matrix: Array) -> Array:
        """A matrix of own rows, [n, w] or with room for the others, with that room: [n + h, w]."""
        if len(matrix) == self.edges.num_rows:
            return matrix
        roomy = np.empty((self.edges.num_rows, matrix.shape[1]), matrix.dtype)
        roomy[: len(matrix)] = matrix
        return roomy

    def add_columns(self, sums: Array) -> None:
        """Add up what the columns of the grid have contributed to the rank's rows [n, w]."""
        if self.replicas is None:
            return
        lent = np.ascontiguousarray(sums)
        self.replicas.add(torch.from_numpy(lent), SUMS)
        if lent is not sums:
            sums[:] = lent

    def sum_of_columns(self, values: torch.Tensor) -> torch.Tensor:
        """What the columns of the grid have of a sum, of whatever shape, added up."""
        if self.replicas is None:
            return values
        lent = values.detach().contiguous().clone()
        self.replicas.add(lent, SUMS)
        return lent

    def from_multiplying(self, gradients: Array) -> Array:
        """The gradients of own rows [n, w] at all ranks that have them, from the one that multiplies with
        them; what the others give is overwritten.
        """
        if self.replicas is None:
            return gradients
        grid = self.edges.grid
        lent = np.ascontiguousarray(gradients)
        hand_out(lent, grid.column_of(grid.row), self.replicas, SUMS)
        return lent
