"""Chunked steps on devices: the graph is cut so that chunks fit, and cut again if memory runs out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from hyrt_perfmodel.chunks.dealt_columns import least_parts

from hyrt.errors import DeviceOutOfMemory
from hyrt.fullgraph.chunks.chunk_kernels import ChunkKernels
from hyrt.fullgraph.chunks.chunk_options import ChunkOptions
from hyrt.fullgraph.chunks.chunked_replica import ChunkedReplica
from hyrt.fullgraph.chunks.chunked_step import ChunkedStep
from hyrt.fullgraph.chunks.filter_limits import measured_limit
from hyrt.fullgraph.chunks.row_chain import chains
from hyrt.fullgraph.chunks.together import Together
from hyrt.fullgraph.grid.least_grid import (
    ChunkGrid,
    ChunkSizes,
    asked_too_few,
    least_grid,
    most_intervals,
)
from hyrt.fullgraph.grid.place_sizes import given_width
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepKeeper
from hyrt.fullgraph.unfinished.step_progress import StepProgress
from hyrt.nn.description import ModelDescription
from hyrt.nn.inputs import Aggregated
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch


class ChunkRoom(Protocol):
    """Memory of a device for chunks."""

    name: str
    """Name of the device, for messages."""
    reads_in_place: bool
    """Whether the device reads host memory in place."""

    def free_bytes(self) -> int:
        """Return the bytes that chunks may take while none is allocated."""
        ...

    def reaches(self, other: ChunkRoom) -> bool:
        """Return whether rows can be copied directly from another device's memory, which is faster than from
        the host.
        """
        ...

    def needed_bytes(self, chunks: ChunkSizes) -> int:
        """Return the bytes that chunks of these sizes take; increases with the sizes."""
        ...

    def take(self, chunks: ChunkSizes) -> ChunkKernels:
        """Allocate the memory. Raises DeviceOutOfMemory."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Return a context in which any thread may compute, and driver errors that mean out of memory become
        DeviceOutOfMemory.
        """
        ...

    def release(self) -> None:
        """Free the memory once the device has finished using it; idempotent."""
        ...


class ChunkRuns:
    """Cuts the graph of the first step so that its chunks fit, and computes that step and the following ones.

    Parameters
    ----------
    model
        The model, with the device's copy of the parameters.
    rooms
        The memory of the device, or of each device that computes some of the columns.
    options
        Number of intervals and their order.
    budget
        Host memory limit.
    shares
        Relative speed of each device.
    keeper
        Writes mid-step checkpoints; None disables them. Steps of several processes have none.
    """

    def __init__(
        self,
        model: ModelDescription,
        rooms: Sequence[ChunkRoom],
        options: ChunkOptions,
        budget: HostBudget,
        shares: Sequence[float] = (1.0,),
        keeper: StepKeeper | None = None,
    ) -> None:
        self._model = model
        self._keeper = keeper
        self._rooms = rooms
        self._shares = shares
        self._options = options
        self._budget = budget
        self._host = RecycledMatrices(budget)
        # With fewer intervals, some devices would be idle.
        self._min_intervals = least_parts(tuple(shares))
        self._limits: list[float] = []
        self._ready: tuple[ChunkedReplica, Together] | None = None
        self._step_s = 0.0

    def figures(self) -> ChunkedStep:
        """Return the statistics of the last step."""
        assert self._ready is not None
        (chunked, together), host = self._ready, self._host
        stats, readers = [kernels.work() for kernels in together.kernels], chunked.readers
        names = [room.name for room in self._rooms]
        return ChunkedStep(
            intervals=chunked.grid.vertices.num,
            vertices=chunked.grid.vertices.longest,
            in_bytes=sum(work.in_bytes for work in stats),
            out_bytes=sum(work.out_bytes for work in stats),
            host_bytes=host.allocated_bytes,
            file_bytes=host.file_bytes,
            copy_s=sum(work.copy_s for work in stats),
            compute_s=sum(work.compute_s for work in stats),
            hidden_s=sum(work.hidden_s for work in stats),
            reads=sum(reader.reads for reader in readers),
            read_bytes=sum(reader.read_bytes for reader in readers),
            filtered=sum(reader.filtered for reader in readers),
            spared_bytes=sum(reader.spared_bytes for reader in readers),
            handed_bytes=sum(reader.handed_bytes for reader in readers),
            devices=len(readers),
            filter_s=sum(reader.filter_s for reader in readers),
            step_s=self._step_s,
            by_device={name: asdict(work) for name, work in zip(names, stats, strict=True)},
        )

    @property
    def num(self) -> int | None:
        """Return the number of vertex intervals; None before the first step."""
        return None if self._ready is None else self._ready[0].grid.vertices.num

    def run(self, batch: MiniBatch, objective: Objective | None) -> tuple[float, dict[str, float]]:
        """Compute a step and return its loss sum and counts; the kernels hold the gradient sums.

        If the device has less memory than it reports, the step is retried with smaller chunks.

        Parameters
        ----------
        batch
            A full-graph mini-batch with at least one target.
        objective
            The objective if the host computes the loss; None if the device does.

        Raises
        ------
        DeviceOutOfMemory
            If no chunks fit, or the requested number of intervals does not fit.
        StepStopped
            If the run is asked to stop; the completed part is saved.
        """
        assert batch.whole is not None
        keeper = None if batch.whole.is_shared else self._keeper
        checkpoint = None if keeper is None else keeper.begun(batch.blocks[0].step)
        if self._ready is not None:
            chunked = self._ready[0]
            if chunked.whole is not batch.whole or chunked.targets is not batch.targets:
                self.release()
        while True:
            grid = self._grid(batch, checkpoint) if self._ready is None else self._ready[0].grid
            allocated = False
            try:
                chunked, together = self._ready = self._ready or self._allocate(batch, grid)
                allocated = True
                plan = self._plan(chunked)
                if checkpoint is not None and plan != checkpoint.position.plan:
                    checkpoint = None
                if keeper is not None:
                    keeper.begins(plan, checkpoint)
                progress = StepProgress(len(self._rooms), chunked.num_passes, plan, keeper, checkpoint)
                started = time.perf_counter()
                totals = chunked.step(together, batch, objective, progress)
                self._step_s = time.perf_counter() - started
                return totals
            except DeviceOutOfMemory as error:
                self.release()
                checkpoint = None
                if self._options.num or grid.vertices.num == most_intervals(grid.vertices.num_rows):
                    raise
                self._min_intervals = 2 * grid.vertices.num
                if allocated and batch.whole.is_shared:
                    raise DeviceOutOfMemory(
                        f"{error} in a step of several ranks: one rank alone cannot repeat the step",
                        remedy=f"give fullgraph.chunks={self._min_intervals}",
                    ) from error

    def release(self) -> None:
        """Free all memory, on the device and on the host."""
        self._ready = None
        # Start a new pool: a failed step may not have released its matrices.
        self._host = RecycledMatrices(self._budget)
        for room in self._rooms:
            room.release()

    def _allocate(self, batch: MiniBatch, grid: ChunkGrid) -> tuple[ChunkedReplica, Together]:
        graph, kernels = batch.whole, []
        assert graph is not None
        for room in self._rooms:
            with room.errors():
                kernels.append(room.take(grid.sizes))
                if len(self._limits) < len(kernels):
                    self._limits.append(self._limit(room, kernels[-1], grid.sizes))
        chunked = ChunkedReplica(
            *(self._model, graph, batch.inputs, batch.targets, grid, self._options.order, self._host),
            shares=self._shares,
            limits=self._limits,
            chains=chains(len(self._rooms), lambda one, other: self._rooms[one].reaches(self._rooms[other])),
        )
        return chunked, Together(kernels, [room.errors for room in self._rooms])

    def _limit(self, room: ChunkRoom, kernels: ChunkKernels, sizes: ChunkSizes) -> float:
        """Return the useful fraction below which rows are filtered for a device."""
        if self._options.filter_below is not None:
            return self._options.filter_below
        if room.reads_in_place:
            return 0.0
        return measured_limit(kernels, sizes.vertices, given_width(self._model.layers[0]))

    def _plan(self, chunked: ChunkedReplica) -> dict[str, Any]:
        """Return all inputs that determine the passes of a step and the bits of its results."""
        return {
            "devices": [room.name for room in self._rooms],
            "shares": list(self._shares),
            "order": self._options.order,
            "intervals": chunked.grid.vertices.num,
            "vertices": chunked.grid.vertices.num_rows,
            "targets": chunked.grid.targets.num_rows,
            "edges": chunked.whole.topology.num_edges,
            "model": _describe_model(self._model),
        }

    def _grid(self, batch: MiniBatch, kept: KeptStep | None = None) -> ChunkGrid:
        """Cut vertices and targets as requested, or into the fewest intervals that fit and occupy every
        device.

        A checkpointed step is cut as before if that fits.
        """
        graph, topology = batch.whole, None if batch.whole is None else batch.whole.topology
        assert graph is not None
        assert topology is not None
        hidden = len(self._model.layers) - isinstance(batch.inputs, Aggregated) > 1
        targets = np.sort(batch.targets)
        free = [room.free_bytes() for room in self._rooms]
        remote = [] if graph.gatherings is None else list(graph.gatherings.travelling.waves)
        num_before = None if kept is None else kept.position.plan.get("intervals")
        if not self._options.num and isinstance(num_before, int) and 0 < num_before <= topology.num_vertices:
            grid_before = ChunkGrid.of(topology, targets, num_before, hidden=hidden)
            sizes = [room.needed_bytes(grid_before.sizes) for room in self._rooms]
            if all(size <= free_bytes for size, free_bytes in zip(sizes, free, strict=True)):
                return grid_before
        if not self._options.num:
            grid, num = None, self._min_intervals
            while grid is None or any(
                room.needed_bytes(grid.sizes) > free_bytes
                for room, free_bytes in zip(self._rooms, free, strict=True)
            ):
                for room, free_bytes in zip(self._rooms, free, strict=True):
                    grid = least_grid(
                        *(topology, targets, room.needed_bytes, free_bytes),
                        hidden=hidden,
                        remote=remote,
                        first=num,
                        device=room.name,
                    )
                    num = grid.vertices.num
            return grid
        num = min(self._options.num, topology.num_vertices - sum(remote))
        grid = ChunkGrid.of(topology, targets, num, hidden=hidden, remote=remote)
        for room, free_bytes in zip(self._rooms, free, strict=True):
            needed = room.needed_bytes(grid.sizes)
            if needed > free_bytes:
                raise asked_too_few(room.name, num, needed, free_bytes)
        return grid


def _describe_model(model: ModelDescription) -> list[Any]:
    """Describe what a model computes, as plain JSON values."""
    layers = [
        [
            repr(layer.aggregation),
            [[*product.weight.shape, product.bias is not None, product.relu] for product in layer.products],
            layer.dropout,
        ]
        for layer in model.layers
    ]
    return [model.input_dropout, layers]
