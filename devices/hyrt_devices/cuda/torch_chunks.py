"""Implementation of `ChunkKernels` with torch operators, and full-graph steps in chunks on a torch device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import StepResult
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.chunk_grid import BufferSizes, ChunkSizes, EdgeChunk, input_width
from hyrt.fullgraph.chunk_kernels import ChunkBuffer
from hyrt.fullgraph.chunk_stats import ChunkStats
from hyrt.fullgraph.chunked_trainer import ChunkDeviceMemory, ChunkedTrainer
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.nn.description import ModelDescription
from hyrt.objective import Objective
from hyrt.objective.host_loss import counts_to_numbers
from hyrt.objective.metrics import check_loss
from hyrt.objective.objective import OBJECTIVES
from hyrt.runtime.rng import DROPOUT, dropout_threshold, stream_key
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.cuda.chunk_memory import ChunkMemory, ChunkTimes, EdgeMemory, needed_bytes
from hyrt_devices.cuda.driver import Driver
from hyrt_devices.cuda.tile_math import TileEdges, TileMath, TorchTileMath

Array = NDArray[Any]
Memory = TypeVar("Memory", torch.Tensor, EdgeMemory)


@dataclass(slots=True)
class _Slot(Generic[Memory]):
    """One of several buffers that are used in rotation."""

    memory: Memory
    lent: torch.Tensor | None = None
    """Host array that is read in place instead of `memory`, or None."""
    filled: Any = None
    """Mark after the latest copy to the buffer."""
    used: Any = None
    """Mark after the latest computation that read the buffer."""


class TorchChunks:
    """Kernels that compute on chunks in device memory. Sums have a fixed order.

    The buffers for source rows and edges are used in rotation, so that the next chunk can be copied on stream
    `copies` while the current chunk is computed. `copies` is None if `stream` does both. If the host
    computes, rows and edges are read in place instead of being copied.
    """

    def __init__(
        self,
        model: ModelDescription,
        memory: ChunkMemory,
        objective: Objective,
        driver: Driver,
        stream: Any,
        copies: Any,
        math: TileMath,
    ) -> None:
        self._model = model
        self._math = math
        self._memory = memory
        self._objective = objective
        self._driver = driver
        self._stream = stream
        self._copies = copies
        # The buffers are used in rotation; the last one is the current one.
        self._read = [_Slot(each) for each in memory.read]
        self._edges = [_Slot(each) for each in memory.edges]
        self._device = memory.accumulated.device
        self._result = memory.accumulated[:0]
        self._width = 0
        self._key = (0, 0)
        self.times = ChunkTimes(driver)
        """Times of copies and computations since `begin_step`."""
        self.gradients: dict[int, torch.Tensor] = {}
        """Gradient sums by the id() of the parameter."""

    def begin_step(self, seed: int, step: int) -> None:
        self._key = seed, step
        self.times.begin(self._stream)
        self.gradients = {
            id(parameter): torch.zeros_like(parameter, requires_grad=False)
            for layer in self._model.layers
            for product in layer.products
            for parameter in (product.weight, product.bias)
            if parameter is not None
        }

    def set_trace_label(self, chunk: str) -> None:
        self.times.about = chunk

    def put(self, buffer: ChunkBuffer, rows: Array) -> None:
        if buffer == "read":
            slot = self._transposed(self._read)
            slot.lent = self._lent(rows, torch.float32)
            if slot.lent is None:
                with self._filling(slot):
                    self._copy(_view(slot.memory, *rows.shape), rows)
        else:
            with self.times.span("copy in", "copy in", self._stream):
                self._copy(self._rows(buffer, *rows.shape), rows)

    def get(self, buffer: ChunkBuffer, out: Array) -> None:
        self.times.out_bytes += out.nbytes
        with self.times.span("copy out", "copy out", self._stream):
            self._math.copy(torch.from_numpy(out), self._rows(buffer, *out.shape), non_blocking=False)

    def publish_rows(self) -> Any:
        return self._read[-1].memory, self._read[-1].filled

    def copy_published_rows(self, published: Any, num_rows: int, width: int) -> Any:
        rows, filled = published
        slot = self._transposed(self._read)
        slot.lent = None
        with self._filling(slot, filled):
            there = _view(slot.memory, num_rows, width)
            there.copy_(_view(rows, num_rows, width), non_blocking=True)
        return slot.filled

    def hold_rows(self, until: Any) -> None:
        self._driver.order(self._stream, until)

    def wait_for_array(self, rows: Array) -> None:
        """Return immediately, because copies of pageable memory have finished when `put` and `get` return.

        If the host computes, it has also finished reading the array by then.
        """

    def clear(self, buffer: ChunkBuffer, num_rows: int, width: int) -> None:
        with self._computing("clear"):
            self._math.clear(self._rows(buffer, num_rows, width))

    def apply_dropout(
        self, buffer: ChunkBuffer, vertices: Array, width: int, layer: int, rate: float
    ) -> None:
        slot = self._read[-1]
        if buffer == "read" and slot.lent is not None:
            lent, slot.lent = slot.lent, None  # Copy first, because host arrays must not be modified.
            with self.times.span("copy in", "copy in", self._stream):
                self._copy(_view(slot.memory, *lent.shape), lent.numpy())
        with self._computing("dropout"):
            self._drop(self._rows(buffer, len(vertices), width), vertices, layer, rate)

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
        aggregation, slot = self._model.layers[layer].aggregation, self._transposed(self._edges)
        width = input_width(self._model.layers[layer])
        sum_at, self_at = aggregation.columns(width)
        at = sum_at if not self_rows or self_at is None else self_at
        read_at, read_width = (at, aggregation.width(width)) if backward else (0, width)
        added_at, added_width = (0, width) if backward else (at, aggregation.width(width))
        lent = self._read[-1].lent
        x, out = (
            _whole_rows(self._read[-1].memory, read_width) if lent is None else lent,
            _whole_rows(self._memory.accumulated, added_width),
        )
        x, out = x[:, read_at : read_at + width], out[:, added_at : added_at + width]
        on_device = self._copy_edges(slot, edges, row_scale, column_scale)
        with self._computing("gather"):
            self._math.gather(x, on_device, edges.starts, out)

    def _copy_edges(
        self, slot: _Slot[EdgeMemory], edges: EdgeChunk, row_scale: Array | None, column_scale: Array | None
    ) -> TileEdges:
        """Copy the edges of a tile to the device unless it reads host memory in place."""
        memory = slot.memory
        places = [
            (memory.rows, edges.rows),
            (memory.starts, edges.starts),
            (memory.columns, edges.columns),
            (memory.row_scale, row_scale),
            (memory.column_scale, column_scale),
        ]
        found = [None if array is None else self._lent(array, place.dtype) for place, array in places]
        missing = [k for k, (_, array) in enumerate(places) if array is not None and found[k] is None]
        if missing:
            with self._filling(slot):
                for k in missing:
                    place, array = places[k]
                    assert array is not None
                    found[k] = place[: len(array)]
                    self._copy(place[: len(array)], array)
        rows, starts, columns, by_row, by_column = found
        assert rows is not None
        assert starts is not None
        assert columns is not None
        return TileEdges(rows, starts, columns, by_row, by_column)

    def compute(self, layer: int, buffer: ChunkBuffer, vertices: Array) -> None:
        products = self._model.layers[layer].products
        rows = self._rows(buffer, len(vertices), products[0].weight.shape[1])
        with self._computing("products"):
            for product, memory in zip(products, self._memory.results, strict=False):
                made = _view(memory, len(vertices), product.weight.shape[0])
                self._math.multiply(rows, product, made)
                rows = made
            self._result = rows
            self._drop_layer(rows, layer, vertices)

    def compute_loss(
        self, labels: NDArray[np.int64], weights: NDArray[np.float32] | None, objective: Objective | None
    ) -> Callable[[], tuple[float, dict[str, float]]]:
        chosen = objective or self._objective
        self._read[-1].lent = None  # The gradient is written to the buffer on the device.
        with self._computing("loss"):
            with torch.enable_grad():
                scores = self._result.detach().requires_grad_()
                targets = torch.from_numpy(np.ascontiguousarray(labels)).to(self._device)
                target_weights = None if weights is None else torch.from_numpy(weights).to(self._device)
                with OBJECTIVES.wrap_errors(chosen.name, "loss_sum"):
                    loss = check_loss(chosen, chosen.loss_sum(scores, targets, target_weights))
                (gradient,) = torch.autograd.grad(loss, scores)
            loss = loss.detach()
            counts = chosen.count(scores.detach(), targets)
            self._rows("read", *scores.shape).copy_(gradient)
        return lambda: (float(loss), counts_to_numbers(counts))

    def backward_linear(
        self,
        layer: int,
        inputs: ChunkBuffer,
        grad: ChunkBuffer,
        vertices: Array,
        *,
        needs_input_gradient: bool,
    ) -> None:
        described, num = self._model.layers[layer], len(vertices)
        along = self._rows(grad, num, described.products[-1].weight.shape[0])
        with self._computing("products back"):
            if described.products[-1].relu:
                self._math.mask(along, self._result, dropout_threshold(described.dropout)[1])
            else:
                self._drop_layer(along, layer, vertices)
            for p in reversed(range(len(described.products))):
                product = described.products[p]
                of = product.weight.shape[1]
                rows = _view(self._memory.results[p - 1], num, of) if p else self._rows(inputs, num, of)
                # The product's result is no longer needed, so reuse its memory for the gradient.
                out = _view(self._memory.results[p], num, of) if p or needs_input_gradient else None
                bias_sum = None if product.bias is None else self.gradients[id(product.bias)]
                weight_sum = self.gradients[id(product.weight)]
                self._math.multiply_backward(rows, product, along, weight_sum, bias_sum, out)
                if out is not None:
                    if p and described.products[p - 1].relu:
                        self._math.mask(out, rows, 1.0)
                    along = out
            self._result = along

    def flush(self) -> Callable[[], None]:
        return partial(self._driver.wait, self._driver.mark(self._stream))

    def gradient_sums(self) -> list[Array]:
        # Copy the sums, because on the CPU they are later updated in place.
        return [np.array(each.cpu().numpy()) for each in self.gradients.values()]

    def set_gradient_sums(self, sums: Sequence[Array]) -> None:
        for mine, gradient_sum in zip(self.gradients.values(), sums, strict=True):
            mine.copy_(torch.from_numpy(gradient_sum))

    def wait(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))

    def stats(self) -> ChunkStats:
        return self.times.work()

    def gradients_on_host(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
        """Copy the gradient sums since `begin_step` to the host, in the order of `parameters`."""
        with self._computing("gradients to the host"):
            found = [
                torch.zeros(parameter.shape)
                if id(parameter) not in self.gradients
                else self.gradients[id(parameter)].cpu()
                for parameter in parameters
            ]
        self.wait()  # Times are only available for marks that were reached, and this is the last mark.
        return found

    def _computing(self, operation: str) -> AbstractContextManager[None]:
        """Return a context manager that records the work submitted to the compute stream."""
        return self.times.span("compute", operation, self._stream)

    def _lent(self, array: Array, dtype: torch.dtype) -> torch.Tensor | None:
        """Wrap a host array without a copy, or return None if a device computes or the dtype differs."""
        if not self._driver.reads_in_place or not array.flags.c_contiguous:
            return None
        lent = torch.from_numpy(array)
        return lent if lent.dtype == dtype else None

    def _transposed(self, slots: list[_Slot[Memory]]) -> _Slot[Memory]:
        """Record the last use of the current buffer, and rotate to the next one."""
        if self._copies is not None:
            slots[-1].used = self._driver.mark(self._stream)
        slots.append(slots.pop(0))
        return slots[-1]

    @contextmanager
    def _filling(self, slot: _Slot[Memory], after: Any = None) -> Iterator[None]:
        """Run the block's copies concurrently with computations. Later computations wait for the copies.

        The copies start after the last use of the buffer and after the mark `after` of another device.
        """
        driver, stream = self._driver, self._stream if self._copies is None else self._copies
        with driver.running(stream):
            for mark in (slot.used, after):
                if mark is not None:
                    driver.order(stream, mark)
            start = driver.mark(stream)
            yield
            slot.filled = driver.mark(stream)
            self.times.add("copy in", "copy in", start, slot.filled)
        if stream is not self._stream:
            driver.order(self._stream, slot.filled)

    def _copy(self, there: torch.Tensor, array: Array) -> None:
        self.times.in_bytes += array.nbytes
        rows = torch.from_numpy(np.ascontiguousarray(array))
        self._math.copy(there, rows, non_blocking=self._copies is not None)

    def _rows(self, place: ChunkBuffer, num: int, width: int) -> torch.Tensor:
        """Return the content of a buffer as [num, width] rows."""
        if place == "result":
            return self._result.view(num, width)
        if place == "accumulated":
            return _view(self._memory.accumulated, num, width)
        slot = self._read[-1]
        return _view(slot.memory, num, width) if slot.lent is None else slot.lent.view(num, width)

    def _drop_layer(self, rows: torch.Tensor, layer: int, vertices: Array) -> None:
        """Apply a layer's dropout in place to the layer's result or to the gradient of the result."""
        rate = self._model.layers[layer].dropout
        if rate:
            self._drop(rows, vertices, layer + 1, rate)

    def _drop(self, rows: torch.Tensor, vertices: Array, layer: int, rate: float) -> None:
        seed, step = self._key
        self._math.drop(rows, vertices, stream_key(seed, DROPOUT, step, layer), rate)


def _view(memory: torch.Tensor, num: int, width: int) -> torch.Tensor:
    return memory[: num * width].view(num, width)


def _whole_rows(memory: torch.Tensor, width: int) -> torch.Tensor:
    """Return a view of the memory as as many complete rows as possible."""
    return _view(memory, len(memory) // width, width)


class TorchChunkMemory:
    """Implementation of `ChunkDeviceMemory` for a torch device.

    `stream` computes, and `copies` prefetches the next chunks. With one chunk `in_flight`, `stream`
    alternates between copies and computations. `in_flight` 0 stands for one chunk if the device reads host
    memory in place, otherwise for two. `free` returns the number of bytes that chunks may use.
    """

    math: TileMath = TorchTileMath()
    counts_work = True
    """Whether the temporary memory of operators counts as chunk memory."""

    def __init__(
        self,
        name: str,
        driver: Driver,
        stream: Any,
        copies: Any,
        model: ModelDescription,
        objective: Objective,
        free: Callable[[], int],
        in_flight: int = 0,
    ) -> None:
        self.name = name
        self.reads_in_place = driver.device.type in ("cpu", "mps")
        self._in_flight = in_flight or (1 if self.reads_in_place else 2)
        self._copies = copies if self._in_flight > 1 else None
        self.kernels: TorchChunks | None = None
        """Kernels for the allocated chunks; None before `allocate` and after `release`."""
        self._driver = driver
        self._stream = stream
        self._model = model
        self._objective = objective
        self._free = free

    def free_bytes(self) -> int:
        return self._free()

    def can_access(self, other: ChunkDeviceMemory) -> bool:
        return isinstance(other, TorchChunkMemory) and self._driver.reaches(other._driver)

    def needed_bytes(self, chunks: ChunkSizes) -> int:
        return needed_bytes(self._model, chunks, self._in_flight, counts_work=self.counts_work)

    def allocate(self, chunks: ChunkSizes) -> TorchChunks:
        places = BufferSizes.from_model(self._model, chunks)
        memory = ChunkMemory.take(places, self._driver.device, self._in_flight)
        self.kernels = TorchChunks(
            self._model, memory, self._objective, self._driver, self._stream, self._copies, self.math
        )
        return self.kernels

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Run the block on the compute stream, and raise DeviceOutOfMemoryError if memory runs out."""
        try:
            with self._driver.running(self._stream), torch.no_grad():
                yield
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # Clear the traceback's frames, which reference tensors.
            traceback.clear_frames(error.__traceback__)
            raise DeviceOutOfMemoryError(
                f"{self.name}: out of memory in a chunked step "
                f"({format_bytes(self._driver.used_bytes())} in use)",
                remedy="lower fullgraph.device_memory to the device's free memory, or lower model.hidden",
            ) from error

    def gradients(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
        """Copy the gradient sums of the step to the host, in the order of `parameters`."""
        assert self.kernels is not None
        return self.kernels.gradients_on_host(parameters)

    @property
    def times(self) -> ChunkTimes:
        """Times of the kernels' copies and computations in this step."""
        assert self.kernels is not None
        return self.kernels.times

    def release(self) -> None:
        self._wait()
        self.kernels = None
        self._driver.trim()

    def _wait(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))


class TorchChunkSteps:
    """Runner of full-graph steps in chunks, which also returns the gradients."""

    def __init__(
        self,
        memory: TorchChunkMemory,
        model: ModelDescription,
        options: ChunkOptions,
        budget: HostMemoryBudget,
        keeper: StepCheckpointer | None = None,
    ) -> None:
        self.memory = memory
        self._runs = ChunkedTrainer(model, [memory], options, budget, checkpointer=keeper)

    @property
    def num(self) -> int | None:
        """Number of vertex intervals, or None before the first step."""
        return self._runs.num

    def step(self, batch: MiniBatch, parameters: Sequence[torch.nn.Parameter]) -> StepResult:
        """Compute a step as `ChunkedTrainer.run` does, with gradients in the order of `parameters`."""
        with torch.no_grad():
            loss_sum, counts = self._runs.run(batch, None)
            gradients = self.memory.gradients(parameters)
        return StepResult(
            loss_sum=loss_sum,
            counts=counts,
            normalizer=batch.normalizer,
            gradients=gradients,
            chunks=self._runs.step_stats(),
        )

    def release(self) -> None:
        """Release all memory."""
        self._runs.release()
