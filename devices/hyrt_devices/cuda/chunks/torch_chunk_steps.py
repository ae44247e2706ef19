"""Steps over whole graphs in chunks on one torch device."""

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
    """`ChunkDeviceMemory` of a torch device.

    Parameters
    ----------
    name
        The device's name, for messages.
    driver, stream, copies
        The hardware, the stream that computes, and the one that copies the next chunks beside it.
    model
        The model, with parameters on the device.
    objective
        What is trained for.
    free
        Gives the bytes that chunks may take.
    in_flight
        How many chunks are there at once; with one, `stream` copies and computes by turns. 0 is one where the
        device reads the host's memory in place, and else two.
    """

    math: TileMath = TorchTileMath()
    """Computes on the rows of tiles."""
    counts_work = True
    """Whether what operators make for a while is of the memory that chunks may take."""

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
        """What runs on the chunks that are there; None where none are."""
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
        """Run on the stream, and turn the driver's error into DeviceOutOfMemoryError."""
        try:
            with self._driver.running(self._stream), torch.no_grad():
                yield
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # The error's frames hold tensors.
            traceback.clear_frames(error.__traceback__)
            raise DeviceOutOfMemoryError(
                f"{self.name}: out of memory in a step in chunks, with "
                f"{format_bytes(self._driver.used_bytes())} in use",
                remedy="lower fullgraph.device_memory to what the device has free, or lower model.hidden",
            ) from error

    def gradients(self, parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor]:
        """The gradient sums of the kernels since `begin`, on the host, in the order of the parameters."""
        assert self.kernels is not None
        return self.kernels.gradients_on_host(parameters)

    @property
    def times(self) -> ChunkTimes:
        """When the kernels copied and computed since `begin`."""
        assert self.kernels is not None
        return self.kernels.times

    def release(self) -> None:
        self._wait()
        self.kernels = None
        self._driver.trim()

    def _wait(self) -> None:
        self._driver.wait(self._driver.mark(self._stream))


class TorchChunkSteps:
    """Steps in chunks, with the gradients of each.

    Parameters
    ----------
    room
        The memory for chunks.
    model
        The model, with parameters on the device.
    options, budget
        How chunks are cut, and how much host memory may be used.
    keeper
        Keeps what is done of a long step; None keeps nothing.
    """

    def __init__(
        self,
        room: TorchChunkMemory,
        model: ModelDescription,
        options: ChunkOptions,
        budget: HostMemoryBudget,
        keeper: StepCheckpointer | None = None,
    ) -> None:
        self.room = room
        """The memory for chunks."""
        self._runs = ChunkedTrainer(model, [room], options, budget, checkpointer=keeper)

    @property
    def num(self) -> int | None:
        """How many intervals the vertices are cut into; None before the first step."""
        return self._runs.num

    def step(self, batch: MiniBatch, parameters: Sequence[torch.nn.Parameter]) -> StepResult:
        """A step, as `ChunkedTrainer.run`.

        Parameters
        ----------
        batch
            The whole graph, with at least one target.
        parameters
            The parameters whose gradients are wanted, in their order.
        """
        with torch.no_grad():
            loss_sum, counts = self._runs.run(batch, None)
            gradients = self.room.gradients(parameters)
        return StepResult(
            loss_sum=loss_sum,
            counts=counts,
            normalizer=batch.normalizer,
            gradients=gradients,
            chunks=self._runs.step_stats(),
        )

    def release(self) -> None:
        """Give all memory back."""
        self._runs.release()
