"""Model replica for full-graph training on the host, and the backward pass from the loss to all gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.forward import FullGraphForward
from hyrt.fullgraph.gather_ops import GatherResult
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.plan import DestinationSubset, DropoutKey, GatherContext, plan_full_graph
from hyrt.fullgraph.step_checkpoint import (
    ChunkSum,
    GradientSums,
    HostStepProgress,
    StepCheckpoint,
    StepCheckpointer,
    restore_sums,
)
from hyrt.nn.fused.loop_backend import name_loops
from hyrt.nn.layer import InPlaceFeatures
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.objective import Objective
from hyrt.objective.host_loss import compute_host_counts
from hyrt.objective.metrics import check_loss
from hyrt.objective.objective import OBJECTIVES, sum_counts
from hyrt.runtime.workers import Workers
from hyrt.sampling.minibatch import FullGraph, MiniBatch

Array = NDArray[Any]


def compute_loss(
    chain: FullGraphForward,
    gathered: GatherResult,
    batch: MiniBatch,
    objective: Objective,
    terms: ChunkSum,
    workers: Workers,
) -> tuple[float, dict[str, float]]:
    """Return the loss over the targets of a mini-batch, and the counts for its metrics.

    Each chunk of targets is processed from its gathered rows to scores and the loss, and back. The full score
    matrix is never stored. `gathered` has the rows of the targets in the last layer, and the input rows of
    that layer; both are overwritten with their gradients. `terms` sums the parameter gradients of the last
    stage.
    """
    stage = chain.plan.stages[-1]
    labels, target_weights = torch.from_numpy(batch.labels), batch.target_weights
    weights = None if target_weights is None else torch.from_numpy(target_weights)
    num, rows = len(batch.targets), chain.plan.chunk_rows
    if not num:
        # All targets belong to other processes.
        return 0.0, {}
    losses = [0.0] * -(-num // rows)
    counts: list[dict[str, float]] = [{}] * len(losses)

    def work(start: int, stop: int) -> None:
        with torch.enable_grad():
            inputs = chain.stage_inputs(stage, gathered, start, stop, None, requires_grad=True)
            (scores,) = stage(*inputs, batch.targets[start:stop], None)
            part = None if weights is None else weights[start:stop]
            with OBJECTIVES.wrap_errors(objective.name, "loss_sum"):
                loss = check_loss(objective, objective.loss_sum(scores, labels[start:stop], part))
        chunk = start // rows
        losses[chunk] = float(loss.detach())
        counts[chunk] = compute_host_counts(objective, scores.detach(), labels[start:stop])
        terms.differentiate(chunk, (loss,), None, inputs, _save_callback(gathered, start))

    chain.run_chunks(work, num, workers)
    return sum(losses), sum_counts(counts)


def run_backward(
    chain: FullGraphForward,
    progress: HostStepProgress,
    destinations: DestinationSubset | None,
    masks: DropoutKey,
    sums: GradientSums,
    workers: Workers,
) -> None:
    """Propagate gradients from the last layer to the first, and add the parameter gradients to `sums`.

    `progress` holds the layers that the forward pass saved. The `values` of the last layer, gathered at
    `destinations` (None: all vertices), already are their gradient. All matrices are released.
    """
    state, num = progress.state, len(chain.plan.parts)

    def restore(checkpoint: StepCheckpoint) -> None:
        chain.restore(progress, destinations, checkpoint)
        restore_sums(checkpoint, sums.stage_sums)

    for i in reversed(range(num)):
        terms = sums.add_stage(chain.gatherings[i].parameters)
        if not progress.is_done(restore):
            layer = state.layers.pop()
            if not layer.needs_gradient:
                chain.release(layer)
                return
            last = destinations if i == num - 1 else None
            state.grads = _gather_backward(chain, i, layer, last, masks, terms, workers)
            progress.finish_half()
        terms = sums.add_stage(chain.plan.stages[i].parameters)
        if not progress.is_done(restore):
            before = state.layers[i - 1] if i else None
            _apply_backward(chain, i, before, state.grads, masks, terms, workers)
            for grad in state.grads:
                chain.memory.release(grad)
            state.grads = ()
            progress.finish_half()


def _apply_backward(
    chain: FullGraphForward,
    i: int,
    layer: GatherResult | None,
    grads: tuple[Array, ...],
    masks: DropoutKey,
    terms: ChunkSum,
    workers: Workers,
) -> None:
    """Propagate gradients from the outputs of stage i to its inputs in `layer` and to its parameters."""
    stage = chain.plan.stages[i]

    def work(start: int, stop: int) -> None:
        # Rows that the forward pass did not save are recomputed.
        computed = chain.pop_saved_result(stage, start)
        inputs, made = computed or chain.compute(stage, layer, start, stop, masks, requires_grad=True)
        output_gradients = [torch.from_numpy(grad[start:stop]) for grad in grads]
        chunk, save = start // chain.plan.chunk_rows, _save_callback(layer, start)
        terms.differentiate(chunk, made, output_gradients, inputs, save)

    chain.run_chunks(work, chain.num_vertices, workers)


def _save_callback(layer: GatherResult | None, start: int) -> Callable[[Array, Array], None] | None:
    """Return a callback that saves the data for a layer's backward pass, for the rows from `start` on."""
    return (
        None if layer is None or layer.save_for_backward is None else partial(layer.save_for_backward, start)
    )


def _gather_backward(
    chain: FullGraphForward,
    i: int,
    layer: GatherResult,
    at: DestinationSubset | None,
    masks: DropoutKey,
    terms: ChunkSum,
    workers: Workers,
) -> tuple[Array, ...]:
    """Compute the gradients of the messages of layer i, and release the layer's saved data."""
    parts, memory = chain.plan.parts[i], chain.memory
    accumulates = parts.scatter is None and layer.self_rows is not None
    gathering, saved = chain.gatherings[i], layer.saved
    fused_backward = chain.fused_backwards[i]
    released = () if fused_backward is None else fused_backward.releasable(saved)
    for matrix in released:
        memory.release(matrix)
    if accumulates:
        assert layer.self_rows is not None
        out: tuple[Array, ...] = (layer.self_rows,)
    else:
        shapes = ((chain.num_sources, width) for width in parts.message_widths)
        out = tuple(memory.take(shape, chain.plan.dtype) for shape in shapes)
    grad = layer.values
    over = GatherContext(workers, at, masks, accumulate=accumulates)
    with name_loops(f"layer {i + 1} back"):
        parameter_gradients = gathering.backward(layer.messages, saved, grad, out, over)
    terms.add(parameter_gradients)
    for matrix in (grad, *layer.messages, *saved[len(released) :]):
        memory.release(matrix)
    return out if accumulates or layer.self_rows is None else (layer.self_rows, *out)


@dataclass(slots=True)
class FullGraphStepTotals:
    """Results of a step, summed over its targets."""

    loss_sum: float
    counts: dict[str, float]
    gradients: list[torch.Tensor]
    """Gradient of each trainable parameter of the model."""


class FullGraphReplica:
    """Replica that computes a model and its gradients over all vertices of a graph.

    Rows between two gathers are computed in chunks, and recomputed in the backward pass, which costs less
    than storing them. Only the gathered rows of a layer are stored. The last layer is computed only at the
    targets.
    """

    def __init__(self, graph: FullGraph, forward: FullGraphForward) -> None:
        self.graph = graph
        self._chain = forward
        self.parameters = [
            parameter for parameter in forward.plan.model.parameters() if parameter.requires_grad
        ]
        self._targets: Array | None = None
        self._at: DestinationSubset | None = None

    @classmethod
    def build(
        cls,
        model: GNN,
        graph: FullGraph,
        inputs: InPlaceFeatures | SparseRows | torch.Tensor,
        *,
        memory_bytes: int,
        budget: HostMemoryBudget | None = None,
    ) -> FullGraphReplica:
        """Build the replica of a decomposable model over a graph. The model is never modified.

        `inputs` [V, f] are the features of all vertices. If all vertices are local, the cached gather of the
        first layer may use `memory_bytes` between steps. `budget` limits the host memory of the matrices
        (None: no limit).
        """
        gather_ops, topology = graph.gather_ops, graph.topology
        # Use the sizes of the whole graph, so that all processes exchange the same rows.
        plan = plan_full_graph(
            model,
            topology.num_vertices if gather_ops is None else gather_ops.num_vertices,
            topology.num_edges if gather_ops is None else gather_ops.num_edges,
            is_sparse=isinstance(inputs, SparseRows),
            memory_bytes=memory_bytes if gather_ops is None else gather_ops.cache_bytes,
            has_memory_limit=budget is not None and budget.limit_bytes is not None,
            is_distributed=gather_ops is not None,
        )
        return cls(graph, FullGraphForward(plan, graph, InputRows(inputs, plan.dtype), budget))

    @property
    def matrix_bytes(self) -> int:
        """Bytes of the replica's matrices in memory and in files, without the graph and the features."""
        return self._chain.memory.allocated_bytes

    @property
    def file_bytes(self) -> int:
        """Part of `matrix_bytes` that is in files."""
        return self._chain.memory.file_bytes

    def step(
        self,
        batch: MiniBatch,
        objective: Objective,
        workers: Workers,
        checkpointer: StepCheckpointer | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> FullGraphStepTotals:
        """Compute the loss and the gradients, summed over the targets of a full-graph mini-batch.

        Seed and step are taken from the blocks of `batch`. Without a `checkpointer`, no checkpoints are
        written. `devices` has further inputs that determine the bits of a step, as plain JSON values. Raises
        StepInterrupted, after saving the completed part, if the run must stop.
        """
        chain = self._chain
        masks = DropoutKey(batch.blocks[0].seed, batch.blocks[0].step)
        if self._targets is not batch.targets:
            self._targets = batch.targets
            self._at = DestinationSubset.from_vertices(batch.targets, self.graph.topology, transpose=True)
        sums = GradientSums()
        progress = self._progress(batch, sums, checkpointer, devices or {})
        chain.forward(self._at, masks, workers, save_for_backward=True, progress=progress)
        state, terms = progress.state, sums.add_stage(chain.plan.stages[-1].parameters)

        def restore(checkpoint: StepCheckpoint) -> None:
            chain.restore(progress, self._at, checkpoint)
            restore_sums(checkpoint, sums.stage_sums)

        if not progress.is_done(restore):
            last_layer = state.layers[-1]
            targets = chain.select_targets(last_layer, self._at, masks, workers)
            state.loss_totals = compute_loss(chain, targets, batch, objective, terms, workers)
            if self._at is not None and last_layer.self_rows is not None:
                assert targets.self_rows is not None
                last_layer.self_rows.fill(0)
                last_layer.self_rows[batch.targets] = targets.self_rows
            progress.finish_half()
        run_backward(chain, progress, self._at, masks, sums, workers)
        assert state.loss_totals is not None
        return FullGraphStepTotals(*state.loss_totals, sums.gradients(self.parameters))

    def _progress(
        self,
        batch: MiniBatch,
        sums: GradientSums,
        keeper: StepCheckpointer | None,
        devices: Mapping[str, Any],
    ) -> HostStepProgress:
        """Return the progress of a step, which resumes from a checkpoint if one matches."""
        plan, topology = self._chain.plan, self.graph.topology
        # A step whose activations are saved is too short for checkpoints to be useful.
        if keeper is None or plan.saves_activations or self.graph.is_distributed:
            return HostStepProgress()
        plan_values = {
            "model": repr(plan.model),
            "vertices": topology.num_vertices,
            "edges": topology.num_edges,
            "targets": len(batch.targets),
            "rows at a time": plan.chunk_rows,
            "memory for sums of the first layer": [plan.caches_first_gather, plan.reads_in_place],
            **devices,
        }
        checkpoint = keeper.take_resumed_step(batch.blocks[0].step)
        if checkpoint is not None and checkpoint.position.plan != plan_values:
            checkpoint = None
        keeper.start_step(plan_values, checkpoint)
        return HostStepProgress(plan_values, sums, keeper, checkpoint, num_halves=4 * len(plan.parts))

    def compute_scores(self, vertices: Array, workers: Workers) -> NDArray[np.float32]:
        """Compute the scores [n, C] of vertices [n], without dropout."""
        chain, at = (
            self._chain,
            DestinationSubset.from_vertices(vertices, self.graph.topology, transpose=False),
        )
        last = chain.forward(at, None, workers, save_for_backward=False)[-1]
        targets = chain.select_targets(last, at, None, workers)
        stage = chain.plan.stages[-1]
        out = np.empty((len(vertices), chain.plan.model.architecture.widths[-1]), np.float32)

        def work(start: int, stop: int) -> None:
            with torch.no_grad():
                inputs = chain.stage_inputs(stage, targets, start, stop, None, requires_grad=False)
                (result,) = stage(*inputs, vertices[start:stop], None)
                out[start:stop] = result.numpy()

        chain.run_chunks(work, len(vertices), workers)
        chain.release(last)
        return out
