"""FPGA trainer, which runs tasks with the kernel of an xclbin through XRT's OpenCL."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from hyrt.device import DeviceInfo, DeviceOptions, Health, QueueListener, StepResult
from hyrt.device.capabilities import ExplainsMissing, Traceable
from hyrt.errors import UnsupportedModelError
from hyrt.nn.description import ModelDescription
from hyrt.sampling.minibatch import MiniBatch
from hyrt_devices.fpga.compute_units import (
    OF_THE_MODEL,
    ComputeUnits,
    Queue,
    StagedTasks,
    TaskStager,
    is_over,
)
from hyrt_devices.fpga.pools import FEWER_TARGETS, BufferPools
from hyrt_devices.fpga.probe import survey
from hyrt_devices.fpga.tasks import build_tasks
from hyrt_devices.fpga.weights import WeightLayout, described
from hyrt_devices.fpga.xclbin import TrainerPrograms, XclbinPrograms
from hyrt_devices.opencl_host.discovery import opening
from hyrt_devices.opencl_host.memory_pool import memory_errors
from hyrt_devices.opencl_host.profiling import Command, span_s, spans


class FpgaDevice(ExplainsMissing, Traceable):
    """Trainer on one FPGA card. A mini-batch that does not fit on the chip is trained in tiles.

    Transfers and launches use separate queues and kernel objects, which events synchronize. `context` is a
    `pyopencl.Context` for the single `pyopencl.Device` `device`.
    """

    def __init__(
        self, info: DeviceInfo, context: Any, device: Any, options: DeviceOptions, programs: TrainerPrograms
    ) -> None:
        self.info = info
        self._health = Health(info.name)
        self._programs = programs
        limit = info.memory_bytes
        if options.memory_bytes is not None:
            limit = min(limit, options.memory_bytes)
        self._pools = BufferPools(
            context, info.name, limit, int(device.max_mem_alloc_size), of_the_model=OF_THE_MODEL
        )
        self._transfers = Queue(context, device)
        self._launches = Queue(context, device)
        self._stager = TaskStager(programs, self._pools, self._transfers)
        self._model: ModelDescription | None = None
        self._layout: WeightLayout | None = None
        self._units: ComputeUnits | None = None
        self._listener: QueueListener | None = None
        # Weight transfers that have not been reported yet; empty unless the run is traced.
        self._brought: list[Command] = []

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [found.info for found in survey().found]

    @classmethod
    def missing(cls) -> str:
        """Return the reason why no card is available, and the remedy; "" if cards are available."""
        return "; ".join(survey().reasons)

    @classmethod
    def unsupported_reason(cls, model: torch.nn.Module) -> str:
        """Return the reason why the kernels do not support a model (possibly on the meta device), or ""."""
        try:
            described(model, "the FPGA trainer")
        except UnsupportedModelError as error:
            return str(error)
        return ""

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> FpgaDevice:
        found = survey().of(info, "it disappeared after the probe: check it with `xbutil examine`")
        import pyopencl as cl

        with opening(info, "stop other programs that use the card, or reset it with `xbutil reset`"):
            context = cl.Context([found.device])
            return cls(
                info, context, found.device, options, XclbinPrograms(context, found.device, found.xclbin)
            )

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        model_words = described(model, self.info.name)
        trainable = [p for p in model.parameters() if p.requires_grad]
        with self._health.terminal("load"), self._memory_errors("load"):
            if self._units is not None:
                self._launches.settle()
                self._transfers.settle()
                self._units.release()
            self._model = self._layout = self._units = None
            layout = WeightLayout(model_words, trainable, self.info.name)
            self._units = ComputeUnits(
                self._programs, self._pools, self._stager, self._launches, layout.num_floats
            )
            self._model, self._layout = model_words, layout
        self.update(parameters)

    def trace(self, listener: QueueListener) -> None:
        """Report the completed commands of the queues `transfers` and `launches` from now on."""
        self._listener = listener

    def transfer(self, batch: MiniBatch) -> StagedTasks:
        with self._health.terminal("transfer"), self._memory_errors("transfer"):
            model = self._health.loaded(self._model)
            # The owner is checked later, to reject mini-batches that were staged for another model or device.
            staged = StagedTasks(owner=self._units, targets=len(batch.targets), normalizer=batch.normalizer)
            if staged.targets:
                self._stager.stage(
                    staged,
                    build_tasks(
                        batch,
                        model,
                        self._programs.design,
                        self.info.name,
                        min_tasks=self._programs.num_units,
                    ),
                )
            return staged

    def propagate(self, staged: StagedTasks) -> StepResult:
        with self._health.terminal("propagate"), self._memory_errors("propagate"):
            units, layout = self._health.loaded(self._units), self._health.loaded(self._layout)
            if not isinstance(staged, StagedTasks) or staged.owner is not units:
                raise TypeError(f"propagate got {type(staged).__name__}, expected a mini-batch from transfer")
            arrived = [event for task in staged.tasks for event in task.events]
            try:
                sums = units.run(staged.tasks)
                seconds = {"transfer": span_s(arrived), "propagate": span_s(sums.events)}
                if self._listener is not None:
                    self._listener("launches", spans(sums.commands))
                    self._listener(
                        "transfers", spans([*self._arrived(), *(("task", event) for event in arrived)])
                    )
            finally:
                # Wait even after an error, because launched commands still use the buffers.
                self._launches.settle()
                staged.release(self._pools)
            gradients = layout.unpack(sums.gradients) if staged.targets else []
            return StepResult(
                loss_sum=sums.loss_sum,
                counts={"correct": sums.correct, "targets": staged.targets} if staged.targets else {},
                normalizer=staged.normalizer,
                gradients=[torch.from_numpy(gradient) for gradient in gradients],
                seconds=seconds if staged.targets else {},
            )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"), self._memory_errors("update"):
            units, layout = self._health.loaded(self._units), self._health.loaded(self._layout)
            events = units.update(layout.pack(parameters))
            if self._listener is not None:
                self._brought += [("weights", event) for event in events]

    def _arrived(self) -> list[Command]:
        """Return the completed weight transfers. Those to units without tasks may still be running."""
        brought, self._brought = self._brought, []
        over = [command for command in brought if is_over(command[1])]
        self._brought = [command for command in brought if command not in over]
        return over

    def close(self) -> None:
        self._health.close()
        # Close both queues before memory is released, because launches wait for transfers.
        self._transfers.close()
        self._launches.close()
        self._model = self._layout = self._units = None
        self._pools.slots.close()

    def _memory_errors(self, doing: str) -> AbstractContextManager[None]:
        # Match only this error, because XRT reports errors without a code as OUT_OF_HOST_MEMORY.
        remedy = "use narrower layers" if doing in ("load", "update") else FEWER_TARGETS
        return memory_errors("MEM_OBJECT_ALLOCATION_FAILURE", self._pools.slots, doing, remedy)
