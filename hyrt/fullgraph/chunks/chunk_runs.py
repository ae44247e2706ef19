"""Steps in chunks on a device: the graph is cut so that it fits, and again if it does not after all."""

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
    """A device's memory for chunks."""

    name: str
    """The device's name, for messages."""
    reads_in_place: bool
    """Whether the device reads the host's memory where it lies."""

    def free_bytes(self) -> int:
        """How much chunks may take, while none of them is there."""
        ...

    def reaches(self, other: ChunkRoom) -> bool:
        """Whether rows are copied straight out of the memory of another device, and so come sooner than from
        the host.
        """
        ...

    def needed_bytes(self, chunks: ChunkSizes) -> int:
        """What chunks of such sizes take; more for larger ones."""
        ...

    def take(self, chunks: ChunkSizes) -> ChunkKernels:
        """Take the memory. Raises DeviceOutOfMemory."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """A context in which any thread may compute, and errors of the driver that mean a lack of memory are
        DeviceOutOfMemory.
        """
        ...

    def release(self) -> None:
        """Give the memory back, once nothing on the device uses it any more; idempotent."""
        ...


class ChunkRuns:
    """Cuts the graph of the first step so that its chunks fit, and computes that step and those after it.

    Parameters
    ----------
    model
        The model, with the device's own parameters.
    rooms
        The memory of the device, or of each one that computes some of the columns.
    options
        How many chunks there are to be, and their order.
    budget
        How much host memory may be used.
    shares
        How fast each of the devices is, in any unit.
    keeper
        Keeps what is done of a long step; None keeps nothing. Nothing is kept of a step of several processes.
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
        # With fewer, some devices would have nothing to do.
        self._least = least_parts(tuple(shares))
        self._limits: list[float] = []
        self._ready: tuple[ChunkedReplica, Together] | None = None
        self._step_s = 0.0

    def figures(self) -> ChunkedStep:
        """What the last step took."""
        assert self._ready is not None
        (chunked, together), host = self._ready, self._host
        each, readers = [kernels.work() for kernels in together.kernels], chunked.readers
        names = [room.name for room in self._rooms]
        return ChunkedStep(
            intervals=chunked.grid.vertices.num,
            vertices=chunked.grid.vertices.longest,
            in_bytes=sum(work.in_bytes for work in each),
            out_bytes=sum(work.out_bytes for work in each),
            host_bytes=host.allocated_bytes,
            file_bytes=host.file_bytes,
            copy_s=sum(work.copy_s for work in each),
            compute_s=sum(work.compute_s for work in each),
            hidden_s=sum(work.hidden_s for work in each),
            reads=sum(reader.reads for reader in readers),
            read_bytes=sum(reader.read_bytes for reader in readers),
            filtered=sum(reader.filtered for reader in readers),
            spared_bytes=sum(reader.spared_bytes for reader in readers),
            handed_bytes=sum(reader.handed_bytes for reader in readers),
            devices=len(readers),
            filter_s=sum(reader.filter_s for reader in readers),
            step_s=self._step_s,
            by_device={name: asdict(work) for name, work in zip(names, each, strict=True)},
        )

    @property
    def num(self) -> int | None:
        """How many intervals the vertices are cut into; None before the first step."""
        return None if self._ready is None else self._ready[0].grid.vertices.num

    def run(self, batch: MiniBatch, objective: Objective | None) -> tuple[float, dict[str, float]]:
        """Loss sum and counts of a step; the kernels have added up the gradients.

        Where the device has less memory than it says, the step is computed again in smaller chunks.

        Parameters
        ----------
        batch
            A mini-batch of the whole graph, with at least one target.
        objective
            What the host computes of the scores; None for what the device computes.

        Raises
        ------
        DeviceOutOfMemory
            If no chunks fit, or not those that were asked for.
        StepStopped
            If the run is asked to stop; what is done is kept.
        """
        assert batch.whole is not None
        keeper = None if batch.whole.is_shared else self._keeper
        kept = None if keeper is None else keeper.begun(batch.blocks[0].step)
        if self._ready is not None:
            chunked = self._ready[0]
            if chunked.whole is not batch.whole or chunked.targets is not batch.targets:
                self.release()
        while True:
            grid = self._grid(batch, kept) if self._ready is None else self._ready[0].grid
            begun = False
            try:
                chunked, together = self._ready = self._ready or self._made(batch, grid)
                begun = True
                plan = self._plan(chunked)
                if kept is not None and plan != kept.position.plan:
                    kept = None
                if keeper is not None:
                    keeper.begins(plan, kept)
                progress = StepProgress(len(self._rooms), chunked.num_passes, plan, keeper, kept)
                started = time.perf_counter()
                found = chunked.step(together, batch, objective, progress)
                self._step_s = time.perf_counter() - started
                return found
            except DeviceOutOfMemory as error:
                self.release()
                kept = None
                if self._options.num or grid.vertices.num == most_intervals(grid.vertices.num_rows):
                    raise
                self._least = 2 * grid.vertices.num
                if begun and batch.whole.is_shared:
                    raise DeviceOutOfMemory(
                        f"{error} in a step of several ranks: one rank alone cannot repeat the step",
                        remedy=f"give fullgraph.chunks={self._least}",
                    ) from error

    def release(self) -> None:
        """Give all memory back, on the device and on the host."""
        self._ready = None
        # With what a step that failed had taken.
        self._host = RecycledMatrices(self._budget)
        for room in self._rooms:
            room.release()

    def _made(self, batch: MiniBatch, grid: ChunkGrid) -> tuple[ChunkedReplica, Together]:
        whole, kernels = batch.whole, []
        assert whole is not None
        for room in self._rooms:
            with room.errors():
                kernels.append(room.take(grid.sizes))
                if len(self._limits) < len(kernels):
                    self._limits.append(self._limit(room, kernels[-1], grid.sizes))
        chunked = ChunkedReplica(
            *(self._model, whole, batch.inputs, batch.targets, grid, self._options.order, self._host),
            shares=self._shares,
            limits=self._limits,
            chains=chains(len(self._rooms), lambda one, other: self._rooms[one].reaches(self._rooms[other])),
        )
        return chunked, Together(kernels, [room.errors for room in self._rooms])

    def _limit(self, room: ChunkRoom, kernels: ChunkKernels, sizes: ChunkSizes) -> float:
        """The useful fraction below which rows are filtered for a device."""
        if self._options.filter_below is not None:
            return self._options.filter_below
        if room.reads_in_place:
            return 0.0
        return measured_limit(kernels, sizes.vertices, given_width(self._model.layers[0]))

    def _plan(self, chunked: ChunkedReplica) -> dict[str, Any]:
        """What the passes and the columns of a step depend on, and all bits of what they compute."""
        return {
            "devices": [room.name for room in self._rooms],
            "shares": list(self._shares),
            "order": self._options.order,
            "intervals": chunked.grid.vertices.num,
            "vertices": chunked.grid.vertices.num_rows,
            "targets": chunked.grid.targets.num_rows,
            "edges": chunked.whole.topology.num_edges,
            "model": _told(self._model),
        }

    def _grid(self, batch: MiniBatch, kept: KeptStep | None = None) -> ChunkGrid:
        """Vertices and targets, cut as asked for, or as few times as fit every device and occupy all.

        A step of which something is kept is cut as it was before, where that fits.
        """
        whole, topology = batch.whole, None if batch.whole is None else batch.whole.topology
        assert whole is not None
        assert topology is not None
        hidden = len(self._model.layers) - isinstance(batch.inputs, Aggregated) > 1
        targets = np.sort(batch.targets)
        free = [room.free_bytes() for room in self._rooms]
        remote = [] if whole.gatherings is None else list(whole.gatherings.travelling.waves)
        before = None if kept is None else kept.position.plan.get("intervals")
        if not self._options.num and isinstance(before, int) and 0 < before <= topology.num_vertices:
            as_before = ChunkGrid.of(topology, targets, before, hidden=hidden)
            sizes = [room.needed_bytes(as_before.sizes) for room in self._rooms]
            if all(size <= least for size, least in zip(sizes, free, strict=True)):
                return as_before
        if not self._options.num:
            grid, num = None, self._least
            while grid is None or any(
                room.needed_bytes(grid.sizes) > least for room, least in zip(self._rooms, free, strict=True)
            ):
                for room, least in zip(self._rooms, free, strict=True):
                    grid = least_grid(
                        *(topology, targets, room.needed_bytes, least),
                        hidden=hidden,
                        remote=remote,
                        first=num,
                        device=room.name,
                    )
                    num = grid.vertices.num
            return grid
        num = min(self._options.num, topology.num_vertices - sum(remote))
        grid = ChunkGrid.of(topology, targets, num, hidden=hidden, remote=remote)
        for room, least in zip(self._rooms, free, strict=True):
            needed = room.needed_bytes(grid.sizes)
            if needed > least:
                raise asked_too_few(room.name, num, needed, least)
        return grid


def _told(model: ModelDescription) -> list[Any]:
    """What a model computes, as plain values."""
    layers = [
        [
            repr(layer.aggregation),
            [[*product.weight.shape, product.bias is not None, product.relu] for product in layer.products],
            layer.dropout,
        ]
        for layer in model.layers
    ]
    return [model.input_dropout, layers]
