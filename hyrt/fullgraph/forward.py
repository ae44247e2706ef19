"""Forward pass over a full graph."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.destinations import Destinations, GatheringPass
from hyrt.fullgraph.gathering import Gathered, Gathering, MeetsGradient, gathering_of
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.plan import ChainPlan
from hyrt.fullgraph.recycled_matrices import RecycledMatrices
from hyrt.fullgraph.row_stage import Masks, Rows, RowStage, dropped_features
from hyrt.fullgraph.unfinished.chain_progress import ChainProgress, KeptArrays
from hyrt.fullgraph.unfinished.step_keeper import KeptStep
from hyrt.machine.buffer_pool import BufferPool
from hyrt.machine.workers import Chunk, Workers, working
from hyrt.nn.fused.loop_runner import loops_named
from hyrt.nn.operators.sparse import SparseRows
from hyrt.sampling.full.whole_graph import WholeGraph

Array = NDArray[Any]

COLUMNS = 32
"""Number of feature columns that are copied from a file at a time."""


Computed = tuple[tuple[torch.Tensor | None, Rows | None], tuple[torch.Tensor, ...]]
"""Inputs and outputs of a stage for a range of rows."""


class Chain:
    """Matrices of a model over a full graph, and its forward pass.

    Parameters
    ----------
    plan
        How the model is computed.
    graph
        All edges; in a distributed run, the edges into the local vertices.
    features
        The features of the local vertices.
    budget
        Host memory limit of the matrices; no limit by default.
    """

    def __init__(
        self, plan: ChainPlan, graph: WholeGraph, features: InputRows, budget: HostBudget | None = None
    ) -> None:
        self.plan = plan
        self.num_vertices = len(graph.rows)
        """Number of vertices that are computed."""
        self.num_sources = graph.topology.num_vertices
        """Number of message rows: local and remote vertices."""
        self.memory = RecycledMatrices(budget)
        self.features = features
        self.gatherings: list[Gathering] = [
            gathering_of(parts.gather, graph.topology, plan.dtype, layer)
            if graph.gatherings is None
            else graph.gatherings.gathering(parts.gather, plan.dtype, layer)
            for layer, parts in enumerate(plan.parts, 1)
        ]
        # isinstance() of a runtime protocol is slow: check once.
        self.meeting = [each if isinstance(each, MeetsGradient) else None for each in self.gatherings]
        self.vertices = graph.vertices
        """[n] vertex ids, which key the dropout masks."""
        # Operators inside a chunk run in the thread that computes the chunk.
        self._alone = Workers(1, "chunk", pool=BufferPool())
        self._first: Array | None = None
        self._computed: dict[tuple[int, int], Computed] = {}
        """Saved results, by stage index and first row."""

    def in_chunks(self, work: Chunk, count: int, workers: Workers) -> None:
        """Call `work(start, stop)` for chunks of `count` rows, each computed by one thread.

        A single chunk is computed by the whole team, operator by operator.
        """
        if count <= self.plan.chunk_rows:
            with working(workers):
                work(0, count)
            return

        @functools.wraps(work)  # Traces label parallel work with the function's name.
        def alone(start: int, stop: int) -> None:
            with working(self._alone):
                work(start, stop)

        workers.run(alone, count, self.plan.chunk_rows)

    def given(
        self,
        stage: RowStage,
        layer: Gathered | None,
        start: int,
        stop: int,
        masks: Masks | None,
        *,
        leaves: bool,
    ) -> tuple[torch.Tensor | None, Rows | None]:
        """Return the inputs of a stage for a range of vertices, as views of the matrices.

        If `leaves` is set, tensors whose gradient is needed require gradients.
        """
        rows: Rows | None = None
        if layer is not None and layer.own is not None:
            rows = torch.from_numpy(layer.own[start:stop]).requires_grad_(leaves)
        elif layer is None or stage.reads_own:
            # These are the features: only the stages before and after the first gather get here.
            vertices = self.vertices[start:stop]
            rows = dropped_features(stage.model, self.features.part(start, stop), vertices, masks)
        if layer is None:
            return None, rows
        gathered = torch.from_numpy(layer.values[start:stop])
        return gathered.requires_grad_(leaves and layer.takes_gradient), rows

    def forward(
        self,
        at: Destinations | None,
        masks: Masks | None,
        workers: Workers,
        *,
        keep: bool,
        progress: ChainProgress | None = None,
    ) -> list[Gathered]:
        """Run the gathers and stages up to the last gather, which is limited to `at`.

        Parameters
        ----------
        at
            The vertices whose scores are needed; None for all.
        masks
            The key of the step's dropout masks; None disables dropout.
        workers
            The worker team.
        keep
            Whether a backward pass follows.
        progress
            The progress of the step, from which it resumes; by default it starts at the beginning.

        Returns
        -------
        The layers. If `keep` is false, only the last one is valid.
        """
        plan, progress = self.plan, ChainProgress() if progress is None else progress
        state, restore = progress.state, functools.partial(self.restore, progress, at)
        self._computed.clear()
        for i in range(len(plan.parts)):
            is_last = i == len(plan.parts) - 1
            if not progress.is_over(restore):
                if i == 0:
                    state.messages = self._first_messages(masks, workers, keep=keep)
                where = at if is_last else None
                layer = self._gather(i, state.messages, state.own, where, masks, workers, keep=keep)
                state.layers.append(layer)
                state.messages, state.own = (), None
                progress.ended()
            if is_last:
                break
            if not progress.is_over(restore):
                stage, layer = plan.stages[i + 1], state.layers[i]
                made = self._apply(stage, layer, masks, workers, keep=keep)
                state.own, state.messages = self._sorted(stage, made)
                if not keep:
                    self.release(layer)
                progress.ended()
        return state.layers

    def restore(self, progress: ChainProgress, at: Destinations | None, kept: KeptStep) -> None:
        """Restore the state of a step from a checkpoint; `at` are the destinations of its last layer."""
        arrays, state = KeptArrays.read(kept, self.memory.take), progress.state
        last = len(self.plan.parts) - 1
        for i, (values, takes_gradient, messages, others, own) in enumerate(arrays.layers):
            if i == 0 and self.plan.keeps_first and not (i == last and at is not None):
                self._first = values
            layer = Gathered(values, takes_gradient, messages, others, own=own)
            self._let_meet(i, layer, at if i == last else None)
            state.layers.append(layer)
        state.messages, state.own, state.grads = arrays.messages, arrays.own, arrays.grads
        state.told = arrays.told

    def at_targets(
        self, layer: Gathered, at: Destinations | None, masks: Masks | None, workers: Workers
    ) -> Gathered:
        """Return the inputs of the last stage: gathered rows and the layer's input rows at the targets."""
        own, stage = layer.own, self.plan.stages[-1]
        vertices = np.arange(self.num_vertices) if at is None else at.vertices
        if own is not None:
            own = own if at is None else own[vertices]
        elif stage.reads_own:
            rows = self.features.rows(vertices, workers)
            rows = dropped_features(stage.model, rows, self.vertices[vertices], masks)
            own = (rows.dense() if isinstance(rows, SparseRows) else rows).to(self.plan.torch_dtype).numpy()
        return Gathered(layer.values, layer.takes_gradient, meet=layer.meet, own=own)

    def release(self, layer: Gathered) -> None:
        """Release the matrices of a layer to the pool."""
        for matrix in (layer.values, *layer.messages, *layer.kept, layer.own):
            if matrix is not None and matrix is not self._first:
                self.memory.give(matrix)

    def _sorted(self, stage: RowStage, made: tuple[Array, ...]) -> tuple[Array | None, tuple[Array, ...]]:
        """Split the outputs of a stage into rows for the stage after the next gather, and messages."""
        assert stage.after is not None
        if not stage.carries_rows:
            return None, made
        return made[0], made if stage.after.scatter is None else made[1:]

    def _first_messages(self, masks: Masks | None, workers: Workers, *, keep: bool) -> tuple[Array, ...]:
        if self.plan.keeps_first:
            return ()
        if self.plan.reads_in_place:
            return (self.features.matrix(),)
        return self._apply(self.plan.stages[0], None, masks, workers, keep=keep)

    def _gather(
        self,
        i: int,
        messages: tuple[Array, ...],
        own: Array | None,
        at: Destinations | None,
        masks: Masks | None,
        workers: Workers,
        *,
        keep: bool,
    ) -> Gathered:
        plan, gathering = self.plan, self.gatherings[i]
        if i == 0 and plan.keeps_first:
            values = self._gather_first(workers)
            if at is not None:
                every = values
                values = self.memory.take((len(at.vertices), every.shape[1]), plan.dtype)
                np.take(every, at.vertices, 0, out=values, mode="clip")
            return Gathered(values, takes_gradient=False)
        height = self.num_vertices if at is None else len(at.vertices)
        values = self.memory.take((height, plan.parts[i].gathered_width), plan.dtype)
        in_place = i == 0 and plan.reads_in_place
        mine = not in_place and all(message is not own for message in messages)
        memory = self.memory if keep else None
        over = GatheringPass(workers, at, masks, memory, overwrite=mine)
        with loops_named(f"layer {i + 1}"):
            kept = gathering.forward(messages, values, over)
        takes_gradient = i > 0 or bool(plan.stages[0].parameters)
        if in_place:
            messages = ()
        elif not (keep and takes_gradient and gathering.reads_messages_back):
            for message in messages:
                if message is not own:
                    self.memory.give(message)
            messages = ()
        layer = Gathered(values, takes_gradient, messages, kept, own=own)
        self._let_meet(i, layer, at)
        return layer

    def _let_meet(self, i: int, layer: Gathered, at: Destinations | None) -> None:
        meeting = self.meeting[i]
        if layer.kept and layer.takes_gradient and meeting is not None:
            layer.meet = functools.partial(meeting.meet, layer.messages, layer.kept, at)

    def _gather_first(self, workers: Workers) -> Array:
        """Return [V, f] gathered features of the first layer, which are computed once and cached."""
        if self._first is None:
            width = self.plan.parts[0].gathered_width
            first = self.memory.take((self.num_vertices, width), self.plan.dtype)
            gathering, features = self.gatherings[0], self.features
            with loops_named("layer 1"):
                if features.is_mapped:
                    # Copy some columns at a time, so that memory never holds the whole matrix or a copy of
                    # it.
                    some = self.memory.take((self.num_vertices, min(width, COLUMNS)), self.plan.dtype)
                    for at in range(0, width, some.shape[1]):
                        features.columns(at, some, workers)
                        part = first[:, at : at + some.shape[1]]
                        columns = some[:, : part.shape[1]]
                        gathering.forward((columns,), part, GatheringPass(workers, overwrite=True))
                    self.memory.give(some)
                else:
                    gathering.forward((features.matrix(),), first, GatheringPass(workers))
            self._first = first
        return self._first

    def compute(
        self,
        stage: RowStage,
        layer: Gathered | None,
        start: int,
        stop: int,
        masks: Masks | None,
        *,
        leaves: bool,
    ) -> Computed:
        """Run a stage on a range of rows; the outputs can be differentiated if `leaves` is set."""
        with torch.set_grad_enabled(leaves):
            inputs = self.given(stage, layer, start, stop, masks, leaves=leaves)
            return inputs, stage(*inputs, self.vertices[start:stop], masks)

    def computed(self, stage: RowStage, start: int) -> Computed | None:
        """Remove and return the saved result of the rows from `start` on; None if it was not saved."""
        return self._computed.pop((stage.index, start), None)

    def _apply(
        self, stage: RowStage, layer: Gathered | None, masks: Masks | None, workers: Workers, *, keep: bool
    ) -> tuple[Array, ...]:
        """Run a stage on all rows and return its output matrices."""
        made = tuple(self.memory.take((self.num_sources, width), self.plan.dtype) for width in stage.widths)
        keeps = keep and self.plan.keeps_rows

        def work(start: int, stop: int) -> None:
            computed = self.compute(stage, layer, start, stop, masks, leaves=keeps)
            if keeps:
                self._computed[stage.index, start] = computed
            for matrix, result in zip(made, computed[1], strict=True):
                matrix[start:stop] = result.detach().numpy()

        self.in_chunks(work, self.num_vertices, workers)
        return made
