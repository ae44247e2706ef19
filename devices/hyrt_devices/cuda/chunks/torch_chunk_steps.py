"""Full-graph steps in chunks on one torch device."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hyrt.device import StepResult
from hyrt.errors import DeviceOutOfMemoryError
from hyrt.formatting import format_bytes
from hyrt.fullgraph.chunks.chunk_grid import BufferSizes, ChunkSizes
from hyrt.fullgraph.chunks.chunked_trainer import ChunkDeviceMemory, ChunkedTrainer
from hyrt.fullgraph.chunks.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.nn.description import ModelDescription
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.cuda.chunks.chunk_memory import ChunkMemory, ChunkTimes, needed_bytes
from hyrt_devices.cuda.chunks.tile_math import TileMath, TorchTileMath
from hyrt_devices.cuda.chunks.torch_chunks import TorchChunks
from hyrt_devices.cuda.driver import Driver


class TorchChunkMemory:
    """`ChunkDeviceMemory` for a torch device.

    `stream` computes, and `copies` prefetches the next chunks; with one chunk `in_flight`, `stream`
    alternates between copies and computations. `in_flight` 0 is one if the device reads host memory in place,
    otherwise two. `free` returns the number of bytes that chunks may use.
    """

    math: TileMath = TorchTileMath()
    counts_work = True
    """Whether temporary memory of operators counts as chunk memory."""

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
        """Kernels on the allocated chunks; None before `allocate` and after `release`."""
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
        """Run on the compute stream, and convert out-of-memory errors into DeviceOutOfMemoryError."""
        try:
            with self._driver.running(self._stream), torch.no_grad():
                yield
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # Drop references: the traceback's frames hold tensors.
            traceback.clear_frames(error.__traceback__)
            raise DeviceOutOfMemoryError(
                f"{self.name}: out of memory in a step in chunks, with "
                f"{format_bytes(self._driver.used_bytes())} in use",
                remedy="lower fullgraph.device_memory to what the device has free, or lower model.hidden",
            ) from error

    def gradients(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
        """Copy the gradient sums of the step to the host, in the order of the parameters."""
        assert self.kernels is not None
        return self.kernels.gradients_on_host(parameters)

    @property
    def times(self) -> ChunkTimes:
        """Times of the kernels' copies and computations in the step."""
        assert self.kernels is not None
        return self.kernels.times

    def release(self) -> None:
        self._wait()
        self.kernels = None
        self._driver.trim()

    def _wait(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))


class TorchChunkSteps:
    """Runner of chunked full-graph steps, which also returns the gradients."""

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
        """Number of vertex intervals; None before the first step."""
        return self._runs.num

    def step(self, batch: MiniBatch, parameters: Sequence[torch.nn.Parameter]) -> StepResult:
        """Compute a step like `ChunkedTrainer.run`, and return its gradients in the order of `parameters`."""
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
