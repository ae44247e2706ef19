"""Dry run of a step of `hyrt.fullgraph`: the matrices it allocates, and its work."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hyrt_perfmodel.workloads.whole_graph import EdgeReads, GatherKind

from hyrt.fullgraph.destinations import MOST_EDGES
from hyrt.fullgraph.forward import COLUMNS
from hyrt.fullgraph.plan import ChainPlan
from hyrt.fullgraph.row_stage import RowStage
from hyrt.nn.layer_parts import AttentionSum, LayerParts
from hyrt.nn.saga.gather import SagaSum
from hyrt.nn.saga.layer import SagaLayer
from hyrt.nn.whole_graph.attention import ENDS
from hyrt.predict.whole_graphs.matrix_pool import MatrixPool, PooledMatrix
from hyrt.predict.whole_graphs.whole_graph_sizes import WholeGraphSizes

_INDEX_BYTES = 4
# Passes over rows: forward; in the backward pass the recomputed forward, and the gradients of rows and
# weights.
_FORWARD, _RECOMPUTE, _GRADIENTS = 1, 1, 2


@dataclass(slots=True)
class _Layer:
    """Counterpart of `hyrt.fullgraph.forward.Gathered`."""

    values: PooledMatrix | None
    takes_gradient: bool
    messages: tuple[PooledMatrix, ...]
    kept: tuple[PooledMatrix, ...]
    own: PooledMatrix | None


class StepWalk:
    """Dry run of a step.

    It follows a step through `Chain`, `lose` and `turn_back`, with sizes instead of arrays. A change in the
    order in which these allocate and release matrices must be repeated here: tests compare the two, matrix by
    matrix.

    Parameters
    ----------
    plan
        Execution plan of the model.
    sizes
        Sizes of the graph.
    """

    def __init__(self, plan: ChainPlan, sizes: WholeGraphSizes) -> None:
        self.plan, self.sizes = plan, sizes
        self.pool = MatrixPool()
        self.reads: list[EdgeReads] = []
        self.calls = self.macs = self.values = self.sparse_macs = self.sparse_weights = 0.0
        self._itemsize = plan.dtype.itemsize

    def step(self) -> None:
        """Simulate one step of `FullGraphReplica.step`."""
        plan, sizes = self.plan, self.sizes
        if plan.keeps_first:
            # The first step computes the cached gather of the first layer.
            width = plan.parts[0].gathered_width
            self._take("gathered of the features, kept", sizes.vertices, width)
            if sizes.mapped:
                self.pool.give(self._take("columns of features", sizes.vertices, min(width, COLUMNS)))
        layers = self.forward(self._num_last_rows(sizes.targets), keep=True)
        self._compute(plan.stages[-1], sizes.targets, _FORWARD + _GRADIENTS)
        for i in reversed(range(len(layers))):
            layer = layers[i]
            if not layer.takes_gradient:
                self.release(layer)
                return
            grads = self._gather_backward(i, layer, last=i == len(layers) - 1)
            recompute_passes = 0 if plan.keeps_rows else _RECOMPUTE
            self._compute(plan.stages[i], sizes.vertices, recompute_passes + _GRADIENTS)
            for grad in grads:
                self.pool.give(grad)

    def scores(self) -> None:
        """Simulate one evaluation of `FullGraphReplica.scores`."""
        self.release(self.forward(self._num_last_rows(self.sizes.scored), keep=False)[-1])

    def _num_last_rows(self, rows: int) -> int | None:
        """Return the rows of the last layer; None for all rows."""
        return None if rows == self.sizes.vertices else rows

    def forward(self, at: int | None, *, keep: bool) -> list[_Layer]:
        """Simulate `Chain.forward`, with `at` rows in the last layer; None for all."""
        plan, layers = self.plan, []
        own: PooledMatrix | None = None
        messages: tuple[PooledMatrix, ...] = ()
        if not plan.keeps_first and not plan.reads_in_place:
            messages = self._apply(plan.stages[0])
        for i in range(len(plan.parts)):
            last = i == len(plan.parts) - 1
            layer = self._gather(i, messages, own, at if last else None, keep=keep)
            layers.append(layer)
            if last:
                break
            stage = plan.stages[i + 1]
            outputs = self._apply(stage)
            assert stage.after is not None
            own, messages = None, outputs
            if stage.carries_rows:
                own = outputs[0]
                messages = outputs if stage.after.scatter is None else outputs[1:]
            if not keep:
                self.release(layer)
        return layers

    def release(self, layer: _Layer) -> None:
        """Simulate `Chain.release`."""
        for matrix in (layer.values, *layer.messages, *layer.kept, layer.own):
            if matrix is not None:
                self.pool.give(matrix)

    def _gather(
        self,
        i: int,
        messages: tuple[PooledMatrix, ...],
        own: PooledMatrix | None,
        at: int | None,
        *,
        keep: bool,
    ) -> _Layer:
        plan, parts = self.plan, self.plan.parts[i]
        rows, width = self.sizes.vertices if at is None else at, parts.gathered_width
        if i == 0 and plan.keeps_first:
            values = None if at is None else self._take("gathered by layer 1", rows, width)
            return _Layer(values, takes_gradient=False, messages=(), kept=(), own=None)
        values = self._take(f"gathered by layer {i + 1}", rows, width)
        saved = self._saved_matrices(i, rows) if keep else ()
        self._read(parts, rows if at is None else None, is_backward=False)
        takes_gradient = i > 0 or bool(plan.stages[0].parameters)
        if i == 0 and plan.reads_in_place:
            messages = ()
        elif not (keep and takes_gradient and isinstance(parts.gather, AttentionSum | SagaSum)):
            for message in messages:
                if message is not own:
                    self.pool.give(message)
            messages = ()
        return _Layer(values, takes_gradient, messages, saved, own)

    def _saved_matrices(self, i: int, rows: int) -> tuple[PooledMatrix, ...]:
        """Allocate the matrices that a gather saves for its backward pass."""
        parts = self.plan.parts[i]
        gather, width = parts.gather, parts.gathered_width
        name = f"attention of layer {i + 1}"
        combine = ""
        if isinstance(gather, SagaSum):
            fused = gather.program.fused
            if fused is not None and fused.combine == "attention":
                return tuple(self._take(name, rows, saved_width) for saved_width in (fused.form.heads, width))
            combine = "" if fused is None else fused.combine
        elif isinstance(gather, AttentionSum):
            widths = (gather.heads, width, gather.heads, ENDS * gather.heads)
            return tuple(self._take(name, rows, saved_width) for saved_width in widths)
        else:
            combine = gather.reduce
        if combine == "max":
            return (self.pool.take(f"largest of layer {i + 1}", rows, width, _INDEX_BYTES),)
        return ()

    def _gather_backward(self, i: int, layer: _Layer, *, last: bool) -> tuple[PooledMatrix, ...]:
        parts = self.plan.parts[i]
        accumulates_self = parts.scatter is None and layer.own is not None
        # Attention reads the first two saved matrices before the gradient overwrites its result.
        num_released = 2 if isinstance(parts.gather, AttentionSum) else 0
        for matrix in layer.kept[:num_released]:
            self.pool.give(matrix)
        if accumulates_self:
            assert layer.own is not None
            out: tuple[PooledMatrix, ...] = (layer.own,)
        else:
            name = f"gradients of what enters layer {i + 1}"
            out = tuple(self._take(name, self.sizes.vertices, width) for width in parts.message_widths)
        self._read(parts, None if last else self.sizes.vertices, is_backward=True)
        assert layer.values is not None
        for matrix in (layer.values, *layer.messages, *layer.kept[num_released:]):
            self.pool.give(matrix)
        return out if accumulates_self or layer.own is None else (layer.own, *out)

    def _apply(self, stage: RowStage) -> tuple[PooledMatrix, ...]:
        sizes = self.sizes
        name = f"rows that enter layer {stage.index + 2}"
        outputs = tuple(self._take(name, sizes.vertices, width) for width in stage.widths)
        self._compute(stage, sizes.vertices, _FORWARD)
        return outputs

    def _take(self, name: str, rows: int, width: int) -> PooledMatrix:
        return self.pool.take(name, rows, width, self._itemsize)

    def _read(self, parts: LayerParts, rows: int | None, *, is_backward: bool) -> None:
        """Record a gather at `rows` vertices; None for the targets."""
        sizes, gather = self.sizes, parts.gather
        kind: GatherKind = "sum"
        reads_self = False
        if isinstance(gather, SagaSum):
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
                # Only the targets have gradients.
                sources = min(sources, float(num))
                is_transposed = kind == "sum" and edges <= MOST_EDGES * sizes.edges
                passed = 0.0 if is_transposed else sizes.edges - edges
        self.reads.append(
            EdgeReads(
                kind=kind,
                back=is_backward,
                rows=edges + num * reads_self,
                width=parts.gathered_width,
                sources=max(1.0, sources),
                masked_heads=gather.heads if isinstance(gather, AttentionSum) and gather.dropout > 0 else 0,
                passed=passed,
            )
        )

    def _compute(self, stage: RowStage, rows: int, passes: int) -> None:
        """Record passes over rows in a stage."""
        is_first = stage.before is None or (stage.index == 0 and not self.plan.stages[0].parameters)
        # The products of features have gradients; the features have none.
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
    """Work of one pass over one row of a stage."""

    macs: float
    values: float
    sparse_macs: float
    sparse_weights: float
    """Weights of sparse products per chunk of rows."""


def stage_work(stage: RowStage, row_entries: float | None) -> RowWork:
    """Return the work of a stage.

    Parameters
    ----------
    stage
        The stage.
    row_entries
        `WholeGraphSizes.row_entries`.
    """
    model, widths = stage.model, stage.model.architecture.widths
    i, before, after = stage.index, stage.before, stage.after
    macs = values = sparse_macs = sparse_weights = 0.0
    # The features are read by the stages before and after the first gather.
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
            # A layer with several sub-layers, such as GIN's, has one bias vector per sub-layer.
            values += before.gathered_width + max(_vectors(layer), widths[i + 1])
        if stage.reads_own:
            values += widths[i] if sparse is None else 2 * sparse
        if model.adds_own(i):
            values += widths[i + 1]
            macs += _weights(model.shortcuts[i])
        if before.reads_own and sparse is not None and _multiplies(before):
            # Product of the vertices' own rows.
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
    """Return whether a single product yields a layer's messages; products of both ends count in the layer
    itself.
    """
    return parts.scatter is not None and not isinstance(parts.gather, SagaSum)


def _weights(module: torch.nn.Module) -> float:
    """Return the number of values in a module's matrices."""
    return float(sum(parameter.numel() for parameter in module.parameters() if parameter.ndim > 1))


def _vectors(module: torch.nn.Module) -> float:
    """Return the number of values in a module's vectors."""
    return float(sum(parameter.numel() for parameter in module.parameters() if parameter.ndim == 1))
