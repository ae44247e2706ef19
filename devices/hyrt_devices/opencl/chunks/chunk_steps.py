"""Steps over whole graphs in chunks on one OpenCL device."""

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
    """`ChunkDeviceMemory` of an OpenCL device: its buffers are counted to the byte.

    Parameters
    ----------
    programs, tuning, memory
        The device's.
    compute
        The queue that computes.
    new_queue
        Makes another one, for copies.
    replica
        The model on the device.
    in_flight
        How many chunks are there at once; with one, a single queue copies and computes by turns.
    reads_in_place
        Whether the device reads the host's memory where it lies.
    errors
        Makes a context in which errors of the driver that mean a lack of memory are DeviceOutOfMemoryError.
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
        """Whether both are of one context, and neither reads the host's memory in place."""
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
            # What was enqueued uses the buffers, and arrays of the host.
            self.queues.finish()
        finally:
            self._lease.release()

    def close(self) -> None:
        """Let go of the queues for copies."""
        for queue in self._copies:
            queue.close()


class ChunkSteps:
    """Steps in chunks, with the gradients of each.

    Parameters
    ----------
    room, replica
        The memory for chunks with its queues, and the model on the device.
    options, budget
        How chunks are cut, and how much host memory may be used.
    keeper
        Keeps what is done of a long step; None keeps nothing.
    """

    def __init__(
        self,
        room: OpenclChunkMemory,
        replica: Replica,
        options: ChunkOptions,
        budget: HostMemoryBudget,
        keeper: StepCheckpointer | None = None,
    ) -> None:
        self._room = room
        self._replica = replica
        self._runs = ChunkedTrainer(replica.model, [room], options, budget, checkpointer=keeper)

    def run(
        self, batch: MiniBatch, objective: Objective | None
    ) -> tuple[float, dict[str, float], list[NDArray[np.float32]]]:
        """Loss sum, counts and gradient sums of a step, as `ChunkedTrainer.run`."""
        try:
            loss_sum, counts = self._runs.run(batch, objective)
            return loss_sum, counts, self._replica.read_gradients(self._room.queues.compute)
        finally:
            self._room.queues.finish()

    def figures(self) -> ChunkedStep:
        """What the last step took."""
        return self._runs.step_stats()

    @property
    def num(self) -> int | None:
        """How many intervals the vertices are cut into; None before the first step."""
        return self._runs.num

    def release(self) -> None:
        """Give all buffers back."""
        self._runs.release()

    def take_commands(self) -> list[Command]:
        """What its queues have run since the last call, in the order of each."""
        return self._room.queues.taken()

    def abandon(self) -> None:
        """Let go of the queues for copies alone: the buffers go with the device."""
        self._room.close()

    def close(self) -> None:
        """Give all buffers back, and let go of the queues for copies."""
        try:
            self.release()
        finally:
            self._room.close()


class StagedChunks:
    """A step over a whole graph that is computed in chunks: nothing of it is on the device yet.

    Parameters
    ----------
    owner
        The device.
    batch
        The step.
    """

    def __init__(self, owner: object, batch: MiniBatch) -> None:
        self.owner: object = owner
        self.batch = batch
