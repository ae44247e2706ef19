"""Sparsity-oblivious exchange: every rank gets all rows of the others, whether it needs them or not."""

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
class _Block:
    """A block of rows that is broadcast."""

    number: int
    wave: int | None
    """The exchange that brings it; None for the rank's own."""
    rows: slice


class WholeBlocks:
    """Broadcasts blocks, and adds their gradients up where they are.

    See `hyrt.distributed.full_graph.exchanges.exchange.Exchange`.

    Parameters
    ----------
    edges
        The edges of this rank, made with `oblivious`.
    group
        The ranks of its column of the grid, in the order of the grid's rows.
    """

    def __init__(self, edges: PartEdges, group: RankGroup) -> None:
        grid = edges.grid
        self._group = group
        self._num_waves = grid.num_waves
        own = slice(0, edges.num_own)
        blocks = [_Block(grid.row, None, own)] if grid.multiplies_own and grid.num_blocks > 1 else []
        for wave, (others, counts) in enumerate(zip(grid.waves, edges.block_counts, strict=True)):
            start = edges.wave_starts[wave]
            for other, count in zip(others, counts, strict=True):
                blocks.append(_Block(other, wave, slice(start, start + count)))
                start += count
        # In an order that is the same at all ranks.
        self._blocks = sorted(blocks, key=lambda each: each.number)

    def begin(self, matrix: Array, purpose: str, slot: int = 0) -> list[Arrival]:
        waves: list[list[Begun]] = [[] for _ in range(self._num_waves)]
        for block in self._blocks:
            begun = self._group.begin_broadcast(bytes_of(matrix[block.rows]), block.number, purpose)
            # Own rows have left before they may be written.
            waves[block.wave or 0].append(begun)
        return [_Several(each) for each in waves]

    def begin_back(self, matrix: Array, purpose: str, slot: int = 0) -> _Adding:
        return _Adding(self._group, self._blocks, self._num_waves, matrix, purpose)


@dataclass(frozen=True, slots=True)
class _Several:
    """Arrivals of which all are waited for."""

    begun: Sequence[Begun]

    @property
    def ended_at(self) -> float | None:
        ends = [each.ended_at for each in self.begun]
        return None if None in ends else max((end for end in ends if end is not None), default=0.0)

    def wait(self) -> None:
        for each in self.begun:
            each.wait()


@dataclass(slots=True)
class _Adding:
    """See `hyrt.distributed.full_graph.exchanges.exchange.WayBack`."""

    group: RankGroup
    blocks: Sequence[_Block]
    num_waves: int
    matrix: Array
    purpose: str
    begun: list[Begun] = field(default_factory=list)
    sums: Array | None = None

    @property
    def ended_at(self) -> float | None:
        return _Several(self.begun).ended_at

    def send(self, wave: int) -> None:
        # All ranks add blocks up in one order, which is not that in which each of them has computed its part.
        if wave + 1 < self.num_waves:
            return
        for block in self.blocks:
            rows = self.matrix[block.rows]
            if block.wave is None:
                rows = self.sums = np.zeros_like(rows)
            self.begun.append(self.group.begin_sum(torch.from_numpy(rows), block.number, self.purpose))

    def add(self, out: Array) -> None:
        for each in self.begun:
            each.wait()
        if self.sums is not None:
            np.add(out, self.sums, out=out)
