"""The OpenCL trainer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any

import torch

from hyrt.device import DeviceInfo, DeviceOptions, Health, QueueListener, StepResult
from hyrt.device.capabilities import ExplainsAbsence, SamplesNeighbors, TakesObjective, Traceable
from hyrt.errors import DeviceOutOfMemory
from hyrt.graph.graph import Graph
from hyrt.nn.description import describe
from hyrt.objective import Objective
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.memory import DeviceMemory
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import Programs, SourcePrograms
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl.sampler import OpenclSampler
from hyrt_devices.opencl.staged import StagedBatch, Stager
from hyrt_devices.opencl.tuning import Tuning, tuning_of
from hyrt_devices.opencl.warm_up import smallest_batch
from hyrt_devices.opencl_host.profiling import span_s, spans
from hyrt_devices.opencl_host.recycled_memory import memory_errors
from hyrt_devices.opencl_host.survey import opening

_NO_MEMORY = r"MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_RESOURCES|OUT_OF_HOST_MEMORY"


class OpenclDevice(ExplainsAbsence, TakesObjective, SamplesNeighbors, Traceable):
    """Trains with kernels of our own on one OpenCL device.

    One queue for transfers and one for computing, each with kernel objects of its own; events join them.

    Parameters
    ----------
    info
        The device that `probe` described.
    device
        `pyopencl.Device`, perhaps a part of the probed one.
    options
        The run's.
    tuning
        How kernels are cut; by the type of device if None.
    programs
        The programs that provide the kernels; compiled from source if None.
    """

    def __init__(
        self,
        info: DeviceInfo,
        device: Any,
        options: DeviceOptions,
        tuning: Tuning | None = None,
        programs: Programs | None = None,
    ) -> None:
        import pyopencl as cl

        self.info = info
        self._health = Health(info.name)
        self._device = device
        self._context = cl.Context([device])
        self._tuning = tuning or tuning_of(device)
        self._programs = programs or SourcePrograms(self._context, device)
        limit = int(device.global_mem_size)
        if options.memory_bytes is not None:
            limit = min(limit, options.memory_bytes)
        largest = int(device.max_mem_alloc_size)
        self._memory = DeviceMemory(self._context, info.name, limit, largest, zero_copy=info.zero_copy)
        self._copies = Launcher(self._context, device)
        self._compute = Launcher(self._context, device)
        self._samplers: list[OpenclSampler] = []
        # None where the device computes the objective itself.
        self._host_objective: Objective | None = None
        self._hear: QueueListener | None = None
        self._replica: Replica | None = None
        self._stager: Stager | None = None

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [found.info for found in survey().found]

    @classmethod
    def missing(cls) -> str:
        """Why there is no device, or not every one that is expected, and what to do; empty if all is well."""
        return "; ".join(survey().reasons)

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> OpenclDevice:
        found = survey().of(info, "it was found when it was probed: its driver may have changed")
        device, note = found.device, ""
        if info.host_cores > options.threads:
            device, note = _part(device, options.threads)
        with opening(info, "stop whatever else uses it, or check its driver with clinfo"):
            return cls(_noted(info, note), device, options)

    def take_objective(self, objective: Objective) -> None:
        self._host_objective = None if objective.is_plain_classification else objective

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        described = describe(model, self.info.name)
        trainable = [p for p in model.parameters() if p.requires_grad]
        with self._health.terminal("load"):
            if self._replica is not None:
                self._replica.release()
            self._replica = self._stager = None
            replica = Replica(
                self._programs, self._tuning, self._memory, described, trainable, self.info.name
            )
            self._replica = replica
            self._stager = Stager(
                self._memory,
                self._copies,
                model=described,
                widths=(replica.aggregated_width, replica.row_width),
                num_classes=replica.num_classes,
            )
        self.update(parameters)
        # The first launch of a kernel compiles it, which takes longer than a step. Where not even this batch
        # fits, what is staged first will say so.
        with suppress(DeviceOutOfMemory):
            self.propagate(self.transfer(smallest_batch(len(described.layers), replica.row_width)))

    def sampler(self, graph: Graph) -> HopSampler | None:
        with self._health.terminal("sampler"):
            queue = Launcher(self._context, self._device)
            try:
                made = OpenclSampler(self._programs, self._tuning, self._memory, queue, graph)
            except DeviceOutOfMemory:
                # The topology does not fit: the host samples.
                return None
            self._samplers.append(made)
            return made

    def trace(self, hear: QueueListener) -> None:
        """From now on hand over what each queue has run: `copies`, `compute` and `sample`."""
        self._hear = hear
        for sampler in self._samplers:
            sampler.hear = hear

    def transfer(self, batch: MiniBatch) -> StagedBatch:
        with self._health.terminal("transfer"):
            if self._stager is None:
                raise RuntimeError("no model has been loaded")
            with self._memory_errors("transfer"):
                return self._stager.stage(batch, self)

    def propagate(self, staged: StagedBatch) -> StepResult:
        with self._health.terminal("propagate"):
            if not isinstance(staged, StagedBatch) or staged.owner is not self or self._replica is None:
                raise TypeError(f"{type(staged).__name__} is not a mini-batch that transfer staged")
            if not staged.targets:
                staged.release()
                return StepResult.empty(staged.normalizer)
            updates = self._compute.taken()
            self._compute.wait_for(staged.events)
            try:
                with self._memory_errors("propagate"):
                    loss_sum, counts, gradients = self._replica.run(
                        self._compute, staged, self._host_objective
                    )
                ran = self._compute.taken()
                seconds = {
                    "transfer": span_s(staged.events),
                    "propagate": span_s([event for _, event in ran]),
                }
                if self._hear is not None:
                    self._hear("compute", spans([*updates, *ran]))
                    self._hear("copies", spans([("copy", event) for event in staged.events]))
            finally:
                self._compute.wait_for(())
                staged.release()
            return StepResult(
                loss_sum=loss_sum,
                counts=counts,
                normalizer=staged.normalizer,
                gradients=[torch.from_numpy(gradient) for gradient in gradients],
                seconds=seconds,
            )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            if self._replica is None:
                raise RuntimeError("no model has been loaded")
            self._replica.update(self._compute, parameters)
            self._compute.flush()

    def close(self) -> None:
        self._health.close()
        for launcher in (self._copies, self._compute):
            launcher.close()
        for sampler in self._samplers:
            sampler.close()
        self._samplers = []
        self._replica = self._stager = None
        self._memory.buffers.close()

    def _memory_errors(self, doing: str) -> AbstractContextManager[None]:
        return memory_errors(_NO_MEMORY, self._memory.buffers, doing)


def _part(device: Any, units: int) -> tuple[Any, str]:
    """A sub-device of so many compute units; the whole where it cannot be cut."""
    import pyopencl as cl

    try:
        parts = device.create_sub_devices([cl.device_partition_property.BY_COUNTS, units])
    except cl.Error:
        return device, "cannot be partitioned: all units are used"
    return parts[0], f"{units} used"


def _noted(info: DeviceInfo, note: str) -> DeviceInfo:
    return replace(info, description=f"{info.description}, {note}") if note else info
