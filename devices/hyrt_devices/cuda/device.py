"""Trainer on a torch device with separate memory, with a copy stream, a compute stream and autograd."""

from __future__ import annotations

import copy
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.device import DeviceInfo, DeviceOptions, Health, QueueListener, StepResult, check_parameters
from hyrt.device.capabilities import (
    CheckpointsSteps,
    ExplainsMissing,
    FeatureCacheDevice,
    GathersRows,
    KeepsHostBudget,
    RunsChunks,
    SamplesNeighbors,
    SharesColumns,
    SharesLoops,
    TakesObjective,
    Traceable,
)
from hyrt.device.host_model import HostSaga
from hyrt.errors import (
    DeviceFaultError,
    DeviceOutOfMemoryError,
    DeviceUnavailableError,
    UnsupportedModelError,
    warn_user,
)
from hyrt.formatting import format_bytes
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.step_checkpoint import StepCheckpointer
from hyrt.graph.feature_cache import CachedRows, Rows
from hyrt.graph.graph import Graph
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import ModelDescription, describe
from hyrt.nn.hetero.inputs import take_sparse_gradients
from hyrt.nn.layer import AggregatedFeatures, get_model_inputs
from hyrt.nn.model_checks import check_loops, needs_loops
from hyrt.nn.model_errors import explain_model_errors, reject_batch_statistics
from hyrt.nn.operators.tensor_ops import TensorBlock
from hyrt.nn.torch_threads import use_one_torch_thread
from hyrt.objective import Objective
from hyrt.objective.classification import Classification
from hyrt.objective.metrics import check_loss
from hyrt.objective.objective import OBJECTIVES
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Workers
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import HopSampler
from hyrt_devices.cuda import probe
from hyrt_devices.cuda.blocks import (
    DeviceBatch,
    DeviceGraph,
    PackedBatch,
    TorchAggregation,
    copied_bytes,
    resident_graph,
)
from hyrt_devices.cuda.chunk_memory import ChunkTimes
from hyrt_devices.cuda.driver import DTYPES, Driver, MpsDriver, Timeline, pinned_pool
from hyrt_devices.cuda.edge_loops import CudaLoops, TorchLoopDevice
from hyrt_devices.cuda.feature_rows import (
    Features,
    MappedFeatures,
    ResidentFeatures,
    RowArrays,
    RowKernels,
    RowTensors,
    SentRows,
    fuses,
    upload,
)
from hyrt_devices.cuda.launch import KernelLauncher, KernelProgram, launchers
from hyrt_devices.cuda.sampler import CudaSampler, c_type, id_type
from hyrt_devices.cuda.torch_chunks import TorchChunkMemory, TorchChunkSteps

# Maximum fraction of free memory for resident topology and features; mini-batches need the rest.
_RESIDENT_SHARE = 0.5

T = TypeVar("T")


class Staged:
    """Mini-batch that is being copied, or has been copied, to the device."""

    def __init__(self, targets: int, normalizer: float, size: int, *, whole: bool = False) -> None:
        self.whole = whole
        self.targets = targets
        self.normalizer = normalizer
        self.size = size
        self.delivery: DeviceBatch | None = None
        # These are set only if the step is computed in chunks.
        self.batch: MiniBatch | None = None
        self.host: NDArray[np.uint8] | None = None
        self.started: Any = None
        # This is set only if the run is traced.
        self.copied: Any = None
        self.arrived: Any = None


class TorchDevice(
    ExplainsMissing,
    TakesObjective,
    SamplesNeighbors,
    GathersRows,
    FeatureCacheDevice,
    KeepsHostBudget,
    RunsChunks,
    CheckpointsSteps,
    SharesColumns,
    SharesLoops,
    Traceable,
):
    """Trainer on a torch device, which computes any torch module with autograd.

    `launcher` is None if hyrt's kernels cannot be built.
    """

    kind: ClassVar[str]

    def __init__(
        self, info: DeviceInfo, options: DeviceOptions, driver: Driver, launcher: KernelLauncher | None = None
    ) -> None:
        self.info = info
        self._driver = driver
        self._launcher = launcher
        self._limit = options.memory_bytes
        self._objective: Objective = Classification()
        self._health = Health(info.name)
        self._closed = False
        self._pool = pinned_pool(driver)
        new_stream = driver.stream if launcher is None else launcher.stream
        self._copies, self._compute = new_stream(), new_stream()
        self._aggregate = None if launcher is None else TorchAggregation(launcher)
        self._loops = None if launcher is None else CudaLoops(launcher)
        self._row_kernels = None if launcher is None else RowKernels(launcher)
        # Aggregation of the first layer if no weight precedes it, otherwise None.
        self._first: Aggregation | None = None
        self._model: torch.nn.Module | None = None
        self._parameters: list[torch.nn.Parameter] = []
        self._sizes: list[int] = []
        self._weights: torch.Tensor | None = None
        self._weights_sent: Any = None
        self._features: Features | None = None
        self._row_cache: RowTensors | None = None
        self._resident: DeviceGraph | None = None
        self._whole_bytes = 0
        self._budget = HostMemoryBudget()
        # This is None if full graphs are not divided into chunks.
        self._chunk_options: ChunkOptions | None = None
        self._description: ModelDescription | None = None
        self._keeper: StepCheckpointer | None = None
        self._chunks: TorchChunkSteps | None = None
        # This is set only if the device shares a full graph's columns with other devices.
        self._shared: TorchChunkMemory | None = None
        # This is set only for user-defined layers in chunks, whose vertex stages run on the host.
        self._saga: HostSaga | None = None
        self._threads = options.threads
        self._samplers: list[CudaSampler] = []
        self._listener: QueueListener | None = None
        self._timeline: Timeline | None = None
        self._update_started: Any = None
        self._lock = threading.Lock()
        self._staged: set[Staged] = set()
        if self._limit is not None:
            driver.limit(self._limit)

    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return probe.found(cls.kind)

    @classmethod
    def missing(cls) -> str:
        """Return the reason why `probe` finds no device, and the remedy."""
        return probe.missing_device_reason(cls.kind)

    @classmethod
    def open(cls, info: DeviceInfo, options: DeviceOptions) -> TorchDevice:
        try:
            driver = (MpsDriver if cls.kind == "mps" else Driver)(cls.kind, info.index)
            # The first allocation creates the context that torch and the kernels share.
            torch.zeros(1, device=driver.device)
            return cls(info, options, driver, _launcher(driver.device))
        except Exception as error:
            raise DeviceUnavailableError(
                f"{info.name} cannot be opened ({type(error).__name__}: {error}): see "
                f"docs/devices.md#{cls.kind}"
            ) from error

    def take_objective(self, objective: Objective) -> None:
        self._objective = objective

    def take_host_budget(self, budget: HostMemoryBudget) -> None:
        self._budget = budget

    def take_chunks(self, options: ChunkOptions) -> None:
        self._chunk_options = options

    def take_step_checkpointer(self, keeper: StepCheckpointer) -> None:
        self._keeper = keeper

    @property
    def num_chunks(self) -> int | None:
        if self._saga is not None:
            return self._saga.num
        return None if self._chunks is None else self._chunks.num

    def load(self, model: torch.nn.Module, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("load"):
            reject_batch_statistics(model, self.info.name)
            self._release_chunks()
            self._row_cache = None
            with self._driver.running(self._compute):
                self._model = copy.deepcopy(model).to(self._driver.device).train()
            self._first = get_model_inputs(model).aggregation
            if self._chunk_options is not None and needs_loops(model):
                self._saga = self._host_saga(model, self._chunk_options)
            elif self._chunk_options is not None:
                self._description = _described(self._model, self.info.name)
            self._parameters = [p for p in self._model.parameters() if p.requires_grad]
            self._sizes = [p.numel() for p in self._parameters]
            numbers = sum(self._sizes)
            self._weights = self._driver.pinned(max(4, 4 * numbers)).view(torch.float32)[:numbers]
            self._weights_sent = None
        self.update(parameters)

    def _host_saga(self, model: torch.nn.Module, options: ChunkOptions) -> HostSaga:
        """Create a trainer in chunks for user-defined layers, whose edge loops run on this device."""
        loop_device = self._loop_device(model)
        check_loops(model, self.info.name)
        workers = Workers(
            self._threads, f"hyrt.{self.info.name}.train", on_start=use_one_torch_thread, pool=BufferPool()
        )
        return HostSaga(model, workers, [loop_device], options, self._budget, keeper=self._keeper)

    def loop_member(self, model: torch.nn.Module) -> TorchLoopDevice:
        with self._health.terminal("loop_member"):
            return self._loop_device(model)

    def _loop_device(self, model: torch.nn.Module) -> TorchLoopDevice:
        if self._loops is None:
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot train in chunks on {self.info.name}, because its edge loops "
                f"cannot be compiled on this machine (see docs/devices.md#{self.kind}): remove the fullgraph "
                "settings to train on the whole graph at once, or train on cpu"
            )
        return TorchLoopDevice(
            *(
                self.info.name,
                self._driver,
                self._compute,
                self._loops,
                self._chunk_bytes,
                self._report_chunks,
            )
        )

    def sampler(self, graph: Graph) -> HopSampler | None:
        with self._health.terminal("sampler"):
            if self._launcher is None:
                return None
            size = graph.topology.indptr.nbytes + graph.topology.indices.nbytes + 4 * graph.num_vertices
            make = partial(CudaSampler, self._driver, self._launcher, self._pool, graph)
            try:
                sampler = self._if_it_fits(size, lambda: make(resident=True)) or make(resident=False)
            except MemoryError as error:
                warn_user(f"{error}, so the host samples for {self.info.name}", RuntimeWarning)
                return None
            self._samplers.append(sampler)
            return sampler

    def gathers(self, graph: Graph) -> bool:
        with self._health.terminal("gathers"):
            if self._features is not None:
                self._features.close()
                self._features = None
            if not isinstance(graph.features, DenseFeatures) or "ids" not in self.info.forms:
                return False
            values = graph.features.values
            self._features = self._if_it_fits(
                values.nbytes,
                lambda: ResidentFeatures(upload(self._driver, self._pool, self._copies, values)),
            )
            if self._features is None and self._launcher is not None:
                address = self._launcher.map_host(values)
                if address is not None:
                    ids = c_type(id_type(graph))
                    self._features = MappedFeatures(self._launcher, values, address, ids)
            return self._features is not None

    @property
    def free_bytes(self) -> int:
        return max(0, int(self._free_bytes()))

    def keep_rows(self, count: int, pieces: Iterable[Rows]) -> None:
        with self._health.terminal("keep_rows"):
            self._row_cache = None
            try:
                with self._driver.running(self._copies):
                    self._row_cache = self._cached_rows(count, pieces)
            except Exception as error:
                if not self._driver.out_of_memory(error):
                    raise
                traceback.clear_frames(error.__traceback__)
                self._driver.trim()
                raise self._out_of_memory(count) from error

    def _cached_rows(self, count: int, pieces: Iterable[Rows]) -> RowTensors:
        """Copy rows to the device piece by piece, and return the cached rows."""
        put = partial(upload, self._driver, self._pool, self._copies)

        def allocate(array: NDArray[Any]) -> torch.Tensor:
            shape = (count, *array.shape[1:])
            return torch.empty(shape, dtype=DTYPES[array.dtype], device=self._driver.device)

        cache: RowTensors | None = None
        start = 0
        for piece in pieces:
            rows = RowArrays.of(piece)
            scales = rows.row_scales
            if cache is None:
                row_bytes = rows.codes[:1].nbytes + (0 if scales is None else scales.itemsize)
                if count * row_bytes > self.free_bytes:
                    raise self._out_of_memory(count)
                cache = RowTensors(
                    rows.format, allocate(rows.codes), None if scales is None else allocate(scales)
                )
            stop = start + len(rows.codes)
            cache.codes[start:stop] = put(rows.codes)
            if cache.row_scales is not None and scales is not None:
                cache.row_scales[start:stop] = put(scales)
            self._driver.wait(self._driver.mark(self._copies))
            start = stop
        if cache is None:
            raise ValueError("no rows were passed to cache")
        return cache

    def _out_of_memory(self, count: int) -> DeviceOutOfMemoryError:
        total = self._limit or self.info.memory_bytes
        return DeviceOutOfMemoryError(
            f"{self.info.name}: {count:,} cached rows do not fit in memory "
            f"({format_bytes(self._resident_bytes())} of {format_bytes(total)} in use)"
        )

    def trace(self, listener: QueueListener) -> None:
        """Report the finished work of each stream (`copies`, `compute`, `sample`) from now on."""
        with self._health.terminal("trace"):
            self._timeline = Timeline(self._driver, self._compute)
            self._listener = listener
            for sampler in self._samplers:
                sampler.trace(listener, self._timeline)

    def transfer(self, batch: MiniBatch) -> Staged:
        with self._health.terminal("transfer"):
            if batch.full_graph is not None and (batch.full_graph.is_distributed or len(batch.targets)):
                if self._chunk_options is not None:
                    staged = Staged(len(batch.targets), batch.normalizer, 0, whole=True)
                    staged.batch = batch
                    with self._lock:
                        self._staged.add(staged)
                    return staged
                return self._transfer_whole(batch)
            rows, cache = batch.inputs, self._row_cache
            if isinstance(rows, CachedRows) and cache is not None:
                rows.check(batch.blocks[0].num_src, *cache.codes.shape)
            shipment = PackedBatch(batch, self._driver.device)
            staged = Staged(len(batch.targets), batch.normalizer, shipment.parcel.size)
            if batch.inputs is None and self._features is not None and batch.blocks:
                staged.size += 4 * self._features.width * batch.blocks[0].num_src
            elif isinstance(rows, CachedRows | QuantizedRows):
                staged.size += self._made_bytes(rows, batch.blocks[0])
            with self._lock:
                self._check_limit(staged)
                self._staged.add(staged)
            if not staged.targets:
                return staged
            try:
                self._send(shipment, staged)
            except Exception as error:
                self._free(staged, "transfer", error)
                raise
            return staged

    def _made_bytes(self, rows: CachedRows | QuantizedRows, block: Block) -> int:
        """Return the bytes of the first layer's inputs, which the device computes from the copied rows."""
        sent = RowArrays.of(rows.missing_rows if isinstance(rows, CachedRows) else rows)
        width = int(sent.codes.shape[1])
        whole, first = 4 * width * block.num_src, self._first
        if self._row_kernels is None or first is None or not fuses(sent.format, first):
            return whole
        return 4 * first.width(width) * block.num_dst

    def _inputs_of(self, rows: SentRows, block: TensorBlock) -> torch.Tensor | AggregatedFeatures:
        """Compute the first layer's inputs from the sent rows and the cached rows."""
        if self._row_kernels is None:
            return rows.numbers()
        return self._row_kernels.inputs(rows, block, self._first)

    def propagate(self, staged: Staged) -> StepResult:
        with self._health.terminal("propagate"):
            with self._lock:
                if not isinstance(staged, Staged) or staged not in self._staged:
                    raise DeviceFaultError(
                        f"{self.info.name}: propagate got an object that transfer did not return, "
                        "or the same mini-batch twice: pass each result of transfer once"
                    )
                if not staged.targets and staged.batch is None:
                    self._staged.remove(staged)
                    return StepResult.empty(staged.normalizer)
            try:
                with self._driver.running(self._compute):
                    result = (
                        self._step(staged) if staged.batch is None else self._step_in_chunks(staged.batch)
                    )
            except DeviceOutOfMemoryError:
                self._release(staged)  # The chunk memory has already been released.
                raise
            except Exception as error:
                self._free(staged, "propagate", error)
                raise
            self._release(staged)
            return result

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        with self._health.terminal("update"), torch.no_grad():
            assert self._weights is not None
            check_parameters(parameters, [parameter.shape for parameter in self._parameters])
            if self._saga is not None:
                self._saga.update(parameters)
            if self._weights_sent is not None:
                # Wait until the previous copy from the buffer has finished.
                self._driver.wait(self._weights_sent)
            at = 0
            for mine, new in zip(self._parameters, parameters, strict=True):
                self._weights[at : at + mine.numel()].copy_(new.reshape(-1))
                at += mine.numel()
            with self._driver.running(self._compute):
                if self._timeline is not None:
                    self._update_started = self._driver.mark(self._compute)
                there = self._weights.to(self._driver.device, non_blocking=True)
                self._weights_sent = self._driver.mark(self._compute)
                pieces = torch.split(there, self._sizes)
                for mine, piece in zip(self._parameters, pieces, strict=True):
                    mine.copy_(piece.view_as(mine))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        faulted = self._faulted()
        self._health.close()
        steps = [
            self._drain,
            self._release_chunks,
            *(s.close for s in self._samplers),
            self._forget,
            self._trim,
        ]
        if self._features is not None:
            steps.insert(2, self._features.close)
        failed: list[Exception] = []
        for step in steps:
            try:
                step()
            except Exception as error:
                failed.append(error)
        if failed and not faulted:
            raise DeviceFaultError(f"{self.info.name} cannot be closed: {failed[0]}") from failed[0]

    def _transfer_whole(self, batch: MiniBatch) -> Staged:
        """Stage a full-graph step, with the tensors that the first step has copied."""
        driver, resident = self._driver, self._resident
        is_new = resident is None or resident.whole is not batch.full_graph
        features = self._features if batch.inputs is None else None
        staged = Staged(len(batch.targets), batch.normalizer, 0, whole=True)
        if is_new:
            self._resident = resident = None
            staged.size = copied_bytes(batch) + (0 if features is None else features.all_rows_bytes)
        with self._lock:
            self._check_limit(staged)
            self._staged.add(staged)
        try:
            with driver.running(self._copies):
                staged.started = driver.mark(self._copies)
                if resident is None:
                    put = partial(upload, driver, self._pool, self._copies)
                    rows_of = None if features is None else features.all_rows
                    resident = resident_graph(batch, put, rows_of, self._aggregate, self._loops)
                    # From now on, the graph counts as resident memory.
                    self._resident, self._whole_bytes, staged.size = resident, staged.size, 0
                staged.delivery = resident.step(batch)
                staged.copied = staged.arrived = driver.mark(self._copies)
        except Exception as error:
            self._free(staged, "transfer", error)
            raise
        return staged

    def _send(self, shipment: PackedBatch, staged: Staged) -> None:
        driver = self._driver
        staged.host = self._pool.take(shipment.parcel.size, np.uint8)
        with driver.running(self._copies):
            staged.started = driver.mark(self._copies)
            arrived = shipment.parcel.send(staged.host, driver.device)
            if self._timeline is not None:
                staged.copied = driver.mark(self._copies)
            delivery = staged.delivery = shipment.unpack(
                arrived, self._aggregate, self._loops, self._row_cache, self._inputs_of
            )
            if delivery.inputs is None and self._features is not None:
                delivery.inputs = self._features.rows(delivery.blocks[0].sources)
            staged.arrived = driver.mark(self._copies)

    def _step_in_chunks(self, batch: MiniBatch) -> StepResult:
        if self._saga is not None:
            return self._saga.step(batch, self._objective)
        if self._chunks is None:
            described = self._health.loaded(self._description)
            options = self._chunk_options or ChunkOptions()
            self._chunks = TorchChunkSteps(
                self._chunk_memory_of(described, options.in_flight),
                described,
                options,
                self._budget,
                self._keeper,
            )
        start = self._driver.mark(self._compute)
        try:
            result = self._chunks.step(batch, self._parameters)
        except BaseException as error:
            try:
                self._release_chunks()
            except Exception as second:
                error.add_note(f"{self.info.name}: its chunk memory could not be freed: {second}")
            raise
        end = self._driver.mark(self._compute)
        self._driver.wait(end)
        self._report_chunks(self._chunks.memory.times)
        return replace(result, seconds={"propagate": self._driver.seconds(start, end)})

    def chunk_memory(self, in_flight: int) -> TorchChunkMemory:
        with self._health.terminal("chunk_memory"):
            self._shared = self._chunk_memory_of(self._health.loaded(self._description), in_flight)
            return self._shared

    def chunk_gradients(self) -> list[torch.Tensor]:
        with self._health.terminal("chunk_gradients"), self._driver.running(self._compute):
            memory = self._health.loaded(self._shared)
            gradients = memory.gradients(self._parameters)
            self._report_chunks(memory.times)
            return gradients

    def _report_chunks(self, times: ChunkTimes) -> None:
        """Report the chunk spans of a finished step and the preceding copy of the weights."""
        if self._timeline is None or self._listener is None:
            return
        ran = [("weights", self._update_started, self._weights_sent)]
        self._listener("compute", self._timeline.spans(ran))
        self._update_started = None
        times.report(self._listener, self._timeline)

    def _chunk_memory_of(self, described: ModelDescription, in_flight: int) -> TorchChunkMemory:
        return TorchChunkMemory(
            *(self.info.name, self._driver, self._compute, self._copies),
            *(described, self._objective, self._chunk_bytes, in_flight),
        )

    def _chunk_bytes(self) -> int:
        """Return the bytes that chunks may use: the free memory, or less if the memory is limited."""
        free = self._driver.free_bytes()
        return free if self._limit is None else min(free, self._limit - self._resident_bytes())

    def _release_chunks(self) -> None:
        chunks, self._chunks = self._chunks, None
        if chunks is not None:
            chunks.release()
        saga, self._saga = self._saga, None
        if saga is not None:
            saga.close()

    def _step(self, staged: Staged) -> StepResult:
        driver, delivery, model = self._driver, staged.delivery, self._model
        assert delivery is not None
        assert model is not None
        driver.order(self._compute, staged.arrived)
        start = driver.mark(self._compute)
        for parameter in self._parameters:
            parameter.grad = None
        with explain_model_errors(model):
            scores = model(delivery.blocks, delivery.inputs)
        if delivery.target_rows is not None:
            scores = scores.index_select(0, delivery.target_rows)
        forward = None if self._timeline is None else driver.mark(self._compute)
        with OBJECTIVES.wrap_errors(self._objective.name, "loss_sum"):
            loss = check_loss(
                self._objective,
                self._objective.loss_sum(scores, delivery.labels, delivery.target_weights),
            )
        with explain_model_errors(model):
            loss.backward()  # type: ignore[no-untyped-call]
        backward = None if self._timeline is None else driver.mark(self._compute)
        counts = self._objective.count(scores.detach(), delivery.labels)
        counted = [value for value in counts.values() if isinstance(value, torch.Tensor)]
        numbers = [_word(value) for value in (loss.detach(), *counted)]
        for parameter in self._parameters:
            gradient = parameter.grad
            numbers.append(
                parameter.new_zeros(parameter.numel(), dtype=torch.float32)
                if gradient is None
                else gradient.reshape(-1).float()
            )
            parameter.grad = None
        flat = torch.cat(numbers)
        host = self._pool.take(flat.shape, np.float32)
        fetched = torch.from_numpy(host)
        fetched.copy_(flat, non_blocking=True)
        end = driver.mark(self._compute)
        driver.wait(end)
        if self._timeline is not None:
            self._report_times(self._timeline, staged, (start, forward, backward, end))
        summary, gradients = fetched[: 1 + len(counted)].clone(), fetched[1 + len(counted) :].clone()
        self._pool.release(host)
        return StepResult(
            loss_sum=float(summary[0]),
            counts=_values(counts, summary[1:]),
            normalizer=staged.normalizer,
            gradients=[
                piece.view(parameter.shape)
                for piece, parameter in zip(
                    torch.split(gradients, self._sizes), self._parameters, strict=True
                )
            ],
            seconds={
                "transfer": driver.seconds(staged.started, staged.arrived),
                "propagate": driver.seconds(start, end),
            },
            row_gradients=take_sparse_gradients(model),
        )

    def _report_times(self, timeline: Timeline, staged: Staged, marks: Sequence[Any]) -> None:
        """Report the spans of a finished mini-batch and the preceding copy of the weights."""
        assert self._listener is not None
        start, forward, backward, end = marks
        names = ("forward", "loss and backward", "gradients to the host")
        ran = [("weights", self._update_started, self._weights_sent)]
        ran += zip(names, (start, forward, backward), (forward, backward, end), strict=True)
        copied = [
            ("copy", staged.started, staged.copied),
            ("unpack and gather", staged.copied, staged.arrived),
        ]
        self._listener("compute", timeline.spans(ran))
        self._listener("copies", timeline.spans(copied))
        self._update_started = None
        timeline.follow(end)

    def _release(self, staged: Staged) -> None:
        """Release the buffers of a mini-batch, which the device must have finished reading."""
        with self._lock:
            self._staged.discard(staged)
        if staged.host is not None:
            self._pool.release(staged.host)
        staged.host = staged.delivery = staged.batch = None

    def _free(self, staged: Staged, doing: str, error: Exception) -> None:
        """Free a mini-batch, and raise DeviceOutOfMemoryError if `error` means that memory ran out."""
        if not self._driver.out_of_memory(error):
            return
        # Clear the traceback's frames, which reference the activations.
        traceback.clear_frames(error.__traceback__)
        for parameter in self._parameters if doing == "propagate" else ():
            parameter.grad = None
        used = self._driver.used_bytes()
        for stream in (self._copies, self._compute):
            self._driver.wait(self._driver.mark(stream))
        self._release(staged)
        self._driver.trim()
        raise DeviceOutOfMemoryError(self._too_large(staged, doing, used)) from error

    def _check_limit(self, staged: Staged) -> None:
        if self._limit is None:
            return
        used = self._resident_bytes() + sum(other.size for other in self._staged)
        if used + staged.size > self._limit:
            raise DeviceOutOfMemoryError(self._too_large(staged, "transfer", used))

    def _resident_bytes(self) -> int:
        features = 0 if self._features is None else self._features.nbytes
        # Weights and gradients are float32.
        weights = 8 * sum(self._sizes)
        features += 0 if self._resident is None else self._whole_bytes
        features += 0 if self._row_cache is None else self._row_cache.nbytes
        return weights + features + sum(sampler.nbytes for sampler in self._samplers)

    def _if_it_fits(self, size: int, make: Callable[[], T]) -> T | None:
        """Create an object that stays in device memory for all steps, or return None if it does not fit."""
        if size > self._capacity_bytes():
            return None
        try:
            return make()
        except Exception as error:
            if not self._driver.out_of_memory(error):
                raise
            # Another process may have allocated the free memory. Clear the frames to free partial results.
            traceback.clear_frames(error.__traceback__)
            self._driver.trim()
            return None

    def _capacity_bytes(self) -> float:
        return _RESIDENT_SHARE * self._free_bytes()

    def _free_bytes(self) -> float:
        free = float(self._driver.free_bytes())
        return free if self._limit is None else min(free, self._limit - self._resident_bytes())

    def _too_large(self, staged: Staged, doing: str, used: int) -> str:
        total = self._limit or self.info.memory_bytes
        if staged.whole:
            return (
                f"{self.info.name}: out of memory in {doing}, because the whole graph does not fit "
                f"({format_bytes(used)} of {format_bytes(total)} in use)"
            )
        return (
            f"{self.info.name}: out of memory in {doing} of a mini-batch with {staged.targets:,} targets and "
            f"{format_bytes(staged.size)} of input ({format_bytes(used)} of {format_bytes(total)} in use): "
            "lower data.batch_size, or assign the device a smaller share"
        )

    def _faulted(self) -> bool:
        try:
            self._health.check()
        except DeviceFaultError:
            return True
        return False

    def _drain(self) -> None:
        for stream in (self._copies, self._compute):
            self._driver.wait(self._driver.mark(stream))

    def _forget(self) -> None:
        with self._lock:
            for staged in self._staged:
                staged.host = staged.delivery = staged.batch = None
            self._staged.clear()
        self._samplers.clear()
        self._resident = self._chunks = self._shared = self._description = None
        self._model = self._features = self._row_cache = self._weights = self._weights_sent = None
        self._parameters = []
        self._pool.clear()

    def _trim(self) -> None:
        self._driver.trim()
        if self._limit is not None:
            self._driver.limit(None)


class CudaDevice(TorchDevice):
    """Trainer on NVIDIA GPUs."""

    kind = "cuda"


class XpuDevice(TorchDevice):
    """Trainer on Intel GPUs."""

    kind = "xpu"


class MpsDevice(TorchDevice):
    """Trainer on Apple GPUs."""

    kind = "mps"


def _described(model: torch.nn.Module, name: str) -> ModelDescription:
    try:
        return describe(model, name)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot train in chunks on {name}, because not every layer is a sum over "
            "edges followed by matrix products: remove the fullgraph settings to train on the whole graph at "
            "once, or train on cpu"
        ) from error


def _word(value: torch.Tensor) -> torch.Tensor:
    """Encode a scalar as [1] float32 to copy it with the gradients. An integer's bits do not change."""
    if value.is_floating_point():
        return value.float().view(1)
    return value.int().view(1).view(torch.float32)


def _values(counts: Mapping[str, int | torch.Tensor], words: torch.Tensor) -> dict[str, float]:
    """Return the counts as numbers, decoding the counts that are tensors from `words`."""
    crossed = iter(words)
    return {
        name: value
        if not isinstance(value, torch.Tensor)
        else (next(crossed) if value.is_floating_point() else next(crossed).view(torch.int32)).item()
        for name, value in counts.items()
    }


def _launcher(device: torch.device) -> KernelLauncher | None:
    """Return a launcher of hyrt's kernels, or warn and return None (torch operators) if the build fails."""
    kinds = list(launchers().values()) if device.type == "cuda" else []
    if not kinds:
        return None
    try:
        launcher = kinds[0](device)
        KernelProgram(launcher, "aggregate")
    except Exception as error:  # The compiler and the driver interface may raise any exception.
        warn_user(
            f"hyrt's kernels cannot be compiled for {device} ({type(error).__name__}: {error}), so torch "
            "operators are used and the host samples: see docs/devices.md#cuda",
            RuntimeWarning,
        )
        return None
    return launcher
