"""Loops over edges on a device: matrices stay on the host, and rows of a few chunks are there at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
from hyrt_perfmodel.chunks.dealt_columns import dealt_columns, least_parts
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.fullgraph.chunks.chunked_step import ChunkedStep
from hyrt.fullgraph.chunks.together import run_together
from hyrt.fullgraph.grid.edge_chunks import EdgeChunks
from hyrt.fullgraph.grid.intervals import Cut, Intervals
from hyrt.fullgraph.grid.least_grid import asked_too_few
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.saga.host_loops import HostLoops
from hyrt.fullgraph.saga.loop_grid import least_cut, needs_of
from hyrt.fullgraph.saga.loop_room import LoopRoom
from hyrt.fullgraph.saga.loop_run import LoopRun
from hyrt.machine.workers import Workers
from hyrt.nn.fused.edge_loop import EdgeLoop
from hyrt.nn.fused.edges import Edges
from hyrt.nn.fused.loop_runner import loop_name
from hyrt.nn.fused.numba_loops import run_on_host

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


LoopMember = LoopRoom | HostLoops
"""What runs loops: a device, or a team of the host's threads, over rows that lie in memory."""


class ChunkedLoops:
    """`hyrt.nn.fused.loop_runner.LoopRunner` of a device, or of several (NeuGraph, section 3.1).

    Near rows are added to, far rows are read. Forward, destinations are near, so that chunks are read column
    by column; for the gradients of the sources, row by row. What is added to and does not stay on the device
    comes back to its place on the host.

    Several devices compute intervals of near rows each, dealt out by their shares: forward the destinations,
    for the gradients of the sources these (section 3.3). No two write the same row, and what is added up over
    all rows is added in the order of the devices.

    Parameters
    ----------
    members
        The devices.
    options
        How many intervals there are to be, and their order.
    budget
        How much host memory edges in chunks may use.
    shares
        How fast each device is, in any unit.
    """

    def __init__(
        self,
        members: Sequence[LoopMember],
        options: ChunkOptions,
        budget: HostBudget,
        shares: Sequence[float] = (1.0,),
    ) -> None:
        self._members = members
        self._rooms = [each for each in members if not isinstance(each, HostLoops)]
        self._shares = tuple(shares)
        self._options = options
        self._budget = budget
        self._host = RecycledMatrices(budget)
        # With fewer, some devices would have nothing to do.
        self._least = least_parts(self._shares)
        self._kept: dict[tuple[int, ...], _Kept] = {}
        # Edges, and bytes of near and far rows, that fit in `_least` intervals.
        self._fits: set[tuple[tuple[int, ...], tuple[int, int]]] = set()
        self._rows = 0
        # Bytes to each device and from it, by its name.
        self._copied: dict[str, tuple[int, int]] = {}
        self.begin()
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
            raise ValueError(f"loops of devices are for float32, not {operands[0].dtype}")
        about = loop_name()
        runs = [LoopRun(room, loop, edges, operands, outs, winners, about) for room in self._rooms]
        if any(run.is_empty for run in runs):
            return runs[0].nothing()
        on_host = partial(run_on_host, loop, edges, operands, outs, winners)
        self._rows = max(self._rows, len(edges.indptr) - 1)
        while True:
            cut, numbers = None, edges.numbers
            num_near = len(edges.indptr) - 1 if edges.rows is None else len(edges.rows)
            if runs:
                kept = self._chunks(runs)
                cut, numbers = kept.chunks, self._numbers(runs[0], kept)
            else:
                self.num = max(1, min(self._options.num or self._least, num_near))
            near: Cut = Intervals(num_near, min(self.num or 1, num_near)) if cut is None else cut.rows
            try:
                into = f"{about or 'loop'}, into {loop.near}s"
                return self._all(runs, on_host, cut, near, numbers, into)
            except DeviceOutOfMemory:
                num = self.num or 1
                if edges.by_number or self._options.num or num >= runs[0].most_intervals:
                    raise
                self._grow(2 * num)
            finally:
                # After an error, with what the loop had taken.
                for room, run in zip(self._rooms, runs, strict=True):
                    room.release()
                    in_bytes, out_bytes = self._copied.get(room.name, (0, 0))
                    self._copied[room.name] = in_bytes + run.in_bytes, out_bytes + run.out_bytes

    def _all(
        self,
        runs: Sequence[LoopRun],
        on_host: Callable[..., list[Array]],
        cut: EdgeChunks | None,
        near: Cut,
        numbers: Array | None,
        into: str,
    ) -> list[Array]:
        """Run a loop on all devices; what is added up over all rows. `into` names it."""
        if len(self._members) == 1 and runs:
            with self._rooms[0].errors():
                return runs[0].all(cut, self._options.order, numbers)
        of_rooms = iter(runs)
        found: list[list[Array]] = [[] for _ in self._members]

        def part(member: int, run: LoopRun | None, columns: Sequence[int]) -> None:
            device = self._members[member]
            if isinstance(device, HostLoops):
                each = []
                for column in columns:
                    with device.running(f"edge_loop, {into}, interval {column + 1} of {near.num}"):
                        each.append(on_host(device.workers, between=near.range(column)))
                found[member] = [_sum(terms) for terms in zip(*each, strict=True)]
            elif run is not None and columns:
                with device.errors():
                    found[member] = run.all(cut, self._options.order, numbers, columns)

        dealt = dealt_columns(near.num, self._shares)
        run_together(
            [
                partial(part, member, None if isinstance(device, HostLoops) else next(of_rooms), columns)
                for member, (device, columns) in enumerate(zip(self._members, dealt, strict=True))
            ]
        )
        return [_sum(terms) for terms in zip(*(each for each in found if each), strict=True)]

    @property
    def least(self) -> int:
        """Into how many intervals the longer end is cut at the least; it grows with what has not fitted."""
        return self._least

    def cut_at_least(self, num: int) -> None:
        """Cut into so many intervals or more."""
        if num > self._least:
            self._grow(num)

    def begin(self) -> None:
        """Count from here on."""
        self._rows = 0
        self._copied = {}
        self._started = time.perf_counter()
        for member in self._members:
            member.begin()

    def figures(self, host_bytes: int, file_bytes: int) -> ChunkedStep | None:
        """What the loops since `begin` took; None where there were none.

        Parameters
        ----------
        host_bytes, file_bytes
            Bytes of what the host keeps of the model's rows, and of these what lives in a file.
        """
        if self.num is None or not self._rows:
            return None
        works = {}
        for member in self._members:
            in_bytes, out_bytes = self._copied.get(member.name, (0, 0))
            works[member.name] = replace(member.work(), in_bytes=in_bytes, out_bytes=out_bytes)
        return ChunkedStep(
            intervals=self.num,
            vertices=-(-self._rows // self.num),
            in_bytes=sum(work.in_bytes for work in works.values()),
            out_bytes=sum(work.out_bytes for work in works.values()),
            host_bytes=host_bytes + self._host.allocated_bytes,
            file_bytes=file_bytes + self._host.file_bytes,
            copy_s=sum(work.copy_s for work in works.values()),
            compute_s=sum(work.compute_s for work in works.values()),
            hidden_s=sum(work.hidden_s for work in works.values()),
            devices=len(works),
            step_s=time.perf_counter() - self._started,
            by_device={name: asdict(work) for name, work in works.items()},
        )

    def release(self) -> None:
        """Give all memory back, on the devices and on the host."""
        self._grow(self._least)
        for room in self._rooms:
            room.release()

    def _grow(self, num: int) -> None:
        """Cut into more intervals from now on."""
        self._least = num
        self._kept.clear()
        self._fits.clear()
        self._host = RecycledMatrices(self._budget)

    def _chunks(self, runs: Sequence[LoopRun]) -> _Kept:
        """The edges in chunks."""
        run, edges = runs[0], runs[0].edges
        if edges.by_number:
            return _Kept(edges, None)
        key = tuple(id(each) for each in (edges.indptr, edges.columns, edges.rows, edges.positions))
        self._choose(runs, key)
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

    def _choose(self, runs: Sequence[LoopRun], key: tuple[int, ...]) -> None:
        """Into how many intervals vertices are cut: as asked for, or the least that has fitted so far."""
        run, asked = runs[0], self._options.num
        if key in self._kept and (key, run.row_bytes) in self._fits:
            return
        if asked:
            num = min(asked, run.most_intervals)
            for each, room in zip(runs, self._rooms, strict=True):
                needed, free = needs_of(run.loop_edges, each.needs, num), room.free_bytes()
                if needed > free:
                    raise asked_too_few(room.name, num, needed, free)
        else:
            num = self._least
            for each, room in zip(runs, self._rooms, strict=True):
                num = least_cut(run.loop_edges, each.needs, room.free_bytes(), num, room.name)
            if num > self._least:
                self._grow(num)
        self.num = num
        self._fits.add((key, run.row_bytes))


def _sum(terms: Sequence[Array]) -> Array:
    """Numbers of several devices, added in their order."""
    return reduce(np.add, terms)
