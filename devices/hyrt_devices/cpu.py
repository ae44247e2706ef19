"""The CPU trainer: any torch module over blocks, reading host memory in place."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import psutil
import torch

from hyrt.device import HOST_FORMS, DeviceInfo, DeviceOptions, Health, StepResult
from hyrt.device.capabilities import Resizable, TakesObjective, Watchable
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.cores import available_cores, vector_instructions
from hyrt.machine.workers import Watch, Workers, working
from hyrt.nn.split_safety import refuse_batch_statistics
from hyrt.nn.torch_threads import threads_for, use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.objective.on_host import numbers
from hyrt.objective.registry import OBJECTIVES
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.host_staged import HostStaged


class CpuDevice(TakesObjective, Resizable, Watchable):
    """Trains on CPU cores with torch and the compiled operators of `hyrt.nn`.

    Several may be open at once (`cpu:0`, `cpu:1`, ...), each with threads of its own.
    """

    def __init__(self, info: DeviceInfo, options: DeviceOptions) -> None:
        self.info = info
        self._workers = Workers(
            options.threads, f"hyrt.{info.name}.train", on_start=use_one_torch_thread, pool=BufferPool()
        )
        self._model: torch.nn.Module | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._torch_threads = 1
        self._objective: Objective = Classification()
        self._health = Health(info.name)
        self._staged = HostStaged()

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        cores = available_cores()
        memory = psutil.virtual_memory().total
        # One process may run several trainers on its cores; as many as there are cores make sense.
        return [
            DeviceInfo(
                kind="cpu",
                index=index,
                description=", ".join([f"{cores} cores", *vector_instructions()]),
                memory_bytes=memory,
                zero_copy=True,
                forms=HOST_FORMS,
                host_cores=cores,
                link="host memory",
            )
            for index in range(max(2, cores))
        ]

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> CpuDevice:
        return cls(info, options)

    def take_objective(self, objective: Objective) -> None:
        self._objective = objective

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("load"):
            refuse_batch_statistics(model, self.info.name)
            self._torch_threads = threads_for(model, self._workers.count)
            self._model = copy.deepcopy(model).train()
            self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        self.update(parameters)

    def resize(self, threads: int) -> None:
        """Compute with another number of threads; between two calls of `propagate`."""
        with self._health.terminal("resize"):
            self._workers.resize(threads)

    def watch(self, watch: Watch) -> None:
        """Report which threads work, and when."""
        with self._health.terminal("watch"):
            self._workers.watch = watch

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        self._health.check()
        return self._staged.put(batch)

    def propagate(self, staged: MiniBatch) -> StepResult:
        with self._health.terminal("propagate"):
            if self._model is None:
                raise RuntimeError("no model has been loaded")
            return self._step(self._model, self._staged.take(staged))

    def _step(self, model: torch.nn.Module, batch: MiniBatch) -> StepResult:
        if not len(batch.targets):
            return StepResult.empty(batch.normalizer)
        started = time.perf_counter()
        # Each time: torch keeps the count partly by thread and partly for the process.
        torch.set_num_threads(self._torch_threads)
        with working(self._workers):
            for parameter in self._parameters:
                parameter.grad = None
            scores = model(batch.blocks, batch.inputs)
            labels = torch.from_numpy(batch.labels)
            given = batch.target_weights
            weights = None if given is None else torch.from_numpy(given)
            with OBJECTIVES.blamed(self._objective.name, "loss_sum"):
                loss = self._objective.loss_sum(scores, labels, weights)
            loss.backward()  # type: ignore[no-untyped-call]
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._parameters
        ]
        return StepResult(
            loss_sum=float(loss.detach()),
            counts=numbers(self._objective.count(scores.detach(), labels)),
            normalizer=batch.normalizer,
            gradients=gradients,
            seconds={"propagate": time.perf_counter() - started},
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"), torch.no_grad():
            for mine, new in zip(self._parameters, parameters, strict=True):
                mine.copy_(new)

    def close(self) -> None:
        self._health.close()
        self._staged.clear()
        self._model = None
        self._parameters = []
        self._workers.close()
