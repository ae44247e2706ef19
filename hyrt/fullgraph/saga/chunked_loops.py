"""Loops over edges on a device: matrices stay on the host, and rows of a few chunks are there at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.fullgraph.grid.edge_chunks import EdgeChunks
from hyrt.fullgraph.grid.least_grid import asked_too_few
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.saga.loop_grid import least_cut, needs_of
from hyrt.fullgraph.saga.loop_room import LoopRoom
from hyrt.fullgraph.saga.loop_run import LoopRun
from hyrt.machine.workers import Workers
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.edges import Edges

Array = NDArray[Any]

# Sets of edges that are kept in chunks: all and those into the targets, in both directions.
_KEPT = 4


@dataclass(slots=True)
class _Kept:
    """Edges in chunks, and what they were made of, lest other arrays get its place in memory."""

    edges: Edges
    chunks: EdgeChunks | None
    """None where all of them are one."""
    numbers: dict[str, Array] = field(default_factory=dict)
    """[E] the number of each edge in its place, where loops have asked for it, by their near end: a symmetric
    graph has the same edges for both."""


class ChunkedLoops:
    """`hyrt.nn.fused.loop_runner.LoopRunner` of a device (NeuGraph, section 3.1).

    Near rows are added to, far rows are read. Forward, destinations are near, so that chunks are read column
    by column; for the gradients of the sources, row by row. What is added to and does not stay on the device
    comes back to its place on the host.

    Parameters
    ----------
    room
        The device's memory and queue.
    options
        How many intervals there are to be, and their order.
    budget
        How much host memory edges in chunks may use.
    """

    def __init__(self, room: LoopRoom, options: ChunkOptions, budget: HostBudget) -> None:
        self._room = room
        self._options = options
        self._budget = budget
        self._host = RecycledMatrices(budget)
        self._least = 1
        self._kept: dict[tuple[int, ...], _Kept] = {}
        # Edges, and bytes of near and far rows, that fit in `_least` intervals.
        self._fits: set[tuple[tuple[int, ...], tuple[int, int]]] = set()
        self.num: int | None = None
        """Into how many intervals the vertices of a whole graph are cut; None before the first loop."""

    def __call__(
        self,
        loop: EdgeLoop,
        edges: Edges,
        operands: Sequence[Array],
        outs: Sequence[Array | None],
        winners: Array | None,
        workers: Workers | None,
    ) -> list[Array]:
        if operands[0].dtype != np.float32:
            raise ValueError(f"{self._room.name}: its loops are for float32, not {operands[0].dtype}")
        while True:
            run = LoopRun(self._room, loop, edges, operands, outs, winners)
            if run.is_empty:
                return run.nothing()
            kept = self._chunks(run)
            try:
                with self._room.errors():
                    return run.all(kept.chunks, self._options.order, self._numbers(run, kept))
            except DeviceOutOfMemory:
                num = self.num or 1
                if edges.by_number or self._options.num or num >= run.most_intervals:
                    raise
                self._grow(2 * num)
            finally:
                # After an error, with what the loop had taken.
                self._room.release()

    def release(self) -> None:
        """Give all memory back, on the device and on the host."""
        self._grow(self._least)
        self._room.release()

    def _grow(self, num: int) -> None:
        """Cut into more intervals from now on."""
        self._least = num
        self._kept.clear()
        self._fits.clear()
        self._host = RecycledMatrices(self._budget)

    def _chunks(self, run: LoopRun) -> _Kept:
        """The edges in chunks."""
        edges = run.edges
        if edges.by_number:
            return _Kept(edges, None)
        key = tuple(id(each) for each in (edges.indptr, edges.columns, edges.rows, edges.positions))
        self._choose(run, key)
        assert self.num is not None
        if key not in self._kept:
            while len(self._kept) >= _KEPT:
                oldest = next(iter(self._kept))
                if (chunks := self._kept.pop(oldest).chunks) is not None:
                    chunks.release(self._host)
                self._fits = {each for each in self._fits if each[0] != oldest}
            is_one = self.num == 1 and run.is_plain
            made = None if is_one else run.loop_edges.chunks(self.num, self._host)
            self._kept[key] = _Kept(edges, made)
        return self._kept[key]

    def _numbers(self, run: LoopRun, kept: _Kept) -> Array | None:
        """The number of each edge in the order of the chunks, where rows of edges are read."""
        if kept.chunks is None or not run.reads_edges:
            return run.edges.numbers
        if run.near not in kept.numbers:
            assert self.num is not None
            kept.numbers[run.near] = run.loop_edges.numbers_in_chunks(self.num)
        return kept.numbers[run.near]

    def _choose(self, run: LoopRun, key: tuple[int, ...]) -> None:
        """Into how many intervals vertices are cut: as asked for, or the least that has fitted so far."""
        free, asked = self._room.free_bytes(), self._options.num
        if key in self._kept and (key, run.row_bytes) in self._fits:
            return
        if asked:
            num = min(asked, run.most_intervals)
            needed = needs_of(run.loop_edges, run.needs, num)
            if needed > free:
                raise asked_too_few(self._room.name, num, needed, free)
        else:
            num = least_cut(run.loop_edges, run.needs, free, self._least)
            if num > self._least:
                self._grow(num)
        self.num = num
        self._fits.add((key, run.row_bytes))
