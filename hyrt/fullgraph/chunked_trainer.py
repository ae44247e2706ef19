"""Chunked steps on devices: choice of the chunk grid and the row filters, and retries if memory runs out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, Protocol

import numpy as np
from hyrt_perfmodel.chunk_schedule import filter_threshold, min_parts_for_speeds

from hyrt.errors import DeviceOutOfMemoryError
from hyrt.fullgraph.chunk_grid import (
    ChunkGrid,
    ChunkSizes,
    input_width,
    max_intervals,
    min_chunk_grid,
    too_few_intervals_error,
)
from hyrt.fullgraph.chunk_kernels import ChunkKernels, DeviceGroup
from hyrt.fullgraph.chunk_stats import ChunkedStep
from hyrt.fullgraph.chunked_replica import ChunkedReplica
from hyrt.fullgraph.device_relay import StepProgress, build_relays
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget, MatrixPool
from hyrt.fullgraph.step_checkpoint import StepCheckpoint, StepCheckpointer
from hyrt.nn.description import ModelDescription
from hyrt.nn.layer import AggregatedFeatures
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch

# Size of the measured copy: large enough for a stable rate, and copied within milliseconds.
_MAX_BYTES = 16 << 20
_REPEATS = 3


def measure_filter_limit(kernels: ChunkKernels, num_rows: int, width: int) -> float:
    """Measure copy rates for rows [num_rows, width]; return the needed fraction below which to filter.

    `hyrt_perfmodel.chunk_schedule.filter_threshold` computes this limit. The contents of the buffer `read`
    are overwritten.
    """
    num = max(1, min(num_rows, _MAX_BYTES // (4 * width)))
    rows = np.ones((num, width), np.float32)
    # Half of the rows, in ascending order like the rows that a chunk needs.
    chosen = np.sort(np.random.default_rng(0).permutation(num)[: -(-num // 2)])
    out = np.empty((len(chosen), width), np.float32)

    def transfer() -> None:
        kernels.put("read", rows)
        kernels.wait()

    kernels.set_trace_label("rows that measure the link")
    transfer_s = _fastest_s(transfer)
    kernels.set_trace_label("")
    copy_s = _fastest_s(lambda: np.take(rows, chosen, axis=0, out=out, mode="clip"))
    return filter_threshold(out.nbytes / copy_s, rows.nbytes / transfer_s)


def _fastest_s(work: Callable[[], object]) -> float:
    """Return the duration of the fastest of several runs in seconds, after a warm-up run."""
    times_s = []
    for _ in range(1 + _REPEATS):
        started = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - started)
    return max(min(times_s[1:]), 1e-9)


class ChunkDeviceMemory(Protocol):
    """Device memory for chunks."""

    name: str
    """Device name, for messages."""
    reads_in_place: bool
    """Whether the device reads host memory in place."""

    def free_bytes(self) -> int:
        """Return the bytes that chunks may use, while no chunks are allocated."""
        ...

    def can_access(self, other: ChunkDeviceMemory) -> bool:
        """Return whether rows can be copied directly from another device's memory."""
        ...

    def needed_bytes(self, chunks: ChunkSizes) -> int:
        """Return the bytes that chunks of these sizes need, which increase with the sizes."""
        ...

    def allocate(self, chunks: ChunkSizes) -> ChunkKernels:
        """Allocate the memory. Raises DeviceOutOfMemoryError."""
        ...

    def translate_errors(self) -> AbstractContextManager[None]:
        """Return a context in which out-of-memory errors of the driver become DeviceOutOfMemoryError.

        It can be used for calls from any thread.
        """
        ...

    def release(self) -> None:
        """Free the memory once the device has finished using it. May be called several times."""
        ...


class ChunkedTrainer:
    """Trainer that divides the graph of the first step into chunks that fit, and computes all steps.

    Parameters
    ----------
    model
        The model, with the device's copy of the parameters.
    memories
        The memory of each device that computes some of the columns.
    options
        Number of intervals and their order.
    budget
        Host memory limit.
    shares
        Relative speed of each device.
    checkpointer
        Writes mid-step checkpoints (None: no checkpoints); unused in steps of several processes.
    """

    def __init__(
        self,
        model: ModelDescription,
        memories: Sequence[ChunkDeviceMemory],
        options: ChunkOptions,
        budget: HostMemoryBudget,
        shares: Sequence[float] = (1.0,),
        checkpointer: StepCheckpointer | None = None,
    ) -> None:
        self._model = model
        self._keeper = checkpointer
        self._memories = memories
        self._shares = shares
        self._options = options
        self._budget = budget
        self._host = MatrixPool(budget)
        # With fewer intervals, some devices would have no work.
        self._min_intervals = min_parts_for_speeds(tuple(shares))
        self._limits: list[float] = []
        self._ready: tuple[ChunkedReplica, DeviceGroup] | None = None
        self._step_s = 0.0

    def step_stats(self) -> ChunkedStep:
        """Statistics of the last step."""
        assert self._ready is not None
        (chunked, together), host = self._ready, self._host
        stats, readers = [kernels.stats() for kernels in together.kernels], chunked.readers
        names = [memory.name for memory in self._memories]
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
        """Number of vertex intervals; None before the first step."""
        return None if self._ready is None else self._ready[0].grid.vertices.num

    def run(self, batch: MiniBatch, objective: Objective | None) -> tuple[float, dict[str, float]]:
        """Compute a step and return its loss sum and counts; the kernels hold the gradient sums.

        If the device has less memory than it reported, the step is retried with smaller chunks.

        Parameters
        ----------
        batch
            A full-graph mini-batch with at least one target.
        objective
            The objective if the host computes the loss; None if the device does.

        Raises
        ------
        DeviceOutOfMemoryError
            If no chunks fit, or the requested number of intervals does not fit.
        StepInterrupted
            If the run must stop; the completed part is saved.
        """
        assert batch.full_graph is not None
        keeper = None if batch.full_graph.is_distributed else self._keeper
        checkpoint = None if keeper is None else keeper.take_resumed_step(batch.blocks[0].step)
        if self._ready is not None:
            chunked = self._ready[0]
            if chunked.full_graph is not batch.full_graph or chunked.targets is not batch.targets:
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
                    keeper.start_step(plan, checkpoint)
                progress = StepProgress(len(self._memories), chunked.num_passes, plan, keeper, checkpoint)
                started = time.perf_counter()
                totals = chunked.step(together, batch, objective, progress)
                self._step_s = time.perf_counter() - started
                return totals
            except DeviceOutOfMemoryError as error:
                self.release()
                checkpoint = None
                if self._options.num or grid.vertices.num == max_intervals(grid.vertices.num_rows):
                    raise
                self._min_intervals = 2 * grid.vertices.num
                if allocated and batch.full_graph.is_distributed:
                    raise DeviceOutOfMemoryError(
                        f"{error}; in a run of several ranks, a rank cannot repeat a step by itself",
                        remedy=f"set fullgraph.chunks={self._min_intervals}",
                    ) from error

    def release(self) -> None:
        """Free all memory, on the device and on the host."""
        self._ready = None
        # Start with a new pool, because a failed step may not have returned its matrices to the old one.
        self._host = MatrixPool(self._budget)
        for memory in self._memories:
            memory.release()

    def _allocate(self, batch: MiniBatch, grid: ChunkGrid) -> tuple[ChunkedReplica, DeviceGroup]:
        graph, kernels = batch.full_graph, []
        assert graph is not None
        for memory in self._memories:
            with memory.translate_errors():
                kernels.append(memory.allocate(grid.sizes))
                if len(self._limits) < len(kernels):
                    self._limits.append(self._limit(memory, kernels[-1], grid.sizes))
        chunked = ChunkedReplica(
            *(self._model, graph, batch.inputs, batch.targets, grid, self._options.order, self._host),
            shares=self._shares,
            limits=self._limits,
            relays=build_relays(
                len(self._memories), lambda one, other: self._memories[one].can_access(self._memories[other])
            ),
        )
        return chunked, DeviceGroup(kernels, [memory.translate_errors for memory in self._memories])

    def _limit(self, memory: ChunkDeviceMemory, kernels: ChunkKernels, sizes: ChunkSizes) -> float:
        """Return a device's row filter limit: if a chunk needs a smaller fraction of rows, only these are
        copied.
        """
        if self._options.filter_below is not None:
            return self._options.filter_below
        if memory.reads_in_place:
            return 0.0
        return measure_filter_limit(kernels, sizes.vertices, input_width(self._model.layers[0]))

    def _plan(self, chunked: ChunkedReplica) -> dict[str, Any]:
        """Return all inputs that determine the passes of a step and the bits of its results."""
        return {
            "devices": [memory.name for memory in self._memories],
            "shares": list(self._shares),
            "order": self._options.order,
            "intervals": chunked.grid.vertices.num,
            "vertices": chunked.grid.vertices.num_rows,
            "targets": chunked.grid.targets.num_rows,
            "edges": chunked.full_graph.topology.num_edges,
            "model": _describe_model(self._model),
        }

    def _grid(self, batch: MiniBatch, checkpoint: StepCheckpoint | None = None) -> ChunkGrid:
        """Divide vertices and targets as configured, or into the fewest intervals that use all devices and
        fit.

        The grid of a step that resumes from a checkpoint is unchanged if it fits.
        """
        graph, topology = batch.full_graph, None if batch.full_graph is None else batch.full_graph.topology
        assert graph is not None
        assert topology is not None
        hidden = len(self._model.layers) - isinstance(batch.inputs, AggregatedFeatures) > 1
        targets = np.sort(batch.targets)
        free = [memory.free_bytes() for memory in self._memories]
        remote = [] if graph.gather_ops is None else list(graph.gather_ops.halo_exchange.rounds)
        num_before = None if checkpoint is None else checkpoint.position.plan.get("intervals")
        if not self._options.num and isinstance(num_before, int) and 0 < num_before <= topology.num_vertices:
            grid_before = ChunkGrid.build(topology, targets, num_before, has_hidden_layers=hidden)
            sizes = [memory.needed_bytes(grid_before.sizes) for memory in self._memories]
            if all(size <= free_bytes for size, free_bytes in zip(sizes, free, strict=True)):
                return grid_before
        if not self._options.num:
            grid, num = None, self._min_intervals
            while grid is None or any(
                memory.needed_bytes(grid.sizes) > free_bytes
                for memory, free_bytes in zip(self._memories, free, strict=True)
            ):
                for memory, free_bytes in zip(self._memories, free, strict=True):
                    grid = min_chunk_grid(
                        *(topology, targets, memory.needed_bytes, free_bytes),
                        has_hidden_layers=hidden,
                        remote=remote,
                        min_intervals=num,
                        device=memory.name,
                    )
                    num = grid.vertices.num
            return grid
        num = min(self._options.num, topology.num_vertices - sum(remote))
        grid = ChunkGrid.build(topology, targets, num, has_hidden_layers=hidden, remote=remote)
        for memory, free_bytes in zip(self._memories, free, strict=True):
            needed = memory.needed_bytes(grid.sizes)
            if needed > free_bytes:
                raise too_few_intervals_error(memory.name, num, needed, free_bytes)
        return grid


def _describe_model(model: ModelDescription) -> list[Any]:
    """Describe the computations of a model as plain JSON values."""
    layers = [
        [
            repr(layer.aggregation),
            [[*product.weight.shape, product.bias is not None, product.relu] for product in layer.products],
            layer.dropout,
        ]
        for layer in model.layers
    ]
    return [model.input_dropout, layers]
