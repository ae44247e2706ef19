"""Implementation of `ChunkKernels` with OpenCL, and full-graph steps in chunks on an OpenCL device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hyrt.fullgraph.chunk_grid import ChunkSizes, EdgeChunk, input_width
from hyrt.fullgraph.chunk_kernels import ChunkBuffer
from hyrt.fullgraph.chunk_stats import ChunkedStep, ChunkStats
from hyrt.fullgraph.chunked_trainer import ChunkDeviceMemory, ChunkedTrainer
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.objective import Objective
from hyrt.objective.host_loss import compute_host_loss
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.opencl.chunk_buffers import ChunkBuffers, ChunkQueues, ChunkSlot, buffer_sizes, needed_bytes
from hyrt_devices.opencl.launch import Launcher, ceil_div
from hyrt_devices.opencl.matmul_kernels import Kernels, sizeless
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl.programs import Programs, Tuning
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl_host.profiling import Command

Array = NDArray[Any]


class ChunkLaunches:
    """OpenCL implementation of `ChunkKernels`.

    Buffers for rows and edges are used in rotation, so one chunk is copied while another is computed.
    """

    def __init__(
        self,
        programs: Programs,
        tuning: Tuning,
        queues: ChunkQueues,
        replica: Replica,
        buffers: ChunkBuffers,
    ) -> None:
        self._programs = programs
        self._tuning = tuning
        self._queues = queues
        self._queue = queues.compute
        self._replica = replica
        self._buffers = buffers
        words = sizeless(tuning)
        self._loss = programs.kernel("sizeless", "cross_entropy", words)
        self._add = programs.kernel("sizeless", "add_sums", words)
        self._drop = programs.kernel("sizeless", "drop", words)
        self._mask = programs.kernel("sizeless", "mask", words)
        self._accumulate: dict[tuple[int, bool, bool, bool, bool], Any] = {}
        edges = (buffers.rows, buffers.starts, buffers.columns, buffers.row_scale, buffers.column_scale)
        # The slots are used in rotation; the last one is the current one.
        self._read = [ChunkSlot((each,)) for each in buffers.read]
        self._edges = [ChunkSlot(each) for each in zip(*edges, strict=True)]
        self._accumulated = ChunkSlot((buffers.accumulated,))
        # Slot with the latest results in `buffers.results`.
        self._made = ChunkSlot(())
        self._result: Any = None
        self._key = (0, 0)

    def begin_step(self, seed: int, step: int) -> None:
        self._key = seed, step
        self._queues.begin()
        self._queue.fill(self._replica.gradients, 4 * self._replica.num_parameters)

    def set_trace_label(self, chunk: str) -> None:
        self._queues.name(chunk)

    def put(self, buffer: ChunkBuffer, rows: Array) -> None:
        if buffer == "read":
            _turn(self._read)
        self._queues.fill(self._slot(buffer), rows)

    def get(self, buffer: ChunkBuffer, out: Array) -> None:
        self._queues.drain(self._slot(buffer), self._at(buffer), out)

    def publish_rows(self) -> Any:
        slot = self._read[-1]
        # Flush now, because another device would wait forever for a copy that is not flushed.
        self._queues.flush()
        return slot.buffers[0], slot.filled

    def copy_published_rows(self, published: Any, num_rows: int, width: int) -> Any:
        buffer, filled = published
        return self._queues.fill_from(_turn(self._read), buffer, filled, 4 * num_rows * width)

    def hold_rows(self, until: Any) -> None:
        self._read[-1].taken.append(until)

    def wait_for_array(self, rows: Array) -> None:
        self._queues.settle(rows)

    def clear(self, buffer: ChunkBuffer, num_rows: int, width: int) -> None:
        slot = self._slot(buffer)
        self._queues.before(slot)
        self._queue.fill(self._at(buffer), 4 * num_rows * width)
        self._queues.after(slot)

    def apply_dropout(
        self, buffer: ChunkBuffer, vertices: Array, width: int, layer: int, rate: float
    ) -> None:
        slot = self._slot(buffer)
        self._queues.before(slot)
        self._dropped(self._at(buffer), vertices, width, layer, rate)
        self._queues.after(slot)

    def gather(
        self,
        layer: int,
        edges: EdgeChunk,
        row_scale: Array | None,
        column_scale: Array | None,
        *,
        self_rows: bool,
        backward: bool,
    ) -> None:
        queues, slot = self._queues, _turn(self._edges)
        factors = (
            None if scale is None else np.ascontiguousarray(scale, np.float32)
            for scale in (row_scale, column_scale)
        )
        queues.fill(slot, edges.rows, edges.starts, edges.columns, *factors)
        rows, starts, columns, of_rows, of_columns = slot.buffers
        used = (slot, self._read[-1], self._accumulated)
        queues.before(*used)
        self._queue.launch(
            self._gathering(layer, self_rows, backward, row_scale is not None, column_scale is not None),
            (ceil_div(len(edges.rows), self._tuning.grain),),
            (self._tuning.lanes,),
            *(rows, starts, columns, self._at("read"), of_rows),
            *(of_columns, self._at("accumulated"), len(edges.rows)),
        )
        queues.after(*used)

    def compute(self, layer: int, buffer: ChunkBuffer, vertices: Array) -> None:
        rows, used = self._at(buffer), (self._slot(buffer), self._made)
        self._queues.before(*used)
        for product, result in zip(self._products(layer), self._buffers.results, strict=False):
            product.forward(self._queue, self._replica.parameters, rows, result, len(vertices))
            rows = result
        self._result = rows
        self._drop_layer(rows, layer, vertices)
        self._queues.after(*used)

    def compute_loss(
        self, labels: NDArray[np.int64], weights: NDArray[np.float32] | None, objective: Objective | None
    ) -> Callable[[], tuple[float, dict[str, float]]]:
        queue, buffers, classes = self._queue, self._buffers, self._replica.num_classes
        num, used = len(labels), (self._read[-1], self._made)
        self._queues.before(*used)
        if objective is not None:
            scores = np.empty((num, classes), np.float32)
            queue.read(scores, self._result)
            queue.finish()
            host = compute_host_loss(objective, scores, labels, weights)
            queue.write(self._at("read"), host.gradient)
            self._queues.after(*used)
            return lambda: (host.loss_sum, host.counts)
        queue.write(buffers.labels, np.ascontiguousarray(labels, np.int64))
        if weights is not None:
            queue.write(buffers.weights, np.ascontiguousarray(weights, np.float32))
        items = ceil_div(num, self._tuning.grain)
        queue.launch(
            self._loss,
            (ceil_div(items, self._tuning.items),),
            (self._tuning.items,),
            *(self._result, buffers.labels, buffers.weights, int(weights is not None), self._at("read")),
            *(buffers.losses, num, classes),
        )
        queue.launch(self._add, (1,), (1,), buffers.losses, items, self._replica.results)
        results = np.empty(2, np.float32)
        queue.read(results, self._replica.results)
        self._queues.after(*used)
        return lambda: (float(results[0]), {"correct": int(results[1]), "targets": num})

    def backward_linear(
        self,
        layer: int,
        inputs: ChunkBuffer,
        grad: ChunkBuffer,
        vertices: Array,
        *,
        needs_input_gradient: bool,
    ) -> None:
        queue, buffers, replica = self._queue, self._buffers, self._replica
        described, products, num = replica.model.layers[layer], self._products(layer), len(vertices)
        used = (self._slot(inputs), self._slot(grad), self._made)
        self._queues.before(*used)
        along = self._at(grad)
        if described.products[-1].relu:
            scale = dropout_threshold(described.dropout)[1]
            queue.launch(
                self._mask,
                (ceil_div(ceil_div(num, self._tuning.grain), self._tuning.items),),
                (self._tuning.items,),
                *(along, self._result, np.float32(scale), along, num, products[-1].shape.n),
            )
        else:
            self._drop_layer(along, layer, vertices)
        for p in reversed(range(len(products))):
            product = products[p]
            rows = buffers.results[p - 1] if p else self._at(inputs)
            product.weights(queue, buffers.parts, rows, along, replica.gradients, num, add=True)
            if p or needs_input_gradient:
                # The forward result of the product is not read again, so reuse its buffer.
                out = buffers.results[p]
                activated = rows if product.shape.masked else None
                product.backward(queue, replica.parameters, along, activated, out, num)
                along = out
        self._result = along
        self._queues.after(*used)

    def flush(self) -> Callable[[], None]:
        self._queues.flush()
        last = self._queue.last
        return last.wait if last is not None else _nothing

    def gradient_sums(self) -> list[Array]:
        sums = np.empty(self._replica.num_parameters, np.float32)
        self._queue.read(sums, self._replica.gradients)
        self._queue.finish()
        return [sums]

    def set_gradient_sums(self, sums: Sequence[Array]) -> None:
        self._queue.write(self._replica.gradients, np.ascontiguousarray(sums[0], np.float32))
        self._queue.finish()

    def wait(self) -> None:
        self._queues.finish()

    def stats(self) -> ChunkStats:
        return self._queues.work()

    def _at(self, place: ChunkBuffer) -> Any:
        return self._result if place == "result" else self._slot(place).buffers[0]

    def _slot(self, place: ChunkBuffer) -> ChunkSlot:
        if place == "result":
            return self._made
        return self._read[-1] if place == "read" else self._accumulated

    def _products(self, layer: int) -> list[Kernels]:
        return self._replica.products[layer]

    def _drop_layer(self, rows: Any, layer: int, vertices: Array) -> None:
        """Apply a layer's dropout in place to the layer's result or to the gradient of the result."""
        rate = self._replica.model.layers[layer].dropout
        if rate:
            self._dropped(rows, vertices, self._products(layer)[-1].shape.n, layer + 1, rate)

    def _dropped(self, rows: Any, vertices: Array, width: int, layer: int, rate: float) -> None:
        threshold, scale = dropout_threshold(rate)
        seed, step = self._key
        key, num = stream_key(seed, DROPOUT, step, layer), len(vertices)
        self._queue.write(self._buffers.vertices, vertices.astype(np.int64))
        self._queue.launch(
            self._drop,
            (ceil_div(ceil_div(num, self._tuning.grain), self._tuning.items),),
            (self._tuning.items,),
            *(rows, self._buffers.vertices, key, int(threshold), np.float32(scale), rows, num, width),
        )

    def _gathering(self, layer: int, self_rows: bool, backward: bool, rows: bool, columns: bool) -> Any:
        """Return the kernel that accumulates a layer's sums, or its self rows if `self_rows`."""
        key = layer, self_rows, backward, rows, columns
        if key not in self._accumulate:
            described, tuning = self._replica.model.layers[layer], self._tuning
            width = input_width(described)
            sum_at, self_at = described.aggregation.columns(width)
            combined_at = sum_at if not self_rows or self_at is None else self_at
            here, there = (width, 0), (described.aggregation.width(width), combined_at)
            (x_stride, x_at), (out_stride, out_at) = (there, here) if backward else (here, there)
            vector = min(tuning.vector, 1 << (width.bit_length() - 1))
            vectors = ceil_div(width, vector)
            self._accumulate[key] = self._programs.kernel(
                "chunk",
                "accumulate",
                {
                    "WIDTH": width,
                    "X_STRIDE": x_stride,
                    "X_AT": x_at,
                    "OUT_STRIDE": out_stride,
                    "OUT_AT": out_at,
                    "VEC": vector,
                    "VECTORS": vectors,
                    "UNROLL": min(tuning.unroll, ceil_div(vectors, tuning.lanes)),
                    "LANES": tuning.lanes,
                    "GRAIN": tuning.grain,
                    "HAS_ROW": int(rows),
                    "HAS_COLUMN": int(columns),
                },
            )
        return self._accumulate[key]


def _turn(slots: list[ChunkSlot]) -> ChunkSlot:
    """Rotate the slots, and return the new last slot, which is the current one."""
    slots.append(slots.pop(0))
    return slots[-1]


def _nothing() -> None:
    """Return immediately, because no command has been enqueued."""


class OpenclChunkMemory:
    """Implementation of `ChunkDeviceMemory` for an OpenCL device, with exact buffer sizes.

    `compute` is the queue for kernels, and `new_queue` creates a queue for copies. With one chunk
    `in_flight`, a single queue runs all commands. `errors` returns a context manager that converts the
    driver's out-of-memory errors to DeviceOutOfMemoryError.
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
            # Wait, because enqueued commands use the buffers and the host arrays.
            self.queues.finish()
        finally:
            self._lease.release()

    def close(self) -> None:
        """Release the queues for copies."""
        for queue in self._copies:
            queue.close()


class ChunkSteps:
    """Runner of full-graph steps in chunks, which returns the gradients of each step."""

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
        """Run a step as `ChunkedTrainer.run` does, and return its loss sum, counts and gradient sums."""
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
        """Number of vertex intervals, or None before the first step."""
        return self._runs.num

    def release(self) -> None:
        """Release all buffers."""
        self._runs.release()

    def take_commands(self) -> list[Command]:
        """Return the commands since the last call of this method, queue by queue."""
        return self._memory.queues.taken()

    def abandon(self) -> None:
        """Release only the queues for copies, because the device releases the buffers."""
        self._memory.close()

    def close(self) -> None:
        """Release all buffers and the queues for copies."""
        try:
            self.release()
        finally:
            self._memory.close()


class StagedChunks:
    """Full-graph step to compute in chunks, none of whose data is on the device yet."""

    def __init__(self, owner: object, batch: MiniBatch) -> None:
        self.owner: object = owner
        self.batch = batch
