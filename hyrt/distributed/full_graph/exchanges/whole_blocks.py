"""Sparsity-oblivious halo exchange: every rank receives all rows of the other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.distributed.full_graph.exchanges.exchange import Arrival, bytes_of
from hyrt.distributed.full_graph.part_edges import PartEdges
from hyrt.distributed.rank_group import Begun, RankGroup

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class _BroadcastBlock:
    """Block of rows that is broadcast."""

    number: int
    wave: int | None
    """Exchange round of the block; None for the rank's local block."""
    rows: slice


class WholeBlocks:
    """Broadcasts whole blocks, and sums their gradients at their owners.

    See `hyrt.distributed.full_graph.exchanges.exchange.Exchange`.

    Parameters
    ----------
    edges
        Edges of this rank, created with `oblivious`.
    group
        Ranks of its grid column, in the order of the grid's rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        grid = edges.grid
        self._group = group
        self._num_waves = grid.num_waves
        local_rows = slice(0, edges.num_own)
        blocks = (
            [_BroadcastBlock(grid.row, None, local_rows)]
            if grid.multiplies_own and grid.num_blocks > 1
            else []
        )
        for wave, (others, counts) in enumerate(zip(grid.waves, edges.block_counts, strict=True)):
            start = edges.wave_starts[wave]
            for other, count in zip(others, counts, strict=True):
                blocks.append(_BroadcastBlock(other, wave, slice(start, start + count)))
                start += count
        # All ranks must use the same order.
        self._blocks = sorted(blocks, key=lambda each: each.number)

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[Arrival]:
        waves: list[list[Begun]] = [[] for _ in range(self._num_waves)]
        for block in self._blocks:
            operation = self._group.begin_broadcast(bytes_of(matrix[block.rows]), block.number, purpose)
            # Wait for the local block in the first round: it must be sent before its rows may be written.
            waves[block.wave or 0].append(operation)
        return [_PendingGroup(operations) for operations in waves]

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> _ReducedGradients:
        return _ReducedGradients(self._group, self._blocks, self._num_waves, matrix, purpose)


@dataclass(frozen=True, slots=True)
class _PendingGroup:
    """Handle of several operations."""

    pending: Sequence[Begun]

    @property
    def ended_at(self) -> float | None:
        ends = [operation.ended_at for operation in self.pending]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def wait(self) -> None:
        for operation in self.pending:
            operation.wait()


@dataclass(slots=True)
class _ReducedGradients:
    """Handle of reduced gradients; see `hyrt.distributed.full_graph.exchanges.exchange.WayBack`."""

    group: RankGroup
    blocks: Sequence[_BroadcastBlock]
    num_waves: int
    matrix: Array
    purpose: str
    pending: list[Begun] = field(default_factory=list)
    sums: Array | None = None

    @property
    def ended_at(self) -> float | None:
        return _PendingGroup(self.pending).ended_at

    def send(self, wave: int) -> None:
        # All ranks must reduce the blocks in one order, but compute their parts in different orders.
        if wave + 1 < self.num_waves:
            return
        for block in self.blocks:
            rows = self.matrix[block.rows]
            if block.wave is None:
                rows = self.sums = np.zeros_like(rows)
            self.pending.append(self.group.begin_sum(torch.from_numpy(rows), block.number, self.purpose))

    def add(self, out: Array) -> None:
        for operation in self.pending:
            operation.wait()
        if self.sums is not None:
            np.add(out, self.sums, out=out)
