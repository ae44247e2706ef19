"""Forward pass of a model over a full graph."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.gather_ops import FusedBackward, GatherOp, GatherResult, build_gather_op
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.matrix_pool import HostMemoryBudget, MatrixPool
from hyrt.fullgraph.plan import (
    DenseStage,
    DestinationSubset,
    DropoutKey,
    FullGraphPlan,
    GatherContext,
    Rows,
    dropout_features,
)
from hyrt.fullgraph.step_checkpoint import CheckpointedArrays, HostStepProgress, StepCheckpoint
from hyrt.nn.fused.loop_backend import name_loops
from hyrt.nn.operators.sparse import SparseRows
from hyrt.runtime.buffer_pool import BufferPool
from hyrt.runtime.workers import Chunk, Workers, use_workers
from hyrt.sampling.minibatch import FullGraph

Array = NDArray[Any]

COLUMNS_PER_COPY = 32
"""Number of feature columns to copy from a file at a time."""


StageResult = tuple[tuple[torch.Tensor | None, Rows | None], tuple[torch.Tensor, ...]]
"""Inputs and outputs of a stage for a range of rows."""


class FullGraphForward:
    """Forward pass of a model over a full graph, with the model's matrices.

    In a distributed run, `graph` has the edges into the local vertices, and `features` are the features of
    the local vertices. `budget` limits the host memory of the matrices (None: no limit).
    """

    def __init__(
        self,
        plan: FullGraphPlan,
        graph: FullGraph,
        features: InputRows,
        budget: HostMemoryBudget | None = None,
    ) -> None:
        self.plan = plan
        self.num_vertices = len(graph.rows)
        self.num_sources = graph.topology.num_vertices
        """Number of message rows: one per local and remote vertex."""
        self.memory = MatrixPool(budget)
        self.features = features
        self.gatherings: list[GatherOp] = [
            build_gather_op(parts.gather, graph.topology, plan.dtype, layer)
            if graph.gather_ops is None
            else graph.gather_ops.build_gather_op(parts.gather, plan.dtype, layer)
            for layer, parts in enumerate(plan.parts, 1)
        ]
        # Check this once, because isinstance() of a runtime protocol is slow.
        self.fused_backwards = [each if isinstance(each, FusedBackward) else None for each in self.gatherings]
        self.vertices = graph.vertices
        """Vertex ids, which key the dropout masks, [n]."""
        # Operators inside a chunk run in the thread that computes the chunk.
        self._alone = Workers(1, "chunk", pool=BufferPool())
        self._first: Array | None = None
        self._computed: dict[tuple[int, int], StageResult] = {}
        """Saved results of stages, by stage index and first row."""

    def run_chunks(self, work: Chunk, count: int, workers: Workers) -> None:
        """Call `work(start, stop)` for chunks of `count` rows, each computed by one thread.

        A single chunk is computed by the whole team, operator by operator.
        """
        if count <= self.plan.chunk_rows:
            with use_workers(workers):
                work(0, count)
            return

        @functools.wraps(work)  # Traces label parallel work with the name of the function.
        def alone(start: int, stop: int) -> None:
            with use_workers(self._alone):
                work(start, stop)

        workers.run(alone, count, self.plan.chunk_rows)

    def stage_inputs(
        self,
        stage: DenseStage,
        layer: GatherResult | None,
        start: int,
        stop: int,
        masks: DropoutKey | None,
        *,
        requires_grad: bool,
    ) -> tuple[torch.Tensor | None, Rows | None]:
        """Return the inputs of a stage for a range of vertices, as views of the matrices.

        With `requires_grad`, tensors whose gradient is needed require gradients.
        """
        rows: Rows | None = None
        if layer is not None and layer.self_rows is not None:
            rows = torch.from_numpy(layer.self_rows[start:stop]).requires_grad_(requires_grad)
        elif layer is None or stage.reads_self:
            # These features are read only by the stages before and after the first gather.
            vertices = self.vertices[start:stop]
            rows = dropout_features(stage.model, self.features.read_range(start, stop), vertices, masks)
        if layer is None:
            return None, rows
        gathered = torch.from_numpy(layer.values[start:stop])
        return gathered.requires_grad_(requires_grad and layer.needs_gradient), rows

    def forward(
        self,
        destinations: DestinationSubset | None,
        masks: DropoutKey | None,
        workers: Workers,
        *,
        save_for_backward: bool,
        progress: HostStepProgress | None = None,
    ) -> list[GatherResult]:
        """Run the gathers and stages up to the last gather, which is limited to `destinations` unless None.

        Without `save_for_backward`, no backward pass can follow, and only the last returned layer is valid.
        The step resumes from `progress`.
        """
        plan, progress = self.plan, HostStepProgress() if progress is None else progress
        state, restore = progress.state, functools.partial(self.restore, progress, destinations)
        self._computed.clear()
        for i in range(len(plan.parts)):
            is_last = i == len(plan.parts) - 1
            if not progress.is_done(restore):
                if i == 0:
                    state.messages = self._first_messages(masks, workers, keep=save_for_backward)
                where = destinations if is_last else None
                layer = self._gather(
                    i, state.messages, state.self_rows, where, masks, workers, keep=save_for_backward
                )
                state.layers.append(layer)
                state.messages, state.self_rows = (), None
                progress.finish_half()
            if is_last:
                break
            if not progress.is_done(restore):
                stage, layer = plan.stages[i + 1], state.layers[i]
                made = self._apply(stage, layer, masks, workers, keep=save_for_backward)
                state.self_rows, state.messages = self._sorted(stage, made)
                if not save_for_backward:
                    self.release(layer)
                progress.finish_half()
        return state.layers

    def restore(
        self, progress: HostStepProgress, destinations: DestinationSubset | None, checkpoint: StepCheckpoint
    ) -> None:
        """Restore the state of a step from a checkpoint. The last layer gathers at `destinations`."""
        arrays, state = CheckpointedArrays.read(checkpoint, self.memory.take), progress.state
        last = len(self.plan.parts) - 1
        for i, (values, takes_gradient, messages, others, self_rows) in enumerate(arrays.layers):
            if i == 0 and self.plan.caches_first_gather and not (i == last and destinations is not None):
                self._first = values
            layer = GatherResult(values, takes_gradient, messages, others, self_rows=self_rows)
            self._set_save_for_backward(i, layer, destinations if i == last else None)
            state.layers.append(layer)
        state.messages, state.self_rows, state.grads = arrays.messages, arrays.self_rows, arrays.grads
        state.loss_totals = arrays.loss_totals

    def select_targets(
        self,
        layer: GatherResult,
        destinations: DestinationSubset | None,
        masks: DropoutKey | None,
        workers: Workers,
    ) -> GatherResult:
        """Return the inputs of the last stage at the targets: gathered rows, and input rows of its layer."""
        self_rows, stage = layer.self_rows, self.plan.stages[-1]
        vertices = np.arange(self.num_vertices) if destinations is None else destinations.vertices
        if self_rows is not None:
            self_rows = self_rows if destinations is None else self_rows[vertices]
        elif stage.reads_self:
            rows = self.features.read_rows(vertices, workers)
            rows = dropout_features(stage.model, rows, self.vertices[vertices], masks)
            self_rows = (
                (rows.to_dense() if isinstance(rows, SparseRows) else rows).to(self.plan.torch_dtype).numpy()
            )
        return GatherResult(
            layer.values, layer.needs_gradient, save_for_backward=layer.save_for_backward, self_rows=self_rows
        )

    def release(self, layer: GatherResult) -> None:
        """Release the matrices of a layer to the pool."""
        for matrix in (layer.values, *layer.messages, *layer.saved, layer.self_rows):
            if matrix is not None and matrix is not self._first:
                self.memory.release(matrix)

    def _sorted(self, stage: DenseStage, made: tuple[Array, ...]) -> tuple[Array | None, tuple[Array, ...]]:
        """Split the outputs of a stage into messages, and rows for the stage after the next gather."""
        assert stage.after is not None
        if not stage.carries_rows:
            return None, made
        return made[0], made if stage.after.scatter is None else made[1:]

    def _first_messages(self, masks: DropoutKey | None, workers: Workers, *, keep: bool) -> tuple[Array, ...]:
        if self.plan.caches_first_gather:
            return ()
        if self.plan.reads_in_place:
            return (self.features.as_matrix(),)
        return self._apply(self.plan.stages[0], None, masks, workers, keep=keep)

    def _gather(
        self,
        i: int,
        messages: tuple[Array, ...],
        self_rows: Array | None,
        at: DestinationSubset | None,
        masks: DropoutKey | None,
        workers: Workers,
        *,
        keep: bool,
    ) -> GatherResult:
        plan, gathering = self.plan, self.gatherings[i]
        if i == 0 and plan.caches_first_gather:
            values = self._gather_first(workers)
            if at is not None:
                every = values
                values = self.memory.take((len(at.vertices), every.shape[1]), plan.dtype)
                np.take(every, at.vertices, 0, out=values, mode="clip")
            return GatherResult(values, needs_gradient=False)
        height = self.num_vertices if at is None else len(at.vertices)
        values = self.memory.take((height, plan.parts[i].gathered_width), plan.dtype)
        in_place = i == 0 and plan.reads_in_place
        mine = not in_place and all(message is not self_rows for message in messages)
        memory = self.memory if keep else None
        over = GatherContext(workers, at, masks, memory, overwrite=mine)
        with name_loops(f"layer {i + 1}"):
            saved = gathering.forward(messages, values, over)
        takes_gradient = i > 0 or bool(plan.stages[0].parameters)
        if in_place:
            messages = ()
        elif not (keep and takes_gradient and gathering.reads_messages_in_backward):
            for message in messages:
                if message is not self_rows:
                    self.memory.release(message)
            messages = ()
        layer = GatherResult(values, takes_gradient, messages, saved, self_rows=self_rows)
        self._set_save_for_backward(i, layer, at)
        return layer

    def _set_save_for_backward(self, i: int, layer: GatherResult, at: DestinationSubset | None) -> None:
        fused_backward = self.fused_backwards[i]
        if layer.saved and layer.needs_gradient and fused_backward is not None:
            layer.save_for_backward = functools.partial(
                fused_backward.save_for_backward, layer.messages, layer.saved, at
            )

    def _gather_first(self, workers: Workers) -> Array:
        """Return the gathered features of the first layer, [V, f], which are computed once and cached."""
        if self._first is None:
            width = self.plan.parts[0].gathered_width
            first = self.memory.take((self.num_vertices, width), self.plan.dtype)
            gathering, features = self.gatherings[0], self.features
            with name_loops("layer 1"):
                if features.is_mapped:
                    # Copy only some columns at a time: the whole matrix or a copy of it may not fit in
                    # memory.
                    some = self.memory.take(
                        (self.num_vertices, min(width, COLUMNS_PER_COPY)), self.plan.dtype
                    )
                    for at in range(0, width, some.shape[1]):
                        features.copy_columns(at, some, workers)
                        part = first[:, at : at + some.shape[1]]
                        columns = some[:, : part.shape[1]]
                        gathering.forward((columns,), part, GatherContext(workers, overwrite=True))
                    self.memory.release(some)
                else:
                    gathering.forward((features.as_matrix(),), first, GatherContext(workers))
            self._first = first
        return self._first

    def compute(
        self,
        stage: DenseStage,
        layer: GatherResult | None,
        start: int,
        stop: int,
        masks: DropoutKey | None,
        *,
        requires_grad: bool,
    ) -> StageResult:
        """Run a stage on a range of rows. With `requires_grad`, its outputs can be differentiated."""
        with torch.set_grad_enabled(requires_grad):
            inputs = self.stage_inputs(stage, layer, start, stop, masks, requires_grad=requires_grad)
            return inputs, stage(*inputs, self.vertices[start:stop], masks)

    def pop_saved_result(self, stage: DenseStage, start: int) -> StageResult | None:
        """Remove and return the saved result of the rows from `start` on, or None if it was not saved."""
        return self._computed.pop((stage.index, start), None)

    def _apply(
        self,
        stage: DenseStage,
        layer: GatherResult | None,
        masks: DropoutKey | None,
        workers: Workers,
        *,
        keep: bool,
    ) -> tuple[Array, ...]:
        """Run a stage on all rows and return its output matrices."""
        made = tuple(self.memory.take((self.num_sources, width), self.plan.dtype) for width in stage.widths)
        keeps = keep and self.plan.saves_activations

        def work(start: int, stop: int) -> None:
            computed = self.compute(stage, layer, start, stop, masks, requires_grad=keeps)
            if keeps:
                self._computed[stage.index, start] = computed
            for matrix, result in zip(made, computed[1], strict=True):
                matrix[start:stop] = result.detach().numpy()

        self.run_chunks(work, self.num_vertices, workers)
        return made
