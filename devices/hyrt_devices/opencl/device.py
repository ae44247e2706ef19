"""Trainer on an OpenCL device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from hyrt.device import DeviceInfo, DeviceOptions, Health, QueueListener, Span, StepResult
from hyrt.device.capabilities import (
    CheckpointsSteps,
    ExplainsMissing,
    FeatureCacheDevice,
    KeepsHostBudget,
    RunsChunks,
    SamplesNeighbors,
    SharesColumns,
    SharesLoops,
    TakesObjective,
    Traceable,
)
from hyrt.device.host_model import HostSaga
from hyrt.errors import DeviceOutOfMemoryError, UnsupportedModelError
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.graph.feature_cache import Rows
from hyrt.graph.graph import Graph
from hyrt.graph.labels import TargetKind, placeholder_labels
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.description import describe
from hyrt.nn.model_checks import check_loops, needs_loops
from hyrt.nn.torch_threads import use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler
from hyrt_devices.host_staged import HostStaged
from hyrt_devices.opencl.chunk_launches import ChunkSteps, OpenclChunkMemory, StagedChunks
from hyrt_devices.opencl.edge_loops import OpenclLoops
from hyrt_devices.opencl.feature_rows import DeviceFeatureCache
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.memory import DeviceMemory
from hyrt_devices.opencl.probe import survey
from hyrt_devices.opencl.programs import Programs, Tuning, forget_programs, shared_programs, tuning_of
from hyrt_devices.opencl.replica import Replica
from hyrt_devices.opencl.sampler import OpenclSampler
from hyrt_devices.opencl.staged import StagedBatch, Stager
from hyrt_devices.opencl_host.batch_check import smallest_batch
from hyrt_devices.opencl_host.discovery import opening
from hyrt_devices.opencl_host.memory_pool import memory_errors
from hyrt_devices.opencl_host.profiling import span_s, spans

_TAKES = "the built-in models and hyrt.nn.SagaLayer layers"
_NO_MEMORY = r"MEM_OBJECT_ALLOCATION_FAILURE|OUT_OF_RESOURCES|OUT_OF_HOST_MEMORY"


class OpenclDevice(
    ExplainsMissing,
    TakesObjective,
    SamplesNeighbors,
    FeatureCacheDevice,
    KeepsHostBudget,
    RunsChunks,
    CheckpointsSteps,
    SharesColumns,
    SharesLoops,
    Traceable,
):
    """Trainer on one OpenCL device, with hyrt's kernels.

    Transfers and kernels use separate queues and kernel objects, which events synchronize. `device` is a
    `pyopencl.Device`, possibly a sub-device of the probed one. `tuning` depends by default on the type of
    device. `copier` is another sub-device whose queues copy chunks, by default `device`.
    """

    def __init__(
        self,
        info: DeviceInfo,
        device: Any,
        options: DeviceOptions,
        tuning: Tuning | None = None,
        copier: Any = None,
    ) -> None:
        import pyopencl as cl

        self.info = info
        self._health = Health(info.name)
        self._device = device
        self._copier = device if copier is None else copier
        if copier is None:
            self._programs = shared_programs(device)
        else:
            self._programs = Programs(cl.Context([device, copier]), device)
        self._context = self._programs.context
        self._tuning = tuning or tuning_of(device)
        limit = int(device.global_mem_size)
        if options.memory_bytes is not None:
            limit = min(limit, options.memory_bytes)
        largest = int(device.max_mem_alloc_size)
        self._memory = DeviceMemory(self._context, info.name, limit, largest, zero_copy=info.zero_copy)
        self._copies = Launcher(self._context, device)
        self._compute = Launcher(self._context, device)
        self._samplers: list[OpenclSampler] = []
        # This is None if the device computes the objective.
        self._host_objective: Objective | None = None
        self._labels: TargetKind = "classes"
        self._listener: QueueListener | None = None
        self._replica: Replica | None = None
        self._stager: Stager | None = None
        # This is None if a full graph is divided into chunks only when it does not fit.
        self._chunk_options: ChunkOptions | None = None
        self._budget = HostMemoryBudget()
        self._keeper: StepCheckpointer | None = None
        self._chunks: ChunkSteps | None = None
        # Set if the host runs the vertex functions and this device the edge functions.
        self._model: HostSaga | None = None
        self._staged = HostStaged()
        self._workers = Workers(
            options.threads, f"hyrt.{info.name}.train", on_start=use_one_torch_thread, pool=BufferPool()
        )
        # This is set if other devices compute some of the columns.
        self._shared: OpenclChunkMemory | None = None

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [found.info for found in survey().found]

    @classmethod
    def missing(cls) -> str:
        """Return the reason why devices are missing, and the remedy; "" if no device is missing."""
        return "; ".join(survey().reasons)

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> OpenclDevice:
        found = survey().of(info, "it disappeared after the probe: check its driver with clinfo")
        device, note = found.device, ""
        if info.host_cores > options.threads:
            device, note = _part(device, options.threads)
        with opening(info, "stop other programs that use it, or check its driver with clinfo"):
            return cls(_noted(info, note), device, options)

    def take_objective(self, objective: Objective) -> None:
        self._host_objective = None if objective.is_plain_classification else objective
        self._labels = objective.labels

    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        self._budget = budget

    def take_chunks(self, options: ChunkOptions) -> None:
        self._chunk_options = options

    def take_step_checkpointer(self, keeper: StepCheckpointer) -> None:
        self._keeper = keeper

    @property
    def num_chunks(self) -> int | None:
        if self._model is not None:
            return self._model.num
        return None if self._chunks is None else self._chunks.num

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        self._health.check()
        if needs_loops(model):
            self._load_loops(model, parameters)
            return
        described = describe(model, self.info.name, supported=_TAKES)
        trainable = [p for p in model.parameters() if p.requires_grad]
        with self._health.terminal("load"):
            if self._replica is not None:
                self._replica.release()
            if self._stager is not None:
                self._stager.forget()
            self._release_chunks()
            self._replica = self._stager = self._model = None
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
        # Warm up: the first launch compiles a kernel, which takes longer than a step. If this batch does not
        # fit, the first real mini-batch will raise the error.
        with suppress(DeviceOutOfMemoryError):
            labels = placeholder_labels(self._labels, 1, replica.num_classes)
            batch = smallest_batch(len(described.layers), replica.row_width, labels)
            self.propagate(self.transfer(batch))

    def _load_loops(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        """Load a model whose vertices the host computes and whose loops over edges run on this device."""
        check_loops(model, self.info.name)
        with self._health.terminal("load"):
            if self._replica is not None:
                self._replica.release()
            if self._stager is not None:
                self._stager.forget()
            self._release_chunks()
            self._replica = self._stager = None
            options = self._chunk_options or ChunkOptions()
            self._model = HostSaga(
                *(model, self._workers, [self._loop_device()], options, self._budget), keeper=self._keeper
            )
        self.update(parameters)

    def loop_member(self, model: torch.nn.Module) -> OpenclLoops:
        with self._health.terminal("loop_member"):
            return self._loop_device()

    def _loop_device(self) -> OpenclLoops:
        return OpenclLoops(
            *(self._programs, self._tuning, self._memory, self._compute),
            errors=lambda: self._memory_errors("propagate"),
            report_times=self._report_times,
        )

    def sampler(self, graph: Graph) -> HopSampler | None:
        with self._health.terminal("sampler"):
            queue = Launcher(self._context, self._device)
            try:
                made = OpenclSampler(self._programs, self._tuning, self._memory, queue, graph)
            except DeviceOutOfMemoryError:
                # The topology does not fit, so the host samples.
                return None
            self._samplers.append(made)
            return made

    @property
    def free_bytes(self) -> int:
        buffers = self._memory.buffers
        return max(0, min(buffers.limit_bytes - buffers.used_bytes, buffers.largest_bytes))

    def keep_rows(self, count: int, pieces: Iterable[Rows]) -> None:
        if self._model is not None:
            raise UnsupportedModelError(
                f"{self.info.name} cannot cache feature rows for this model, because the host computes its "
                "layers and reads the rows in place: remove data.cache"
            )
        with self._health.terminal("keep_rows"):
            replica, stager = self._health.loaded(self._replica), self._health.loaded(self._stager)
            with self._memory_errors("keep_rows"):
                replica.feature_cache = DeviceFeatureCache(self._memory, self._copies, count, pieces)
            stager.num_cached_rows = count

    def trace(self, listener: QueueListener) -> None:
        """Report the completed commands of the queues `copies`, `compute` and `sample` from now on.

        Copies of a full graph in chunks are reported as `copy in` and `copy out`.
        """
        self._listener = listener
        for sampler in self._samplers:
            sampler.listener = listener

    def transfer(self, batch: MiniBatch) -> StagedBatch | StagedChunks | MiniBatch:
        with self._health.terminal("transfer"):
            if self._model is not None:
                return self._staged.put(_with_numbers(batch))
            stager = self._health.loaded(self._stager)
            is_whole = batch.full_graph is not None and bool(len(batch.targets))
            if is_whole and (self._chunks is not None or self._chunk_options is not None):
                return StagedChunks(self, batch)
            try:
                with self._memory_errors("transfer"):
                    return stager.stage(batch, self)
            except DeviceOutOfMemoryError:
                if not is_whole:
                    raise
                stager.forget()
                return StagedChunks(self, batch)

    def propagate(self, staged: StagedBatch | StagedChunks | MiniBatch) -> StepResult:
        with self._health.terminal("propagate"):
            if self._model is not None:
                assert isinstance(staged, MiniBatch)
                return self._step_of_loops(self._model, self._staged.take(staged))
            if isinstance(staged, StagedChunks):
                return self._step_in_chunks(staged)
            if not isinstance(staged, StagedBatch) or staged.owner is not self or self._replica is None:
                raise TypeError(f"propagate got {type(staged).__name__}, expected a mini-batch from transfer")
            whole = staged.whole_batch
            try:
                return self._step(staged, self._replica)
            except DeviceOutOfMemoryError:
                if whole is None:
                    raise
                self._health.loaded(self._stager).forget()
                return self._step_in_chunks(StagedChunks(self, whole))

    def _step(self, staged: StagedBatch, replica: Replica) -> StepResult:
        if not staged.targets:
            staged.release()
            return StepResult.empty(staged.normalizer)
        updates = self._compute.taken()
        self._compute.wait_for(staged.events)
        try:
            with self._memory_errors("propagate"):
                loss_sum, counts, gradients = replica.run(self._compute, staged, self._host_objective)
            ran = self._compute.taken()
            seconds = {
                "transfer": span_s(staged.events),
                "propagate": span_s([event for _, event in ran]),
            }
            if self._listener is not None:
                self._listener("compute", spans([*updates, *ran]))
                self._listener("copies", spans([("copy", event) for event in staged.events]))
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

    def _step_in_chunks(self, staged: StagedChunks) -> StepResult:
        if staged.owner is not self or self._replica is None:
            raise TypeError(f"propagate got {type(staged).__name__}, expected a mini-batch from transfer")
        staged.owner = None
        batch, updates = staged.batch, self._compute.taken()
        if self._chunks is None:
            options = self._chunk_options or ChunkOptions()
            memory = self._chunk_memory_of(options.in_flight)
            self._chunks = ChunkSteps(memory, self._replica, options, self._budget, self._keeper)
        try:
            loss_sum, counts, gradients = self._chunks.run(batch, self._host_objective)
            chunks = self._chunks.figures()
        except BaseException as error:
            try:
                self._release_chunks()
            except Exception as second:
                error.add_note(f"{self.info.name}: its chunk memory could not be freed: {second}")
            raise
        finally:
            self._compute.about = ""
        ran = self._chunks.take_commands()
        self._report_times(spans([*updates, *ran]))
        return StepResult(
            loss_sum=loss_sum,
            counts=counts,
            normalizer=batch.normalizer,
            gradients=[torch.from_numpy(gradient) for gradient in gradients],
            seconds={"propagate": span_s([event for _, event in ran])},
            chunks=chunks,
        )

    def _step_of_loops(self, model: HostSaga, batch: MiniBatch) -> StepResult:
        try:
            return model.step(batch, self._host_objective or Classification())
        finally:
            self._compute.about = ""

    def _report_times(self, report: list[Span]) -> None:
        """Report completed commands, with separate tracks for copies in and out to show the bottleneck."""
        if self._listener is not None:
            for track in ("copy in", "copy out"):
                self._listener(track, [span for span in report if span[0].startswith(track)])
            self._listener("compute", [span for span in report if not span[0].startswith("copy ")])

    def _release_chunks(self) -> None:
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.close()
        if self._model is not None:
            self._model.release()

    def _new_queue(self) -> Launcher:
        """Create a queue that copies chunks."""
        return Launcher(self._context, self._copier)

    def chunk_memory(self, in_flight: int) -> OpenclChunkMemory:
        with self._health.terminal("chunk_memory"):
            if self._shared is not None:
                self._shared.close()
            self._shared = self._chunk_memory_of(in_flight)
            return self._shared

    def chunk_gradients(self) -> list[torch.Tensor]:
        with self._health.terminal("chunk_gradients"):
            gradients = self._health.loaded(self._replica).read_gradients(self._compute)
            self._report_times(spans(self._health.loaded(self._shared).queues.taken()))
            return [torch.from_numpy(gradient) for gradient in gradients]

    def _chunk_memory_of(self, in_flight: int) -> OpenclChunkMemory:
        return OpenclChunkMemory(
            *(self._programs, self._tuning, self._memory, self._compute),
            new_queue=self._new_queue,
            replica=self._health.loaded(self._replica),
            in_flight=in_flight or (1 if self.info.zero_copy else 2),
            reads_in_place=self.info.zero_copy,
            errors=lambda: self._memory_errors("propagate"),
        )

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"):
            if self._model is not None:
                self._model.update(parameters)
                return
            self._health.loaded(self._replica).update(self._compute, parameters)
            self._compute.flush()

    def close(self) -> None:
        if self._health.has_failed:
            forget_programs(self._device)
        self._health.close()
        if self._chunks is not None:
            self._chunks.abandon()
        if self._shared is not None:
            self._shared.close()
        for launcher in (self._copies, self._compute):
            launcher.close()
        for sampler in self._samplers:
            sampler.close()
        self._samplers = []
        self._replica = self._stager = self._chunks = self._model = None
        self._staged.clear()
        self._workers.close()
        self._memory.buffers.close()

    def _memory_errors(self, doing: str) -> AbstractContextManager[None]:
        return memory_errors(_NO_MEMORY, self._memory.buffers, doing)


@cache
def _part(device: Any, units: int) -> tuple[Any, str]:
    """Return a cached sub-device with `units` compute units, or the device if it cannot be partitioned."""
    import pyopencl as cl

    try:
        parts = device.create_sub_devices([cl.device_partition_property.BY_COUNTS, units])
    except cl.Error:
        return device, "all units used, because it cannot be partitioned"
    return parts[0], f"{units} used"


def _with_numbers(batch: MiniBatch) -> MiniBatch:
    """Return a mini-batch in which quantized rows are converted to float32 for the host."""
    if not isinstance(batch.inputs, QuantizedRows):
        return batch
    return replace(batch, inputs=torch.from_numpy(batch.inputs.to_float32()))


def _noted(info: DeviceInfo, note: str) -> DeviceInfo:
    return replace(info, description=f"{info.description}, {note}") if note else info
