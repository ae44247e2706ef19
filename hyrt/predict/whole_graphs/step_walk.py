"""A step of `hyrt.fullgraph` before it is made: the matrices it takes, and its work.

It goes through a step as `Chain`, `lose` and `turn_back` do, with sizes instead of arrays. Whoever changes
the order in which these take matrices and give them back changes it here, too: the tests compare the two,
matrix by matrix.
"""

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

_INT32 = 4
# Passes over rows: forward; in the backward pass forward again, and gradients of the rows and of the weights.
_FORWARD, _AGAIN, _GRADIENTS = 1, 1, 2


@dataclass(slots=True)
class _Layer:
    """As `hyrt.fullgraph.forward.Gathered`."""

    values: PooledMatrix | None
    takes_gradient: bool
    messages: tuple[PooledMatrix, ...]
    kept: tuple[PooledMatrix, ...]
    own: PooledMatrix | None


class StepWalk:
    """Goes through a step.

    Parameters
    ----------
    plan
        How the model is computed.
    sizes
        The graph.
    """

    def __init__(self, plan: ChainPlan, sizes: WholeGraphSizes) -> None:
        self.plan, self.sizes = plan, sizes
        self.pool = MatrixPool()
        self.reads: list[EdgeReads] = []
        self.calls = self.macs = self.values = self.sparse_macs = self.sparse_weights = 0.0
        self._itemsize = plan.dtype.itemsize

    def step(self) -> None:
        """One step: `FullGraphReplica.step`."""
        plan, sizes = self.plan, self.sizes
        if plan.keeps_first:
            # What the first layer gathers is computed in the first step.
            width = plan.parts[0].gathered_width
            self._take("gathered of the features, kept", sizes.vertices, width)
            if sizes.mapped:
                self.pool.give(self._take("columns of features", sizes.vertices, min(width, COLUMNS)))
        layers = self.forward(self._at(sizes.targets), keep=True)
        self._compute(plan.stages[-1], sizes.targets, _FORWARD + _GRADIENTS)
        for i in reversed(range(len(layers))):
            layer = layers[i]
            if not layer.takes_gradient:
                self.release(layer)
                return
            grads = self._gather_back(i, layer, last=i == len(layers) - 1)
            again = 0 if plan.keeps_rows else _AGAIN
            self._compute(plan.stages[i], sizes.vertices, again + _GRADIENTS)
            for grad in grads:
                self.pool.give(grad)

    def scores(self) -> None:
        """One evaluation: `FullGraphReplica.scores`."""
        self.release(self.forward(self._at(self.sizes.scored), keep=False)[-1])

    def _at(self, rows: int) -> int | None:
        """Rows of the last layer; None where they are all."""
        return None if rows == self.sizes.vertices else rows

    def forward(self, at: int | None, *, keep: bool) -> list[_Layer]:
        """`Chain.forward`, with `at` rows in the last layer; None for all."""
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
            made = self._apply(stage)
            assert stage.after is not None
            own, messages = None, made
            if stage.carries_rows:
                own = made[0]
                messages = made if stage.after.scatter is None else made[1:]
            if not keep:
                self.release(layer)
        return layers

    def release(self, layer: _Layer) -> None:
        """`Chain.release`."""
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
        kept = self._kept(i, rows) if keep else ()
        self._read(parts, rows if at is None else None, back=False)
        takes_gradient = i > 0 or bool(plan.stages[0].parameters)
        if i == 0 and plan.reads_in_place:
            messages = ()
        elif not (keep and takes_gradient and isinstance(parts.gather, AttentionSum | SagaSum)):
            for message in messages:
                if message is not own:
                    self.pool.give(message)
            messages = ()
        return _Layer(values, takes_gradient, messages, kept, own)

    def _kept(self, i: int, rows: int) -> tuple[PooledMatrix, ...]:
        """What a gathering keeps for its backward pass."""
        parts = self.plan.parts[i]
        gather, width = parts.gather, parts.gathered_width
        name = f"attention of layer {i + 1}"
        combine = ""
        if isinstance(gather, SagaSum):
            fused = gather.program.fused
            if fused is not None and fused.combine == "attention":
                return tuple(self._take(name, rows, each) for each in (fused.form.heads, width))
            combine = "" if fused is None else fused.combine
        elif isinstance(gather, AttentionSum):
            widths = (gather.heads, width, gather.heads, ENDS * gather.heads)
            return tuple(self._take(name, rows, each) for each in widths)
        else:
            combine = gather.reduce
        if combine == "max":
            return (self.pool.take(f"largest of layer {i + 1}", rows, width, _INT32),)
        return ()

    def _gather_back(self, i: int, layer: _Layer, *, last: bool) -> tuple[PooledMatrix, ...]:
        parts = self.plan.parts[i]
        onto_own = parts.scatter is None and layer.own is not None
        # Attention reads the first two of what it kept while the gradient takes the place of its result.
        done = 2 if isinstance(parts.gather, AttentionSum) else 0
        for matrix in layer.kept[:done]:
            self.pool.give(matrix)
        if onto_own:
            assert layer.own is not None
            out: tuple[PooledMatrix, ...] = (layer.own,)
        else:
            name = f"gradients of what enters layer {i + 1}"
            out = tuple(self._take(name, self.sizes.vertices, width) for width in parts.message_widths)
        self._read(parts, None if last else self.sizes.vertices, back=True)
        assert layer.values is not None
        for matrix in (layer.values, *layer.messages, *layer.kept[done:]):
            self.pool.give(matrix)
        return out if onto_own or layer.own is None else (layer.own, *out)

    def _apply(self, stage: RowStage) -> tuple[PooledMatrix, ...]:
        sizes = self.sizes
        name = f"rows that enter layer {stage.index + 2}"
        made = tuple(self._take(name, sizes.vertices, width) for width in stage.widths)
        self._compute(stage, sizes.vertices, _FORWARD)
        return made

    def _take(self, name: str, rows: int, width: int) -> PooledMatrix:
        return self.pool.take(name, rows, width, self._itemsize)

    def _read(self, parts: LayerParts, rows: int | None, *, back: bool) -> None:
        """Note what is gathered at all vertices; with `rows` None, at the targets."""
        sizes, gather = self.sizes, parts.gather
        kind: GatherKind = "sum"
        own = False
        if isinstance(gather, SagaSum):
            kind = "loops"
        elif isinstance(gather, AttentionSum):
            kind, own = "attention", True
        else:
            kind, own = "max" if gather.reduce == "max" else "sum", gather.self_path == "add"
        edges, num = float(sizes.edges), sizes.vertices
        sources, passed = float(num), 0.0
        if rows is None:
            edges, num = sizes.target_edges, sizes.targets
            if back:
                # Gradients are there for the targets alone.
                sources = min(sources, float(num))
                turned = kind == "sum" and edges <= MOST_EDGES * sizes.edges
                passed = 0.0 if turned else sizes.edges - edges
        self.reads.append(
            EdgeReads(
                kind=kind,
                back=back,
                rows=edges + num * own,
                width=parts.gathered_width,
                sources=max(1.0, sources),
                masked_heads=gather.heads if isinstance(gather, AttentionSum) and gather.dropout > 0 else 0,
                passed=passed,
            )
        )

    def _compute(self, stage: RowStage, rows: int, passes: int) -> None:
        """Note passes over rows in a stage."""
        is_first = stage.before is None or (stage.index == 0 and not self.plan.stages[0].parameters)
        # What the features are made into takes a gradient; they do not.
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
    """Of one row of a stage, and one pass over it."""

    macs: float
    values: float
    sparse_macs: float
    sparse_weights: float
    """Of a chunk of rows."""


def stage_work(stage: RowStage, row_entries: float | None) -> RowWork:
    """The work of a stage.

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
    # The features themselves are read in two places.
    sparse = row_entries if i <= 0 else None
    if before is None:
        values += widths[0] if sparse is None else 2 * sparse
    else:
        layer = model.layers[i]
        of_layer = _weights(layer)
        if _multiplies(before):
            of_layer -= widths[i] * before.message_widths[0]
        if isinstance(layer, SagaLayer):
            values += layer.footprint().row
        else:
            # A layer of several steps, such as GIN's, has a vector of parameters for each that makes a row.
            values += before.gathered_width + max(_vectors(layer), widths[i + 1])
        if stage.reads_own:
            values += widths[i] if sparse is None else 2 * sparse
        if model.adds_own(i):
            values += widths[i + 1]
            macs += _weights(model.shortcuts[i])
        if before.reads_own and sparse is not None and _multiplies(before):
            # The own rows' part of the product.
            sparse_macs += sparse * widths[i + 1]
            sparse_weights += widths[i] * widths[i + 1]
            of_layer -= widths[i] * widths[i + 1]
        macs += of_layer
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
    """Whether one product makes a layer's messages. Those of both ends count where the layer ends."""
    return parts.scatter is not None and not isinstance(parts.gather, SagaSum)


def _weights(module: torch.nn.Module) -> float:
    """Numbers in the matrices of a module."""
    return float(sum(each.numel() for each in module.parameters() if each.ndim > 1))


def _vectors(module: torch.nn.Module) -> float:
    """Numbers in the vectors of a module."""
    return float(sum(each.numel() for each in module.parameters() if each.ndim == 1))
