"""Backward pass over a full graph, from the loss to the gradients of all parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from numpy.typing import NDArray

from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.forward import Chain
from hyrt.fullgraph.gathering import Gathered
from hyrt.fullgraph.gradient_sums import ChunkSum, GradientSums
from hyrt.fullgraph.row_stage import Masks
from hyrt.fullgraph.unfinished.chain_progress import ChainProgress, restore_sums
from hyrt.fullgraph.unfinished.step_keeper import KeptStep
from hyrt.machine.workers import Workers
from hyrt.nn.fused.loop_runner import loops_named
from hyrt.objective import Objective
from hyrt.objective.objective import added
from hyrt.objective.on_host import count_on_host
from hyrt.objective.registry import OBJECTIVES
from hyrt.objective.returned import check_loss
from hyrt.sampling.minibatch import MiniBatch

Array = NDArray[Any]


def lose(
    chain: Chain,
    layer: Gathered,
    batch: MiniBatch,
    objective: Objective,
    terms: ChunkSum,
    workers: Workers,
) -> tuple[float, dict[str, float]]:
    """Return the loss over the targets of a mini-batch, and the counts for its metrics.

    Each chunk of targets goes from its gathered rows to scores, to the loss and back. The full score matrix
    is never stored.

    Parameters
    ----------
    chain
        The model over the graph.
    layer
        The gathered rows of the targets in the last layer, and the input rows of that layer; overwritten with
        their gradients.
    batch
        The targets with labels and weights.
    objective
        The training goal.
    terms
        Accumulates the gradients of the parameters of the last stage.
    workers
        The worker team.
    """
    stage = chain.plan.stages[-1]
    labels, target_weights = torch.from_numpy(batch.labels), batch.target_weights
    weights = None if target_weights is None else torch.from_numpy(target_weights)
    num, rows = len(batch.targets), chain.plan.chunk_rows
    if not num:
        # Other processes have all targets.
        return 0.0, {}
    losses = [0.0] * -(-num // rows)
    counts: list[dict[str, float]] = [{}] * len(losses)

    def work(start: int, stop: int) -> None:
        with torch.enable_grad():
            inputs = chain.given(stage, layer, start, stop, None, leaves=True)
            (scores,) = stage(*inputs, batch.targets[start:stop], None)
            part = None if weights is None else weights[start:stop]
            with OBJECTIVES.blamed(objective.name, "loss_sum"):
                loss = check_loss(objective, objective.loss_sum(scores, labels[start:stop], part))
        chunk = start // rows
        losses[chunk] = float(loss.detach())
        counts[chunk] = count_on_host(objective, scores.detach(), labels[start:stop])
        terms.differentiate(chunk, (loss,), None, inputs, _save_callback(layer, start))

    chain.in_chunks(work, num, workers)
    return sum(losses), added(counts)


def turn_back(
    chain: Chain,
    progress: ChainProgress,
    at: Destinations | None,
    masks: Masks,
    sums: GradientSums,
    workers: Workers,
) -> None:
    """Propagate gradients from the last layer to the first.

    Parameters
    ----------
    chain
        The model over the graph.
    progress
        Holds the layers that the forward pass saved; `values` of the last layer are its gradient. All
        matrices are released.
    at
        The vertices at which the last layer was gathered; None for all.
    masks
        The key of the step's dropout masks.
    sums
        Accumulates the gradients of the parameters.
    workers
        The worker team.
    """
    state, num = progress.state, len(chain.plan.parts)

    def restore(kept: KeptStep) -> None:
        chain.restore(progress, at, kept)
        restore_sums(kept, sums.each)

    for i in reversed(range(num)):
        terms = sums.of(chain.gatherings[i].parameters)
        if not progress.is_over(restore):
            layer = state.layers.pop()
            if not layer.takes_gradient:
                chain.release(layer)
                return
            last = at if i == num - 1 else None
            state.grads = _gather_backward(chain, i, layer, last, masks, terms, workers)
            progress.ended()
        terms = sums.of(chain.plan.stages[i].parameters)
        if not progress.is_over(restore):
            before = state.layers[i - 1] if i else None
            _apply_backward(chain, i, before, state.grads, masks, terms, workers)
            for grad in state.grads:
                chain.memory.give(grad)
            state.grads = ()
            progress.ended()


def _apply_backward(
    chain: Chain,
    i: int,
    layer: Gathered | None,
    grads: tuple[Array, ...],
    masks: Masks,
    terms: ChunkSum,
    workers: Workers,
) -> None:
    """Propagate gradients from the output of stage i to its inputs from `layer`, and to its parameters."""
    stage = chain.plan.stages[i]

    def work(start: int, stop: int) -> None:
        # Recompute rows that the forward pass did not save.
        computed = chain.computed(stage, start)
        inputs, made = computed or chain.compute(stage, layer, start, stop, masks, leaves=True)
        output_gradients = [torch.from_numpy(grad[start:stop]) for grad in grads]
        chunk, save = start // chain.plan.chunk_rows, _save_callback(layer, start)
        terms.differentiate(chunk, made, output_gradients, inputs, save)

    chain.in_chunks(work, chain.num_vertices, workers)


def _save_callback(layer: Gathered | None, start: int) -> Callable[[Array, Array], None] | None:
    """Return the callback of a layer that saves what its backward pass needs of the rows from `start` on."""
    return None if layer is None or layer.meet is None else partial(layer.meet, start)


def _gather_backward(
    chain: Chain,
    i: int,
    layer: Gathered,
    at: Destinations | None,
    masks: Masks,
    terms: ChunkSum,
    workers: Workers,
) -> tuple[Array, ...]:
    """Return the gradients of the messages of layer i, and release what the layer saved."""
    parts, memory = chain.plan.parts[i], chain.memory
    accumulates = parts.scatter is None and layer.own is not None
    gathering, kept = chain.gatherings[i], layer.kept
    meeting = chain.meeting[i]
    released = () if meeting is None else meeting.unread(kept)
    for matrix in released:
        memory.give(matrix)
    if accumulates:
        assert layer.own is not None
        out: tuple[Array, ...] = (layer.own,)
    else:
        shapes = ((chain.num_sources, width) for width in parts.message_widths)
        out = tuple(memory.take(shape, chain.plan.dtype) for shape in shapes)
    grad = layer.values
    over = GatheringPass(workers, at, masks, accumulate=accumulates)
    with loops_named(f"layer {i + 1} back"):
        parameter_gradients = gathering.backward(layer.messages, kept, grad, out, over)
    terms.add(parameter_gradients)
    for matrix in (grad, *layer.messages, *kept[len(released) :]):
        memory.give(matrix)
    return out if accumulates or layer.own is None else (layer.own, *out)
