"""Staging of mini-batches: copies to the device, and full graphs that stay on the device."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from hyrt.errors import UnsupportedModelError
from hyrt.graph.feature_cache import CachedRows, Rows
from hyrt.graph.quantized.row_format import FLOAT32, RowFormat
from hyrt.graph.quantized.rows import QuantizedRows
from hyrt.nn.architecture import Aggregation
from hyrt.nn.description import ModelDescription
from hyrt.nn.layer import AggregatedFeatures
from hyrt.nn.operators.aggregate import Scales, compute_scales
from hyrt.sampling.block import Block
from hyrt.sampling.minibatch import FullGraph, MiniBatch
from hyrt_devices.opencl.launch import Launcher
from hyrt_devices.opencl.memory import DeviceMemory, Lease
from hyrt_devices.opencl_host.batch_check import input_values


@dataclass(slots=True)
class StagedBlock:
    """Buffers of one block. A buffer that the layer does not need is None."""

    num_dst: int
    num_src: int
    seed: int
    step: int
    indptr: Any = None
    columns: Any = None
    row_scale: Any = None
    source_scale: Any = None
    weights: Any = None
    self_scale: Any = None
    transposed_indptr: Any = None
    transposed_rows: Any = None
    transposed_edges: Any = None
    destinations: Any = None


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows on the device, as float32 or as quantized codes. Scales are None if the format has none."""

    codes: Any
    format: RowFormat = FLOAT32
    row_scales: Any = None
    column_scales: Any = None


@dataclass(frozen=True, slots=True)
class CachedOnDevice:
    """Input rows of a mini-batch that are partly in the device's feature cache."""

    places: Any
    """Buffer with `CachedRows.slots`."""
    sent: StagedRows


@dataclass(slots=True)
class StagedBatch:
    """Staged mini-batch, returned by `transfer` and consumed by `propagate`."""

    owner: object
    targets: int
    normalizer: float
    # Number of rows in the scores: one per target, or more if only some of the rows are targets.
    rows: int
    blocks: list[StagedBlock] = field(default_factory=list)
    inputs: StagedRows | CachedOnDevice | None = None
    sources: Any = None
    aggregated: bool = False
    labels: Any = None
    target_weights: Any = None
    # Set if the host computes the loss: labels [n] int64, weights [n] float32 or None, row indices or None.
    host_labels: NDArray[Any] | None = None
    host_weights: NDArray[Any] | None = None
    host_rows: NDArray[Any] | None = None
    events: list[Any] = field(default_factory=list)
    lease: Lease | None = None
    # Host arrays that the device may still be reading.
    cached: list[Any] = field(default_factory=list)
    # Owner of the buffers, and its mini-batch, if the buffers stay on the device for further steps.
    resident: StagedGraph | None = None
    whole_batch: MiniBatch | None = None

    def release(self) -> None:
        """Wait for the copies to the buffers and release the buffers. Idempotent."""
        import pyopencl as cl

        for event in self.events:
            # If a copy failed, the step that waited for it has already raised the error.
            with suppress(cl.Error):
                event.wait()
        self.events = []
        self.blocks, self.inputs, self.labels, self.cached = [], None, None, []
        self.owner = self.whole_batch = None
        if self.lease is not None:
            self.lease.release()
            self.lease = None
        if self.resident is not None:
            self.resident.leave()
            self.resident = None


class StagedGraph:
    """Mini-batch of the full graph, whose buffers are shared by all steps.

    The buffers are released when another graph has replaced this one and no step uses the buffers. The copies
    of the first step, `staged`, have completed.
    """

    def __init__(self, whole: FullGraph, staged: StagedBatch) -> None:
        self.whole = whole
        self._staged = staged
        self._users = 1
        self._lock = threading.Lock()

    def step(self, batch: MiniBatch) -> StagedBatch:
        """Return the staged mini-batch of another step, with the same buffers."""
        with self._lock:
            self._users += 1
        blocks = [
            replace(block, step=each.step, seed=each.seed)
            for block, each in zip(self._staged.blocks, batch.blocks, strict=True)
        ]
        return replace(
            self._staged,
            blocks=blocks,
            normalizer=batch.normalizer,
            lease=None,
            events=[],
            resident=self,
            whole_batch=batch,
        )

    def leave(self) -> None:
        """Drop one reference to the buffers. Called once per step, and once by the creator."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            self._staged.release()


class Stager:
    """Stager of mini-batches, which are used in place if the device shares host memory, otherwise copied.

    `widths` contains the width of the first layer's aggregate and that of the input rows.
    """

    def __init__(
        self,
        memory: DeviceMemory,
        launcher: Launcher,
        *,
        model: ModelDescription,
        widths: tuple[int, int],
        num_classes: int,
    ) -> None:
        self._memory = memory
        self._launcher = launcher
        self._model = model
        self._aggregated_width, self._row_width = widths
        self._num_classes = num_classes
        self._resident: StagedGraph | None = None
        self.num_cached_rows = 0

    def forget(self) -> None:
        """Release the buffers that stay on the device between steps."""
        if self._resident is not None:
            self._resident.leave()
            self._resident = None

    def stage(self, batch: MiniBatch, owner: Any) -> StagedBatch:
        """Start copying a mini-batch. The copies of a full graph are reused by all later steps.

        Raises DeviceOutOfMemoryError if the mini-batch does not fit, after releasing all of its buffers, and
        ValueError or TypeError if it does not match the model.
        """
        if batch.full_graph is None or not len(batch.targets):
            return self._stage(batch, owner)
        if self._resident is not None and self._resident.whole is batch.full_graph:
            return self._resident.step(batch)
        if batch.blocks[0].num_edges >= 2**31:
            raise UnsupportedModelError(
                f"the graph has {batch.blocks[0].num_edges:,} edges, but the kernels of this device use "
                "32-bit edge numbers: train on cpu, or use mini-batches (without --full-graph)"
            )
        self.forget()
        first = self._stage(batch, owner)
        # Wait now, so that later steps need not wait for copies.
        self._launcher.finish()
        events, first.events = first.events, []
        self._resident = StagedGraph(batch.full_graph, first)
        staged = self._resident.step(batch)
        staged.events = events
        return staged

    def _stage(self, batch: MiniBatch, owner: Any) -> StagedBatch:
        rows = batch.blocks[-1].num_dst if len(batch.targets) else 0
        staged = StagedBatch(owner, len(batch.targets), batch.normalizer, rows)
        if not staged.targets:
            return staged
        values = input_values(
            batch,
            num_layers=len(self._model.layers),
            num_classes=self._num_classes,
            row_width=self._row_width,
            aggregated_width=self._aggregated_width,
            quantized=True,
            cached_rows=self.num_cached_rows,
        )
        staged.aggregated = isinstance(batch.inputs, AggregatedFeatures)
        if staged.aggregated and self._model.input_dropout:
            raise ValueError("input dropout requires the input rows, not their aggregate")
        staged.lease = Lease(self._memory)
        try:
            self._fill(staged, batch, values)
        except BaseException:
            # Wait: a copy to a buffer that is about to be reused may still be running.
            self._launcher.finish()
            staged.release()
            raise
        finally:
            staged.events += [event for _, event in self._launcher.taken()]
        self._launcher.flush()
        return staged

    def _rows(self, staged: StagedBatch, values: Rows) -> StagedRows:
        if not isinstance(values, QuantizedRows):
            return StagedRows(self._place(staged, values, np.float32))
        scales = [
            None if each is None else self._place(staged, each, np.float32)
            for each in (values.row_scales, values.column_scales)
        ]
        codes = self._place(staged, values.codes, values.format.dtype)
        return StagedRows(codes, values.format, *scales)

    def _fill(
        self, staged: StagedBatch, batch: MiniBatch, values: torch.Tensor | QuantizedRows | CachedRows
    ) -> None:
        if isinstance(values, CachedRows):
            places = self._place(staged, values.slots, np.int32)
            staged.inputs = CachedOnDevice(places, self._rows(staged, values.missing_rows))
        elif isinstance(values, QuantizedRows):
            staged.inputs = self._rows(staged, values)
        else:
            staged.inputs = self._rows(staged, values.detach().numpy())
        if self._model.input_dropout:
            assert batch.blocks[0].sources is not None
            staged.sources = self._place(staged, batch.blocks[0].sources, np.int64)
        shared: dict[Any, Any] | None = None if batch.full_graph is None else {}
        for i, block in enumerate(batch.blocks):
            staged.blocks.append(self._block(staged, i, block, shared))
        staged.host_labels, staged.host_weights = batch.labels, batch.target_weights
        staged.host_rows = batch.target_rows
        if not batch.has_classes:
            return  # Labels that are not classes are not copied: the host computes their objective.
        labels, weights = batch.labels, batch.target_weights
        if batch.target_rows is not None:
            # Rows of the scores that are not targets have the label -1.
            labels = np.full(staged.rows, -1, np.int64)
            labels[batch.target_rows] = batch.labels
            if weights is not None:
                weights = np.zeros(staged.rows, np.float32)
                weights[batch.target_rows] = batch.target_weights
        staged.labels = self._place(staged, labels, np.int64)
        if weights is not None:
            staged.target_weights = self._place(staged, weights, np.float32)

    def _block(self, staged: StagedBatch, i: int, block: Block, shared: dict[Any, Any] | None) -> StagedBlock:
        """Place the arrays of a block. `shared` contains buffers that full-graph blocks share."""
        layer, out = self._model.layers[i], StagedBlock(block.num_dst, block.num_src, block.seed, block.step)

        def place(staged: StagedBatch, array: NDArray[Any], dtype: type) -> Any:
            if shared is None:
                return self._place(staged, array, dtype)
            if id(array) not in shared:
                # Store a reference to the array too, so that its id stays unique.
                shared[id(array)] = array, self._place(staged, array, dtype)
            return shared[id(array)][1]

        def factors_of(aggregation: Aggregation) -> Scales:
            if shared is None:
                return compute_scales(aggregation, block, np.dtype(np.float32))
            if aggregation not in shared:
                shared[aggregation] = compute_scales(aggregation, block, np.dtype(np.float32))
            found: Scales = shared[aggregation]
            return found

        if layer.dropout:
            out.destinations = place(staged, block.destinations, np.int64)
        if i == 0 and staged.aggregated:
            return out
        factors = factors_of(layer.aggregation)
        out.indptr = place(staged, block.indptr, np.int32)
        out.columns = place(staged, block.columns, np.int32)
        out.row_scale = place(staged, factors.row, np.float32)
        if factors.source is not None:
            out.source_scale = place(staged, factors.source, np.float32)
        if factors.self_loop is not None:
            out.self_scale = place(staged, factors.self_loop, np.float32)
        if factors.edge is not None:
            out.weights = place(staged, factors.edge, np.float32)
        if i > 0:
            transposed = block.transposed()
            out.transposed_indptr = place(staged, transposed.indptr, np.int32)
            out.transposed_rows = place(staged, transposed.rows, np.int32)
            if factors.edge is not None:
                out.transposed_edges = place(staged, transposed.edges, np.int32)
        return out

    def _place(self, staged: StagedBatch, array: NDArray[Any], dtype: DTypeLike) -> Any:
        assert staged.lease is not None
        host: NDArray[Any] = np.ascontiguousarray(array, dtype)
        staged.cached.append(host)
        return staged.lease.place(self._launcher, host)
