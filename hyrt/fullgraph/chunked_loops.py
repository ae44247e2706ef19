"""Loop backend that keeps matrices on the host and only a few chunks of rows on one or several devices."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from typing import Any

import numpy as np
from hyrt_perfmodel.chunk_schedule import assign_columns, min_parts_for_speeds
from numpy.typing import NDArray

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.fullgraph.chunk_grid import EdgeChunks, too_few_intervals_error
from hyrt.fullgraph.chunk_kernels import run_in_threads
from hyrt.fullgraph.chunk_stats import ChunkedStep
from hyrt.fullgraph.intervals import ChunkOptions, Intervals, RowIntervals
from hyrt.fullgraph.loop_device import HostLoops, LoopDevice, grid_bytes, min_loop_intervals
from hyrt.fullgraph.loop_run import LoopRun
from hyrt.fullgraph.matrix_pool import HostMemoryBudget, MatrixPool
from hyrt.nn.fused.edge_loop import EdgeLoop, Edges
from hyrt.nn.fused.loop_backend import loop_name, run_on_host
from hyrt.runtime.workers import Workers

Array = NDArray[Any]

# Maximum number of cached edge sets: all edges and the edges into the targets, in both directions.
_MAX_CACHED = 4


@dataclass(slots=True)
class _CachedEdges:
    """Edges in chunks, with the source arrays, which must stay alive because their ids are the cache key."""

    edges: Edges
    chunks: EdgeChunks | None
    """Chunks of the edges; None if all edges are one chunk."""
    numbers: dict[str, Array] = field(default_factory=dict)
    """Edge numbers in chunk order, [E], by near end: a symmetric graph has the same edges at both ends."""


LoopMember = LoopDevice | HostLoops
"""Device, or team of host threads, that runs loops."""


class ChunkedLoops:
    """`hyrt.nn.fused.loop_backend.LoopBackend` of one or several devices (NeuGraph, section 3.1).

    Near rows are accumulated, and far rows are read. In the forward pass, destinations are near, and chunks
    are processed column by column; for gradients of sources, row by row. Accumulated rows that do not stay on
    the device are written back to the host.

    If there are several devices, each one computes some intervals of near rows, in proportion to its relative
    speed in `shares` (section 3.3). No two devices write the same row. Totals over all rows are summed in the
    order of the devices. `budget` limits the host memory of the chunked edges.
    """

    def __init__(
        self,
        members: Sequence[LoopMember],
        options: ChunkOptions,
        budget: HostMemoryBudget,
        shares: Sequence[float] = (1.0,),
    ) -> None:
        self._members = members
        self._devices = [each for each in members if not isinstance(each, HostLoops)]
        self._shares = tuple(shares)
        self._options = options
        self._budget = budget
        self._host = MatrixPool(budget)
        # With fewer intervals, some devices would have no work.
        self._min_intervals = min_parts_for_speeds(self._shares)
        self._cached: dict[tuple[int, ...], _CachedEdges] = {}
        # Edge sets, with bytes per row, for which `_min_intervals` intervals are known to fit.
        self._fits: set[tuple[tuple[int, ...], tuple[int, int]]] = set()
        self._rows = 0
        # Bytes copied to and from each device, by device name.
        self._copied: dict[str, tuple[int, int]] = {}
        self.reset_stats()
        self.num: int | None = None
        """Number of vertex intervals of the full graph; None before the first loop."""

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
            raise ValueError(f"edge loops on devices require float32, got {operands[0].dtype}")
        about = loop_name()
        runs = [LoopRun(device, loop, edges, operands, outs, winners, about) for device in self._devices]
        if any(run.is_empty for run in runs):
            return runs[0].run_empty()
        on_host = partial(run_on_host, loop, edges, operands, outs, winners)
        self._rows = max(self._rows, len(edges.indptr) - 1)
        while True:
            cut, numbers = None, edges.numbers
            num_near = len(edges.indptr) - 1 if edges.rows is None else len(edges.rows)
            if runs:
                cached = self._chunks(runs)
                cut, numbers = cached.chunks, self._numbers(runs[0], cached)
            else:
                self.num = max(1, min(self._options.num or self._min_intervals, num_near))
            near: RowIntervals = (
                Intervals(num_near, min(self.num or 1, num_near)) if cut is None else cut.rows
            )
            try:
                into = f"{about or 'loop'}, into {loop.near}s"
                return self._all(runs, on_host, cut, near, numbers, into)
            except DeviceOutOfMemoryError:
                num = self.num or 1
                if edges.by_number or self._options.num or num >= runs[0].max_intervals:
                    raise
                self._grow(2 * num)
            finally:
                # Free the loop's memory even after an error.
                for device, run in zip(self._devices, runs, strict=True):
                    device.release()
                    in_bytes, out_bytes = self._copied.get(device.name, (0, 0))
                    self._copied[device.name] = in_bytes + run.in_bytes, out_bytes + run.out_bytes

    def _all(
        self,
        runs: Sequence[LoopRun],
        on_host: Callable[..., list[Array]],
        cut: EdgeChunks | None,
        near: RowIntervals,
        numbers: Array | None,
        into: str,
    ) -> list[Array]:
        """Run a loop on all devices and return the totals over all rows; `into` is its trace label."""
        if len(self._members) == 1 and runs:
            with self._devices[0].translate_errors():
                return runs[0].run(cut, self._options.order, numbers)
        remaining_runs = iter(runs)
        found: list[list[Array]] = [[] for _ in self._members]

        def part(member: int, run: LoopRun | None, columns: Sequence[int]) -> None:
            device = self._members[member]
            if isinstance(device, HostLoops):
                each = []
                for column in columns:
                    with device.record_loop(f"edge_loop, {into}, interval {column + 1} of {near.num}"):
                        each.append(on_host(device.workers, between=near.range(column)))
                found[member] = [_sum(terms) for terms in zip(*each, strict=True)]
            elif run is not None and columns:
                with device.translate_errors():
                    found[member] = run.run(cut, self._options.order, numbers, columns)

        columns_per_device = assign_columns(near.num, self._shares)
        run_in_threads(
            [
                partial(
                    part, member, None if isinstance(device, HostLoops) else next(remaining_runs), columns
                )
                for member, (device, columns) in enumerate(
                    zip(self._members, columns_per_device, strict=True)
                )
            ]
        )
        return [_sum(terms) for terms in zip(*(each for each in found if each), strict=True)]

    @property
    def min_intervals(self) -> int:
        """Minimum number of intervals of the longer end, which grows if memory runs out."""
        return self._min_intervals

    def raise_min_intervals(self, num: int) -> None:
        """Raise the minimum number of intervals."""
        if num > self._min_intervals:
            self._grow(num)

    def reset_stats(self) -> None:
        self._rows = 0
        self._copied = {}
        self._started = time.perf_counter()
        for member in self._members:
            member.reset_stats()

    def step_stats(self, host_bytes: int, file_bytes: int) -> ChunkedStep | None:
        """Return the statistics of the loops since `reset_stats`; None if there were none.

        `host_bytes` are the bytes of the model's rows on the host, of which `file_bytes` are in files.
        """
        if self.num is None or not self._rows:
            return None
        works = {}
        for member in self._members:
            in_bytes, out_bytes = self._copied.get(member.name, (0, 0))
            works[member.name] = replace(member.stats(), in_bytes=in_bytes, out_bytes=out_bytes)
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
        """Free all memory, on the devices and on the host."""
        self._grow(self._min_intervals)
        for device in self._devices:
            device.release()

    def _grow(self, num: int) -> None:
        """Use at least `num` intervals from now on."""
        self._min_intervals = num
        self._cached.clear()
        self._fits.clear()
        self._host = MatrixPool(self._budget)

    def _chunks(self, runs: Sequence[LoopRun]) -> _CachedEdges:
        run, edges = runs[0], runs[0].edges
        if edges.by_number:
            return _CachedEdges(edges, None)
        key = tuple(id(each) for each in (edges.indptr, edges.columns, edges.rows, edges.positions))
        self._choose(runs, key)
        assert self.num is not None
        if key not in self._cached:
            while len(self._cached) >= _MAX_CACHED:
                oldest = next(iter(self._cached))
                if (chunks := self._cached.pop(oldest).chunks) is not None:
                    chunks.release(self._host)
                self._fits = {each for each in self._fits if each[0] != oldest}
            is_one = self.num == 1 and run.is_plain
            chunks = None if is_one else run.loop_edges.chunks(self.num, self._host)
            self._cached[key] = _CachedEdges(edges, chunks)
        return self._cached[key]

    def _numbers(self, run: LoopRun, cached: _CachedEdges) -> Array | None:
        """Return the edge numbers in chunk order if loops read rows of edges."""
        if cached.chunks is None or not run.reads_edges:
            return run.edges.numbers
        if run.near not in cached.numbers:
            assert self.num is not None
            cached.numbers[run.near] = run.loop_edges.numbers_in_chunks(self.num)
        return cached.numbers[run.near]

    def _choose(self, runs: Sequence[LoopRun], key: tuple[int, ...]) -> None:
        """Choose the number of intervals: as configured, or the smallest that fits, given the minimum."""
        run, requested = runs[0], self._options.num
        if key in self._cached and (key, run.row_bytes) in self._fits:
            return
        if requested:
            num = min(requested, run.max_intervals)
            for each, device in zip(runs, self._devices, strict=True):
                needed, free = grid_bytes(run.loop_edges, each.required_bytes, num), device.free_bytes()
                if needed > free:
                    raise too_few_intervals_error(device.name, num, needed, free)
        else:
            num = self._min_intervals
            for each, device in zip(runs, self._devices, strict=True):
                num = min_loop_intervals(
                    run.loop_edges, each.required_bytes, device.free_bytes(), num, device.name
                )
            if num > self._min_intervals:
                self._grow(num)
        self.num = num
        self._fits.add((key, run.row_bytes))


def _sum(terms: Sequence[Array]) -> Array:
    """Sum the totals of several devices in device order."""
    return reduce(np.add, terms)
