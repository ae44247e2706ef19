"""Full-graph steps in chunks on one OpenCL device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunks.chunk_grid import ChunkSizes
from hyrt.fullgraph.chunks.chunk_stats import ChunkedStep
from hyrt.fullgraph.chunks.chunked_trainer import ChunkDeviceMemory, ChunkedTrainer
from hyrt.fullgraph.chunks.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.opencl.chunks.chunk_buffers import ChunkBuffers, ChunkQueues, buffer_sizes, needed_bytes
from hyrt_devices.opencl.chunks.chunk_launches import ChunkLaunches
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl.programs import Programs
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl.tuning import Tuning
from hyrt_devices.opencl_host.profiling import Command


class OpenclChunkMemory:
    """Implementation of `ChunkDeviceMemory` for an OpenCL device, with exact buffer sizes.

    `compute` is the queue for kernels, and `new_queue` creates another one for copies; with one chunk
    `in_flight`, a single queue runs all commands. `errors` returns a context manager that turns the driver's
    out-of-memory errors into DeviceOutOfMemoryError.
    """

    def __init__(
        self,
        programs: Programs,
        tuning: Tuning,
        memory: DeviceMemory,
        compute: Launcher,
        new_queue: Callable[[], Launcher],
        replica: Replica,
        in_flight: int,
        reads_in_place: bool,
        errors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.name = memory.buffers.name
        self.reads_in_place = reads_in_place
        self._programs = programs
        self._tuning = tuning
        self._memory = memory
        self._copies = [new_queue(), new_queue()] if in_flight > 1 else []
        self.queues = ChunkQueues(compute, *(self._copies or (compute, compute)))
        self._in_flight = in_flight
        self._replica = replica
        self._errors = errors
        self._lease = Lease(memory)

    def free_bytes(self) -> int:
        return self._memory.buffers.limit_bytes - self._memory.buffers.used_bytes

    def can_access(self, other: ChunkDeviceMemory) -> bool:
        """Return whether both devices share one context and neither reads host memory in place."""
        if not isinstance(other, OpenclChunkMemory) or self.reads_in_place or other.reads_in_place:
            return False
        return bool(self._programs.context == other._programs.context)

    def needed_bytes(self, chunks: ChunkSizes) -> int:
        return needed_bytes(self._replica, self._tuning, self._memory, chunks, self._in_flight)

    def allocate(self, chunks: ChunkSizes) -> ChunkLaunches:
        sizes = buffer_sizes(self._replica, self._tuning, chunks, self._in_flight)
        buffers = ChunkBuffers.take(self._lease, sizes)
        return ChunkLaunches(self._programs, self._tuning, self.queues, self._replica, buffers)

    def translate_errors(self) -> AbstractContextManager[None]:
        return self._errors()

    def release(self) -> None:
        try:
            # Wait: enqueued commands use the buffers and host arrays.
            self.queues.finish()
        finally:
            self._lease.release()

    def close(self) -> None:
        """Release the queues for copies."""
        for queue in self._copies:
            queue.close()


class ChunkSteps:
    """Full-graph steps in chunks, with the gradients of each step."""

    def __init__(
        self,
        memory: OpenclChunkMemory,
        replica: Replica,
        options: ChunkOptions,
        budget: HostMemoryBudget,
        keeper: StepCheckpointer | None = None,
    ) -> None:
        self._memory = memory
        self._replica = replica
        self._runs = ChunkedTrainer(replica.model, [memory], options, budget, checkpointer=keeper)

    def run(
        self, batch: MiniBatch, objective: Objective | None
    ) -> tuple[float, dict[str, float], list[NDArray[np.float32]]]:
        """Run a step and return its loss sum, counts and gradient sums, as `ChunkedTrainer.run` does."""
        try:
            loss_sum, counts = self._runs.run(batch, objective)
            return loss_sum, counts, self._replica.read_gradients(self._memory.queues.compute)
        finally:
            self._memory.queues.finish()

    def figures(self) -> ChunkedStep:
        """Return the statistics of the last step."""
        return self._runs.step_stats()

    @property
    def num(self) -> int | None:
        """Number of intervals of vertices; None before the first step."""
        return self._runs.num

    def release(self) -> None:
        """Release all buffers."""
        self._runs.release()

    def take_commands(self) -> list[Command]:
        """Return the commands of the queues since the last call, queue by queue."""
        return self._memory.queues.taken()

    def abandon(self) -> None:
        """Release only the queues for copies: the device releases the buffers."""
        self._memory.close()

    def close(self) -> None:
        """Release all buffers and the queues for copies."""
        try:
            self.release()
        finally:
            self._memory.close()


class StagedChunks:
    """Full-graph step that will be computed in chunks; no data is on the device yet."""

    def __init__(self, owner: object, batch: MiniBatch) -> None:
        self.owner: object = owner
        self.batch = batch
