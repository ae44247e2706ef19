"""CPU trainer for any torch module over blocks, which reads host memory in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from hyrt.device import HOST_FORMS, DeviceInfo, DeviceOptions, Health, QueueListener, StepResult
from hyrt.device.capabilities import (
    CheckpointsSteps,
    KeepsHostBudget,
    Observable,
    Resizable,
    ScoresVertices,
    SharesColumns,
    SharesLoops,
    StreamsGradients,
    TakesObjective,
    Traceable,
)
from hyrt.device.host_model import HostModel
from hyrt.errors import UnsupportedModelError
from hyrt.fullgraph.loop_device import HostLoops
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.plan import is_decomposable
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.nn.description import ModelDescription, describe
from hyrt.nn.model_errors import reject_batch_statistics
from hyrt.nn.torch_threads import use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.hardware import shared_cores, vector_instructions
from hyrt.runtime.workers import RunObserver, Workers, use_workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.cuda.driver import HostDriver, Timeline
from hyrt_devices.cuda.tile_math import HostTileMath
from hyrt_devices.cuda.torch_chunks import TorchChunkMemory
from hyrt_devices.host_staged import HostStaged


class HostChunkMemory(TorchChunkMemory):
    """Chunk memory on the host, where a team of worker threads computes the tiles."""

    math = HostTileMath()
    counts_work = False

    def __init__(
        self,
        name: str,
        driver: HostDriver,
        workers: Workers,
        model: ModelDescription,
        objective: Objective,
        free: Callable[[], int],
    ) -> None:
        # Copies are synchronous, so a second chunk in flight would use memory without saving time.
        super().__init__(name, driver, None, None, model, objective, free, in_flight=1)
        self._workers = workers

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        use_one_torch_thread()
        with use_workers(self._workers), super().translate_errors():
            yield


class CpuDevice(
    TakesObjective,
    Resizable,
    StreamsGradients,
    ScoresVertices,
    KeepsHostBudget,
    CheckpointsSteps,
    SharesColumns,
    SharesLoops,
    Traceable,
    Observable,
):
    """Trainer on CPU cores, with torch and the compiled operators of `hyrt.nn`.

    Several CPU devices may be open at once (`cpu:0`, `cpu:1`, ...), each with separate worker threads.
    """

    def __init__(self, info: DeviceInfo, options: DeviceOptions) -> None:
        self.info = info
        self._memory_bytes = options.memory_bytes
        self._workers = Workers(
            options.threads, f"hyrt.{info.name}.train", on_start=use_one_torch_thread, pool=BufferPool()
        )
        self._model: HostModel | None = None
        self._objective: Objective = Classification()
        self._health = Health(info.name)
        self._budget = HostMemoryBudget()
        self._keeper: StepCheckpointer | None = None
        # This is set only if the device shares a full graph's columns with other devices.
        self._shared: HostChunkMemory | None = None
        self._loops: HostLoops | None = None
        self._driver = HostDriver()
        self._timeline = Timeline(self._driver, None)
        self._listener: QueueListener | None = None
        self._staged = HostStaged()

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        cores = shared_cores()
        memory = psutil.virtual_memory().total
        # A process may run several trainers on its cores, but at most one per core.
        return [
            DeviceInfo(
                kind="cpu",
                index=index,
                description=", ".join([f"{cores} cores", *vector_instructions()]),
                memory_bytes=memory,
                zero_copy=True,
                forms=HOST_FORMS,
                host_cores=cores,
                whole_graphs=True,
                link="host memory",
            )
            for index in range(max(2, cores))
        ]

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> CpuDevice:
        return cls(info, options)

    def take_objective(self, objective: Objective) -> None:
        self._objective = objective

    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        self._budget = budget

    def take_step_checkpointer(self, keeper: StepCheckpointer) -> None:
        self._keeper = keeper

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("load"):
            reject_batch_statistics(model, self.info.name)
            if self._budget.limit_bytes is not None and not is_decomposable(model):
                raise UnsupportedModelError(
                    f"{type(model).__name__} on {self.info.name} computes the whole graph at once, so "
                    "fullgraph.host_memory has no effect: remove it, or train a model from hyrt.nn"
                )
            checkpoint_facts = {"devices": [self.info.name]}
            self._model = HostModel(model, self._workers, self._budget, self._keeper, checkpoint_facts)
        self.update(parameters)

    def resize(self, threads: int) -> None:
        """Change the number of threads. Only allowed between two calls of `propagate`."""
        with self._health.terminal("resize"):
            self._workers.resize(threads)

    def register_gradient_hook(self, hook: Callable[[int, torch.Tensor], None]) -> None:
        """Register a callback that receives mini-batch gradients during the backward pass."""
        with self._health.terminal("register_gradient_hook"):
            self._health.loaded(self._model).register_gradient_hook(hook)

    def watch(self, watch: RunObserver) -> None:
        """Set the observer that is notified when threads work."""
        with self._health.terminal("watch"):
            self._workers.observer = watch

    def trace(self, listener: QueueListener) -> None:
        """Report copies and computations of full-graph chunks. Other work is reported to the observer."""
        with self._health.terminal("trace"):
            self._listener = listener
            if self._loops is not None:
                self._loops.on_trace = listener

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        self._health.check()
        return self._staged.put(batch)

    def propagate(self, staged: MiniBatch) -> StepResult:
        with self._health.terminal("propagate"):
            return self._step(self._health.loaded(self._model), self._staged.take(staged))

    def scores(self, vertices: Ids) -> NDArray[np.float32] | None:
        with self._health.terminal("scores"):
            return None if self._model is None else self._model.scores(vertices)

    def _step(self, model: HostModel, batch: MiniBatch) -> StepResult:
        return model.step(batch, self._objective)

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            self._health.loaded(self._model).update(parameters)

    def chunk_memory(self, in_flight: int) -> HostChunkMemory:
        """Return chunk memory that computes in place on host rows and edges, one chunk at a time."""
        with self._health.terminal("chunk_memory"):
            described = describe(self._health.loaded(self._model).module, self.info.name)
            self._shared = HostChunkMemory(
                *(self.info.name, self._driver, self._workers),
                *(described, self._objective, self._free_bytes),
            )
            return self._shared

    def _free_bytes(self) -> int:
        available = psutil.virtual_memory().available
        return available if self._memory_bytes is None else min(available, self._memory_bytes)

    def chunk_gradients(self) -> list[torch.Tensor]:
        with self._health.terminal("chunk_gradients"):
            parameters = self._health.loaded(self._model).parameters
            memory = self._health.loaded(self._shared)
            gradients = memory.gradients(parameters)
            if self._listener is not None:
                memory.times.report(self._listener, self._timeline)
            return gradients

    def loop_member(self, model: torch.nn.Module) -> HostLoops:
        with self._health.terminal("loop_member"):
            self._loops = HostLoops(self.info.name, self._workers)
            self._loops.on_trace = self._listener
            return self._loops

    def close(self) -> None:
        self._health.close()
        self._staged.clear()
        self._model = self._shared = self._loops = None
        self._workers.close()
