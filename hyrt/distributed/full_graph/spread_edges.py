"""Edges into one rank's vertices, with the halo exchange of their source rows."""

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
"""Purposes for the byte counters."""


@dataclass(frozen=True)
class SpreadEdges:
    """Edges of one rank, with the communication to the other ranks."""

    edges: PartEdges
    """Renumbered edges."""
    exchange: Exchange
    """Exchange of remote rows."""
    replicas: RankGroup | None
    """Ranks that have the same block, in the order of the grid's columns; None without replication."""
    times: ProductTimes = field(default_factory=ProductTimes)
    """Timings of products."""

    __repr__ = one_line

    @cached_property
    def own(self) -> Destinations:
        """Local vertices, as gather destinations."""
        num, num_rows = self.edges.num_own, self.edges.num_rows
        positions = np.full(num_rows, -1, np.int32)
        positions[:num] = np.arange(num, dtype=np.int32)
        return Destinations(np.arange(num), positions, None)

    def with_room(self, matrix: Array) -> Array:
        """Return a matrix of local rows, [n, w] or [n + h, w], with space for the halo rows, [n + h, w]."""
        if len(matrix) == self.edges.num_rows:
            return matrix
        padded = np.empty((self.edges.num_rows, matrix.shape[1]), matrix.dtype)
        padded[: len(matrix)] = matrix
        return padded

    def add_columns(self, sums: Array) -> None:
        """Sum the contributions of the grid's columns to the rank's rows [n, w], in place."""
        if self.replicas is None:
            return
        buffer = np.ascontiguousarray(sums)
        self.replicas.add(torch.from_numpy(buffer), SUMS)
        if buffer is not sums:
            sums[:] = buffer

    def sum_of_columns(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor of any shape over the grid's columns."""
        if self.replicas is None:
            return values
        buffer = values.detach().contiguous().clone()
        self.replicas.add(buffer, SUMS)
        return buffer

    def from_multiplying(self, gradients: Array) -> Array:
        """Return the gradients of local rows [n, w] from the replica that multiplies with these rows.

        The gradients of the other replicas are overwritten.
        """
        if self.replicas is None:
            return gradients
        grid = self.edges.grid
        buffer = np.ascontiguousarray(gradients)
        hand_out(buffer, grid.column_of(grid.row), self.replicas, SUMS)
        return buffer
