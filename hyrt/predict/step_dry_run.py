"""Dry run of a full-graph step of `hyrt.fullgraph` for its matrices, work and memory, and creation of
configured models for given widths.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import TypeGuard

import numpy as np
import torch
from hyrt_perfmodel.workload import EdgeReads, FullGraphStep, GatherKind

from hyrt.config import Config
from hyrt.fullgraph.forward import COLUMNS_PER_COPY
from hyrt.fullgraph.matrix_pool import best_fit
from hyrt.fullgraph.plan import (
    CACHE_DIVISOR,
    MAX_TRANSPOSED_FRACTION,
    DenseStage,
    FullGraphPlan,
    is_decomposable,
    plan_full_graph,
)
from hyrt.graph.graph import SPLITS, Graph
from hyrt.graph.hetero.dataset import build_hetero_graph
from hyrt.graph.row_source import DenseFeatures
from hyrt.nn.architecture import Aggregation
from hyrt.nn.full_graph.attention import NUM_END_VALUES
from hyrt.nn.fused.edge_loop import End
from hyrt.nn.layer import AttentionSum, Layer, LayerParts
from hyrt.nn.message_passing.gather import CHUNK_EDGES, SagaGather
from hyrt.nn.message_passing.layer import SagaLayer
from hyrt.nn.model import GNN
from hyrt.nn.models.model_kind import find_model
from hyrt.predict.dataset_sizes import FullGraphSizes
from hyrt.training.setup import build_model


@dataclass(slots=True)
class PooledMatrix:
    """Matrix in use. Its memory may belong to other matrices before and afterwards."""

    name: str
    num_bytes: int
    memory: int = -1


@dataclass(slots=True)
class MatrixPoolModel:
    """Model of a matrix pool without a memory limit, which tracks only sizes."""

    events: list[tuple[str, int]] = field(default_factory=list)
    """Sequence of (`take`, bytes of the matrix) and (`give`, bytes of the matrix's memory block)."""
    arrays: dict[str, float] = field(default_factory=dict)
    """Bytes of the memory blocks, by the name of the first matrix in a block."""
    _sizes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)

    def take(self, name: str, rows: int, width: int, itemsize: int) -> PooledMatrix:
        """Simulate the allocation of a matrix."""
        matrix = PooledMatrix(name, rows * width * itemsize)
        self.events.append(("take", matrix.num_bytes))
        index = best_fit([(False, self._sizes[memory]) for memory in self._free], matrix.num_bytes)
        if index is not None:
            matrix.memory = self._free.pop(index)
            return matrix
        self._sizes.append(matrix.num_bytes)
        matrix.memory = len(self._sizes) - 1
        self.arrays[name] = self.arrays.get(name, 0.0) + matrix.num_bytes
        return matrix

    def release(self, matrix: PooledMatrix) -> None:
        """Simulate the release of a matrix."""
        self.events.append(("give", self._sizes[matrix.memory]))
        self._free.append(matrix.memory)


_INDEX_BYTES = 4
# Passes over rows: forward, recomputation in the backward pass, and gradients of rows and weights.
_FORWARD, _RECOMPUTE, _GRADIENTS = 1, 1, 2


@dataclass(slots=True)
class _Layer:
    """Sizes-only counterpart of `hyrt.fullgraph.forward.GatherResult`."""

    values: PooledMatrix | None
    takes_gradient: bool
    messages: tuple[PooledMatrix, ...]
    saved: tuple[PooledMatrix, ...]
    self_rows: PooledMatrix | None


class StepDryRun:
    """Dry run of a step: `FullGraphForward`, `compute_loss` and `run_backward` with sizes instead of arrays.

    Matrices must be allocated and released in the order of these functions; tests compare each one.
    """

    def __init__(self, plan: FullGraphPlan, sizes: FullGraphSizes) -> None:
        self.plan, self.sizes = plan, sizes
        self.pool = MatrixPoolModel()
        self.reads: list[EdgeReads] = []
        self.calls = self.macs = self.values = self.sparse_macs = self.sparse_weights = 0.0
        self._itemsize = plan.dtype.itemsize

    def step(self) -> None:
        """Simulate one step of `FullGraphReplica.step`."""
        plan, sizes = self.plan, self.sizes
        if plan.caches_first_gather:
            # The first step computes the gather of the first layer, which is then cached.
            width = plan.parts[0].gathered_width
            self._take("gathered of the features, kept", sizes.vertices, width)
            if sizes.is_mapped:
                self.pool.release(
                    self._take("columns of features", sizes.vertices, min(width, COLUMNS_PER_COPY))
                )
        layers = self.forward(self._num_last_rows(sizes.targets), keep=True)
        self._compute(plan.stages[-1], sizes.targets, _FORWARD + _GRADIENTS)
        for i in reversed(range(len(layers))):
            layer = layers[i]
            if not layer.takes_gradient:
                self.release(layer)
                return
            grads = self._gather_backward(i, layer, last=i == len(layers) - 1)
            recompute_passes = 0 if plan.saves_activations else _RECOMPUTE
            self._compute(plan.stages[i], sizes.vertices, recompute_passes + _GRADIENTS)
            for grad in grads:
                self.pool.release(grad)

    def scores(self) -> None:
        """Simulate one evaluation of `FullGraphReplica.scores`."""
        self.release(self.forward(self._num_last_rows(self.sizes.scored), keep=False)[-1])

    def _num_last_rows(self, rows: int) -> int | None:
        """Return the number of rows in the last layer, or None for all rows."""
        return None if rows == self.sizes.vertices else rows

    def forward(self, at: int | None, *, keep: bool) -> list[_Layer]:
        """Simulate the forward pass with `at` rows in the last layer, or with all rows if `at` is None."""
        plan, layers = self.plan, []
        self_rows: PooledMatrix | None = None
        messages: tuple[PooledMatrix, ...] = ()
        if not plan.caches_first_gather and not plan.reads_in_place:
            messages = self._apply(plan.stages[0])
        for i in range(len(plan.parts)):
            last = i == len(plan.parts) - 1
            layer = self._gather(i, messages, self_rows, at if last else None, keep=keep)
            layers.append(layer)
            if last:
                break
            stage = plan.stages[i + 1]
            outputs = self._apply(stage)
            assert stage.after is not None
            self_rows, messages = None, outputs
            if stage.carries_rows:
                self_rows = outputs[0]
                messages = outputs if stage.after.scatter is None else outputs[1:]
            if not keep:
                self.release(layer)
        return layers

    def release(self, layer: _Layer) -> None:
        """Simulate the release of a layer's matrices."""
        for matrix in (layer.values, *layer.messages, *layer.saved, layer.self_rows):
            if matrix is not None:
                self.pool.release(matrix)

    def _gather(
        self,
        i: int,
        messages: tuple[PooledMatrix, ...],
        self_rows: PooledMatrix | None,
        at: int | None,
        *,
        keep: bool,
    ) -> _Layer:
        plan, parts = self.plan, self.plan.parts[i]
        rows, width = self.sizes.vertices if at is None else at, parts.gathered_width
        if i == 0 and plan.caches_first_gather:
            values = None if at is None else self._take("gathered by layer 1", rows, width)
            return _Layer(values, takes_gradient=False, messages=(), saved=(), self_rows=None)
        values = self._take(f"gathered by layer {i + 1}", rows, width)
        saved = self._saved_matrices(i, rows) if keep else ()
        self._read(parts, rows if at is None else None, is_backward=False)
        takes_gradient = i > 0 or bool(plan.stages[0].parameters)
        if i == 0 and plan.reads_in_place:
            messages = ()
        elif not (keep and takes_gradient and isinstance(parts.gather, AttentionSum | SagaGather)):
            for message in messages:
                if message is not self_rows:
                    self.pool.release(message)
            messages = ()
        return _Layer(values, takes_gradient, messages, saved, self_rows)

    def _saved_matrices(self, i: int, rows: int) -> tuple[PooledMatrix, ...]:
        """Simulate the allocation of the matrices that a gather saves for its backward pass."""
        parts = self.plan.parts[i]
        gather, width = parts.gather, parts.gathered_width
        name = f"attention of layer {i + 1}"
        combine = ""
        if isinstance(gather, SagaGather):
            fused = gather.program.fused
            if fused is not None and fused.combine == "attention":
                return tuple(self._take(name, rows, saved_width) for saved_width in (fused.form.heads, width))
            combine = "" if fused is None else fused.combine
        elif isinstance(gather, AttentionSum):
            widths = (gather.heads, width, gather.heads, NUM_END_VALUES * gather.heads)
            return tuple(self._take(name, rows, saved_width) for saved_width in widths)
        else:
            combine = gather.reduce
        if combine == "max":
            return (self.pool.take(f"largest of layer {i + 1}", rows, width, _INDEX_BYTES),)
        return ()

    def _gather_backward(self, i: int, layer: _Layer, *, last: bool) -> tuple[PooledMatrix, ...]:
        parts = self.plan.parts[i]
        accumulates_self = parts.scatter is None and layer.self_rows is not None
        # Release these first: attention reads them before the gradient overwrites the result.
        num_released = 2 if isinstance(parts.gather, AttentionSum) else 0
        for matrix in layer.saved[:num_released]:
            self.pool.release(matrix)
        if accumulates_self:
            assert layer.self_rows is not None
            out: tuple[PooledMatrix, ...] = (layer.self_rows,)
        else:
            name = f"gradients of what enters layer {i + 1}"
            out = tuple(self._take(name, self.sizes.vertices, width) for width in parts.message_widths)
        self._read(parts, None if last else self.sizes.vertices, is_backward=True)
        assert layer.values is not None
        for matrix in (layer.values, *layer.messages, *layer.saved[num_released:]):
            self.pool.release(matrix)
        return out if accumulates_self or layer.self_rows is None else (layer.self_rows, *out)

    def _apply(self, stage: DenseStage) -> tuple[PooledMatrix, ...]:
        sizes = self.sizes
        name = f"rows that enter layer {stage.index + 2}"
        outputs = tuple(self._take(name, sizes.vertices, width) for width in stage.widths)
        self._compute(stage, sizes.vertices, _FORWARD)
        return outputs

    def _take(self, name: str, rows: int, width: int) -> PooledMatrix:
        return self.pool.take(name, rows, width, self._itemsize)

    def _read(self, parts: LayerParts, rows: int | None, *, is_backward: bool) -> None:
        """Record a gather into `rows` vertices, or into the targets if `rows` is None."""
        sizes, gather = self.sizes, parts.gather
        kind: GatherKind = "sum"
        reads_self = False
        if isinstance(gather, SagaGather):
            kind = "loops"
        elif isinstance(gather, AttentionSum):
            kind, reads_self = "attention", True
        else:
            kind, reads_self = "max" if gather.reduce == "max" else "sum", gather.self_path == "add"
        edges, num = float(sizes.edges), sizes.vertices
        sources, passed = float(num), 0.0
        if rows is None:
            edges, num = sizes.target_edges, sizes.targets
            if is_backward:
                # Only targets have gradients to read.
                sources = min(sources, float(num))
                is_transposed = kind == "sum" and edges <= MAX_TRANSPOSED_FRACTION * sizes.edges
                passed = 0.0 if is_transposed else sizes.edges - edges
        self.reads.append(
            EdgeReads(
                kind=kind,
                is_backward=is_backward,
                rows=edges + num * reads_self,
                width=parts.gathered_width,
                sources=max(1.0, sources),
                masked_heads=gather.heads if isinstance(gather, AttentionSum) and gather.dropout > 0 else 0,
                num_skipped=passed,
            )
        )

    def _compute(self, stage: DenseStage, rows: int, passes: int) -> None:
        """Record a number of passes over the rows of a stage."""
        is_first = stage.before is None or (stage.index == 0 and not self.plan.stages[0].parameters)
        # Products with features have weight gradients, but no gradients of the features.
        products = passes - 1 if is_first and passes > _FORWARD else passes
        work = stage_work(stage, self.sizes.row_entries)
        chunks = -(-rows // self.plan.chunk_rows)
        self.calls += chunks * passes
        self.macs += rows * products * work.macs
        self.values += rows * passes * work.values
        self.sparse_macs += rows * products * work.sparse_macs
        self.sparse_weights += chunks * work.sparse_weights


@dataclass(frozen=True, slots=True)
class RowWork:
    """Work of one pass of a stage over one row."""

    macs: float
    values: float
    sparse_macs: float
    sparse_weights: float
    """Number of weights in sparse products, per chunk of rows."""


def stage_work(stage: DenseStage, row_entries: float | None) -> RowWork:
    """Return the work of a stage, with `row_entries` of `FullGraphSizes`."""
    model, widths = stage.model, stage.model.architecture.widths
    i, before, after = stage.index, stage.before, stage.after
    macs = values = sparse_macs = sparse_weights = 0.0
    # The stages before and after the first gather read the features.
    sparse = row_entries if i <= 0 else None
    if before is None:
        values += widths[0] if sparse is None else 2 * sparse
    else:
        layer = model.layers[i]
        layer_macs = _weights(layer)
        if _multiplies(before):
            layer_macs -= widths[i] * before.message_widths[0]
        if isinstance(layer, SagaLayer):
            values += layer.footprint().row
        else:
            # A layer with several sub-layers, such as GIN, has one bias vector per sub-layer.
            values += before.gathered_width + max(_vectors(layer), widths[i + 1])
        if stage.reads_self:
            values += widths[i] if sparse is None else 2 * sparse
        if model.adds_residual(i):
            values += widths[i + 1]
            macs += _weights(model.shortcuts[i])
        if before.reads_self and sparse is not None and _multiplies(before):
            # Add the product with each vertex's row.
            sparse_macs += sparse * widths[i + 1]
            sparse_weights += widths[i] * widths[i + 1]
            layer_macs -= widths[i] * widths[i + 1]
        macs += layer_macs
        if after is not None:
            values += widths[i + 1] * (bool(len(model.norms)) + (model.architecture.dropout > 0))
    if after is not None and _multiplies(after):
        products = widths[i + 1] * after.message_widths[0]
        if before is None and sparse is not None:
            sparse_macs += sparse * after.message_widths[0]
            sparse_weights += products
        else:
            macs += products
    if after is not None:
        values += sum(stage.widths)
    return RowWork(macs, values, sparse_macs, sparse_weights)


def _multiplies(parts: LayerParts) -> bool:
    """Return whether a layer's messages are one product; SAGA layers count the products of both ends."""
    return parts.scatter is not None and not isinstance(parts.gather, SagaGather)


def _weights(module: torch.nn.Module) -> float:
    """Return the number of values in the matrices among a module's parameters."""
    return float(sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1))


def _vectors(module: torch.nn.Module) -> float:
    """Return the number of values in the vectors among a module's parameters."""
    return float(sum(parameter.numel() for parameter in module.parameters() if parameter.ndim == 1))


_INT32, _INT64, _FLOAT = 4, 8, 4
_ENDS: tuple[End, ...] = ("source", "destination")


def memory_breakdown(dry_run: StepDryRun, threads: int) -> dict[str, float]:
    """Return the bytes of each array after a dry run of a step and an evaluation."""
    plan, sizes = dry_run.plan, dry_run.sizes
    numbers = sum(parameter.numel() for parameter in plan.model.parameters())
    arrays = {
        **sizes.data_bytes,
        "vertices, degrees, their factors": _vertex_bytes(plan, sizes),
        **_loop_input_bytes(plan, sizes),
        **_unpooled_bytes(plan, sizes),
        **dry_run.pool.arrays,
        "chunks of rows, at most": _chunk_bytes(plan, sizes, threads),
        "chunks of edges, at most": _edge_chunk_bytes(plan, sizes, threads),
        "parameters, gradients, optimizer": 6.0 * plan.dtype.itemsize * numbers,
    }
    return {name: size for name, size in arrays.items() if size}


def _vertex_bytes(plan: FullGraphPlan, sizes: FullGraphSizes) -> float:
    """Return the bytes of vertex arrays: two numberings, degrees, target positions and sum factors."""
    numbers, factors = 3 + (sizes.targets < sizes.vertices), 0
    for i, parts in enumerate(plan.parts):
        gather = parts.gather
        if isinstance(gather, SagaGather):
            factors += plan.dtype.itemsize * (gather.program.accumulate == "mean")
        if not isinstance(gather, Aggregation) or gather.reduce == "max":
            continue
        # The topology caches GCN's scale factors for rows and for sources.
        scales = (gather.reduce == "gcn" and i == 0) + (gather.reduce == "mean") + (gather.self_path == "add")
        factors += plan.dtype.itemsize * scales
    return float(sizes.vertices * (numbers * _INT32 + factors))


def _loop_input_bytes(plan: FullGraphPlan, sizes: FullGraphSizes) -> dict[str, float]:
    """Return the bytes of the degrees and edge types that are computed once for the loops."""
    arrays: dict[str, float] = {}
    for i, parts in enumerate(plan.parts, 1):
        if isinstance(parts.gather, SagaGather):
            program, item = parts.gather.program, plan.dtype.itemsize
            end_width = sum(value.width for end in _ENDS for value in program.inputs_from(end, fixed=True))
            type_width = sum(value.width for value in program.inputs_from("edge", fixed=True))
            arrays[f"what layer {i} makes of degrees"] = float(sizes.vertices * end_width * item)
            arrays[f"what layer {i} makes of types of edges"] = float(sizes.edges * type_width * item)
    return arrays


def _unpooled_bytes(plan: FullGraphPlan, sizes: FullGraphSizes) -> dict[str, float]:
    """Return the bytes of cached and temporary arrays outside the matrix pool."""
    item, num = plan.dtype.itemsize, sizes.vertices
    arrays: dict[str, float] = {}
    has_fewer_targets = sizes.targets < sizes.vertices
    if has_fewer_targets and sizes.target_edges <= MAX_TRANSPOSED_FRACTION * sizes.edges:
        starts = _INT32 if sizes.target_edges < 2**31 else _INT64
        arrays["edges into targets, by source"] = starts * (num + 1) + _INT32 * sizes.target_edges
    widths, last = plan.model.architecture.widths, plan.stages[-1]
    if last.reads_self:
        arrays["rows of the targets"] = float(max(sizes.targets, sizes.scored) * widths[-2] * item)
    arrays["scores of an evaluation"] = float(sizes.scored * widths[-1] * _FLOAT + num * _INT32)
    return arrays


def _chunk_bytes(plan: FullGraphPlan, sizes: FullGraphSizes, threads: int) -> float:
    """Return the bytes of the row chunks that all threads compute at the same time, with gradients."""
    numbers = [stage_work(stage, sizes.row_entries).values for stage in plan.stages]
    rows = min(plan.chunk_rows * threads, sizes.vertices)
    saved = sum(numbers[:-1]) * sizes.vertices if plan.saves_activations else 0.0
    return max(2 * max(numbers) * rows, saved) * plan.dtype.itemsize


def _edge_chunk_bytes(plan: FullGraphPlan, sizes: FullGraphSizes, threads: int) -> float:
    """Return the bytes of the edge chunks that threads compute with torch at once, with gradients."""
    numbers = [0]
    for parts in plan.parts:
        if isinstance(parts.gather, SagaGather) and parts.gather.program.unfused_reason:
            program = parts.gather.program
            numbers.append(sum(value.width for value in program.inputs) + program.edge_numbers)
    edges = min(CHUNK_EDGES * threads, sizes.edges)
    return 2.0 * max(numbers) * edges * plan.dtype.itemsize


def is_predictable(model: torch.nn.Module) -> TypeGuard[GNN]:
    """Return whether the time of a model's step on the CPU can be predicted.

    The time is unknown if the CPU trains the full graph as one block, or torch computes messages in chunks.
    """
    if not is_decomposable(model):
        return False
    parts = [layer.parts(multiply_first=False) for layer in model.layers if isinstance(layer, Layer)]
    return not any(layer_parts is None or _is_torch(layer_parts.gather) for layer_parts in parts)


def _is_torch(gather: object) -> bool:
    """Return whether torch computes the messages because they cannot be compiled to a loop."""
    return isinstance(gather, SagaGather) and bool(gather.program.unfused_reason)


def full_graph_step(
    model: GNN, sizes: FullGraphSizes, *, memory_bytes: float, threads: int, limited: bool = False
) -> FullGraphStep:
    """Return the work of a full-graph step and the memory of a run.

    `model` must be decomposable into layers; only the memory is exact unless it `is_predictable`. A fraction
    of `memory_bytes` may cache the first layer's gather. `limited` is set if the settings limit host memory.
    """
    plan = plan_full_graph(
        model,
        sizes.vertices,
        sizes.edges,
        is_sparse=sizes.row_entries is not None,
        memory_bytes=int(memory_bytes) // CACHE_DIVISOR if math.isfinite(memory_bytes) else sys.maxsize,
        has_memory_limit=limited,
    )
    dry_run = StepDryRun(plan, sizes)
    dry_run.step()
    reads, work = tuple(dry_run.reads), (dry_run.calls, dry_run.macs, dry_run.values)
    sparse = (dry_run.sparse_macs, dry_run.sparse_weights)
    dry_run.scores()
    return FullGraphStep(
        arrays=memory_breakdown(dry_run, threads),
        reads=reads,
        calls=work[0],
        macs=work[1],
        values=work[2],
        sparse_macs=sparse[0],
        sparse_weights=sparse[1],
        matrices=dict(dry_run.pool.arrays),
    )


def model_for_widths(config: Config, num_features: int, num_classes: int) -> GNN:
    """Create the configured model for a graph with these numbers of features and classes.

    Raises ConfigError or ValueError if the model does not exist or does not support the widths.
    """
    if find_model(config.model.kind).hetero:
        return build_model(config, _one_type(num_features, num_classes))
    # Models are created for a graph, so use a graph with a single vertex in the last class.
    graph = Graph.from_arrays(
        name="none",
        indptr=np.zeros(2, np.int64),
        indices=np.zeros(0, np.int32),
        features=DenseFeatures(np.zeros((1, num_features), np.float32)),
        labels=np.full(1, num_classes - 1, np.int64),
        masks={},
    )
    return build_model(config, graph)


def _one_type(num_features: int, num_classes: int) -> Graph:
    """Return a heterogeneous graph with one vertex, for models that require a heterogeneous graph."""
    rows, no_edges = np.zeros((1, num_features), np.float32), np.zeros(0, np.int64)
    labels = np.full(1, num_classes - 1, np.int64)
    masks = {split: np.zeros(1, np.bool_) for split in SPLITS}
    return build_hetero_graph(
        "none", {"one": rows}, {("one", "to", "one"): (no_edges, no_edges)}, labels, masks, "one"
    )


def meta_model(config: Config, num_features: int, num_classes: int) -> GNN:
    """Create the model of `model_for_widths` on torch's meta device, with shapes but no values."""
    with torch.device("meta"):
        return model_for_widths(config, num_features, num_classes)
