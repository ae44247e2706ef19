"""Group of devices that train a full graph together: each device computes some columns of its chunks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import cast

import torch

from hyrt.device import Device, DeviceInfo, DeviceOptions, Health, StepResult
from hyrt.device.calls import load_replica
from hyrt.device.capabilities import (
    CheckpointsSteps,
    CompositeDevice,
    KeepsHostBudget,
    RunsChunks,
    SharesColumns,
    SharesLoops,
    TakesObjective,
)
from hyrt.device.host_model import HostSaga
from hyrt.errors import DeviceFaultError, DeviceUnavailableError, UnsupportedModelError, describe_error
from hyrt.fullgraph.chunk_kernels import MemberDeviceError
from hyrt.fullgraph.chunked_trainer import ChunkDeviceMemory, ChunkedTrainer
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.nn.description import describe as described
from hyrt.nn.model_checks import check_loops, needs_loops
from hyrt.nn.torch_threads import use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroupInfo(DeviceInfo):
    """Description of a group of devices under one name, such as `cpu:0+opencl:0`."""

    members: tuple[tuple[type[Device], DeviceInfo], ...]
    """Backend class and description of each device."""
    shares: tuple[float, ...]
    """Relative share of the graph for each device, in any unit."""
    continue_on_loss: bool
    """Whether the other devices take over the work of a failed device."""

    @property
    def name(self) -> str:
        return "+".join(info.name for _, info in self.members)


@dataclass(slots=True)
class _Member:
    device: Device
    share: float
    memory: ChunkDeviceMemory | None = None

    @property
    def name(self) -> str:
        return self.device.info.name

    def gradients(self) -> Sequence[torch.Tensor]:
        assert isinstance(self.device, SharesColumns)
        return self.device.chunk_gradients()


class ChunkDeviceGroup(TakesObjective, KeepsHostBudget, RunsChunks, CheckpointsSteps, CompositeDevice):
    """Composite device that trains a full graph on several devices (NeuGraph, section 3.3).

    The columns of chunks are assigned in proportion to the devices' shares. All matrices are stored on the
    host, so that each pass can read the previous results of all devices. Gradient sums are added in the order
    of the devices. If the devices compute only edges, `threads` host threads compute the vertices.
    """

    info: DeviceInfo

    def __init__(self, info: DeviceGroupInfo, devices: Sequence[Device], threads: int = 1) -> None:
        self.info = info
        self._threads = threads
        self._continues = info.continue_on_loss
        self._devices = list(devices)
        self._members = [_Member(device, share) for device, share in zip(devices, info.shares, strict=True)]
        self._health = Health(info.name)
        self._objective: Objective = Classification()
        self._options = ChunkOptions()
        self._budget = HostMemoryBudget()
        self._keeper: StepCheckpointer | None = None
        self._model: torch.nn.Module | None = None
        self._runs: ChunkedTrainer | None = None
        # Not None if the host computes the vertices, and the devices only the edges.
        self._loops: HostSaga | None = None
        self._staged: set[int] = set()
        self._is_shared = False
        """Whether other processes compute other parts of the graph."""
        self._notices: list[str] = []
        self.lost: dict[str, str] = {}
        """Reason for the loss of each lost device, by device name."""

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        """Return an empty list, because groups are created by a run, not detected."""
        return []

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> ChunkDeviceGroup:
        """Open all devices. Devices that compute on host cores share the threads."""
        if not isinstance(info, DeviceGroupInfo):
            raise DeviceUnavailableError(f"{info.name} is not a device group: open it with its own backend")
        on_host = sum(member.host_cores > 0 for _, member in info.members)
        threads = max(1, options.threads // max(1, on_host))
        opened: list[Device] = []
        try:
            for backend, member in info.members:
                member_options = DeviceOptions(threads=threads, memory_bytes=options.memory_bytes)
                opened.append(backend.open(member, member_options))
        except BaseException:
            for device in opened:
                with suppress(Exception):
                    device.close()
            raise
        return cls(info, opened, options.threads)

    def take_objective(self, objective: Objective) -> None:
        self._objective = objective

    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        self._budget = budget

    def take_chunks(self, options: ChunkOptions) -> None:
        self._options = options

    def take_step_checkpointer(self, keeper: StepCheckpointer) -> None:
        self._keeper = keeper

    @property
    def members(self) -> Sequence[Device]:
        return self._devices

    @property
    def num_chunks(self) -> int | None:
        if self._loops is not None:
            return self._loops.num
        return None if self._runs is None else self._runs.num

    def take_notices(self) -> list[str]:
        """Return and clear the messages about the group's devices."""
        notices, self._notices = self._notices, []
        return notices

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("load"):
            self._model = model
            self._release_loops()
            if needs_loops(model):
                check_loops(model, self.info.name)
                self._begin_loops()
                self.update(parameters)
                return
            described(model, self.info.name)  # Reject an unsupported model before any device loads it.
            for member in self._members:
                device = member.device
                if isinstance(device, RunsChunks):
                    device.take_chunks(self._options)
                load_replica(device, model, parameters, self._objective)
                assert isinstance(device, SharesColumns)
                member.memory = device.chunk_memory(self._options.in_flight)
            self._begin_runs()

    def transfer(self, batch: MiniBatch) -> MiniBatch:
        """Return the batch unchanged, because chunks are transferred while the step is computed."""
        self._health.check()
        self._staged.add(id(batch))
        return batch

    def propagate(self, staged: MiniBatch) -> StepResult:
        with self._health.terminal("propagate"):
            if id(staged) not in self._staged:
                raise TypeError(f"{type(staged).__name__} is not a mini-batch that transfer staged")
            self._staged.remove(id(staged))
            self._is_shared = staged.full_graph is not None and staged.full_graph.is_distributed
            if not self._is_shared and not len(staged.targets):
                return StepResult.empty(staged.normalizer)
            while True:
                try:
                    return self._step(staged)
                except MemberDeviceError as lost:
                    self._mark_lost(lost.member, lost.error)

    def _step(self, batch: MiniBatch) -> StepResult:
        if self._loops is not None:
            return self._loops.step(batch, self._objective)
        runs = self._health.loaded(self._runs)
        objective = None if self._objective.is_plain_classification else self._objective
        loss_sum, counts = runs.run(batch, objective)
        chunks = runs.step_stats()  # Read the statistics before the members report their queue operations.
        each = []
        for index, member in enumerate(self._members):
            try:
                each.append(member.gradients())
            except Exception as error:
                raise MemberDeviceError(index, error) from error
        return StepResult(
            loss_sum=loss_sum,
            counts=counts,
            normalizer=batch.normalizer,
            gradients=[reduce(torch.add, of_parameter) for of_parameter in zip(*each, strict=True)],
            chunks=chunks,
        )

    def _mark_lost(self, index: int, error: BaseException) -> None:
        """Continue without a lost device and repeat the step, if allowed and if devices are left.

        This is impossible if other processes have computed a part of the step.
        """
        member = self._members[index]
        if self._is_shared or not self._continues or len(self._members) == 1:
            if isinstance(error, DeviceFaultError):
                raise error
            raise DeviceFaultError(
                f"{member.name}: a step in chunks failed: {describe_error(error)}"
            ) from error
        self.lost[member.name] = describe_error(error)
        del self._members[index]
        names = ", ".join(each.name for each in self._members)
        self._notices.append(
            f"{member.name} is lost; {names} took over its columns, and the step was computed again "
            f"({describe_error(error)})"
        )
        if self._loops is not None:
            parameters = self._loops.parameters
            self._release_loops()
            self._begin_loops()
            self.update(parameters)
            return
        for each in (member, *self._members):
            # Close the lost device, which releases its resources.
            with suppress(Exception):
                if each.memory is not None:
                    each.memory.release()
        self._begin_runs()

    def _begin_loops(self) -> None:
        """Run edge loops on the devices for a model whose vertices are computed on the host."""
        model = self._health.loaded(self._model)
        for member in self._members:
            if not isinstance(member.device, SharesLoops):
                raise UnsupportedModelError(
                    f"{member.name} cannot run loops over edges, which {type(model).__name__} requires on "
                    "several devices: train it on cpu, opencl or cuda"
                )
        members = [cast(SharesLoops, member.device).loop_member(model) for member in self._members]
        workers = Workers(
            self._threads, f"hyrt.{self.info.kind}.train", on_start=use_one_torch_thread, pool=BufferPool()
        )
        shares = [member.share for member in self._members]
        self._loops = HostSaga(model, workers, members, self._options, self._budget, shares, self._keeper)

    def _release_loops(self) -> None:
        loops, self._loops = self._loops, None
        if loops is not None:
            with suppress(Exception):  # Close the lost device, which releases its resources.
                loops.close()

    def _begin_runs(self) -> None:
        model = self._health.loaded(self._model)
        self._runs = ChunkedTrainer(
            described(model, self.info.name),
            [self._health.loaded(member.memory) for member in self._members],
            self._options,
            self._budget,
            [member.share for member in self._members],
            self._keeper,
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            if self._loops is not None:
                self._loops.update(parameters)
                return
            for index in reversed(range(len(self._members))):
                try:
                    self._members[index].device.update(parameters)
                except Exception as error:
                    self._mark_lost(index, error)

    def close(self) -> None:
        self._health.close()
        self._release_loops()
        self._runs = self._model = None
        devices, self._devices, self._members = self._devices, [], []
        errors = []
        for device in devices:
            try:
                device.close()
            except Exception as error:
                if device.info.name not in self.lost:
                    errors.append(error)
        if errors:
            raise errors[0]
