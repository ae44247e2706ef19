"""Model replica for full-graph training on the host, with exact sums over the targets and few [V, width]
matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hyrt.fullgraph.backward import lose, turn_back
from hyrt.fullgraph.destinations import Destinations
from hyrt.fullgraph.forward import Chain
from hyrt.fullgraph.gradient_sums import GradientSums
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.input_rows import InputRows
from hyrt.fullgraph.plan import plan_chain
from hyrt.fullgraph.row_stage import Masks
from hyrt.fullgraph.unfinished.chain_progress import ChainProgress, restore_sums
from hyrt.fullgraph.unfinished.step_keeper import KeptStep, StepKeeper
from hyrt.machine.workers import Workers
from hyrt.nn.inputs import InPlace
from hyrt.nn.model import GNN
from hyrt.nn.operators.sparse import SparseRows
from hyrt.objective import Objective
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch

Array = NDArray[Any]


@dataclass(slots=True)
class StepSums:
    """Result of a step, as sums over its targets."""

    loss_sum: float
    counts: dict[str, float]
    gradients: list[torch.Tensor]
    """One gradient per trainable parameter of the model."""


class FullGraphReplica:
    """Computes a model and its gradients over all vertices of a graph.

    Rows between two gathers are computed in chunks, and recomputed in the backward pass, which costs less
    than storing them. Only the gathered rows of a layer are stored. The last layer is computed only at the
    targets.

    Parameters
    ----------
    graph
        The graph of the mini-batches.
    chain
        The model over the graph.
    """

    def __init__(self, graph: WholeGraph, chain: Chain) -> None:
        self.graph = graph
        self._chain = chain
        self.parameters = [
            parameter for parameter in chain.plan.model.parameters() if parameter.requires_grad
        ]
        """The trainable parameters of the model."""
        self._targets: Array | None = None
        self._at: Destinations | None = None

    @classmethod
    def of(
        cls,
        model: GNN,
        graph: WholeGraph,
        inputs: InPlace | SparseRows | torch.Tensor,
        *,
        memory_bytes: int,
        budget: HostBudget | None = None,
    ) -> FullGraphReplica:
        """Build the replica of a model over a graph.

        Parameters
        ----------
        model
            A model that `hyrt.fullgraph.plan.can_take_apart`; it is never written.
        graph
            All edges.
        inputs
            [V, f] the features of all vertices.
        memory_bytes
            Memory that the cached gather of the first layer may take between steps, if all vertices are
            local.
        budget
            Host memory limit of the matrices; no limit by default.
        """
        gather_ops, topology = graph.gatherings, graph.topology
        # All processes must exchange the same rows.
        plan = plan_chain(
            model,
            topology.num_vertices if gather_ops is None else gather_ops.num_vertices,
            topology.num_edges if gather_ops is None else gather_ops.num_edges,
            is_sparse=isinstance(inputs, SparseRows),
            memory_bytes=memory_bytes if gather_ops is None else gather_ops.kept_bytes,
            limited=budget is not None and budget.limit_bytes is not None,
            travels=gather_ops is not None,
        )
        return cls(graph, Chain(plan, graph, InputRows(inputs, plan.dtype), budget))

    @property
    def kept_bytes(self) -> int:
        """Return the bytes of the replica's matrices, in memory and in files, without graph and features."""
        return self._chain.memory.allocated_bytes

    @property
    def file_bytes(self) -> int:
        """Return how many of these bytes are in files."""
        return self._chain.memory.file_bytes

    def step(
        self,
        batch: MiniBatch,
        objective: Objective,
        workers: Workers,
        keeper: StepKeeper | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> StepSums:
        """Compute the loss and its gradients, summed over the targets of a full-graph mini-batch.

        Parameters
        ----------
        batch
            The targets, labels and weights; seed and step are taken from its blocks.
        objective
            The training goal.
        workers
            The worker team.
        keeper
            Writes mid-step checkpoints; None disables them.
        devices
            Further inputs that determine the bits of a step, as plain JSON values.

        Raises
        ------
        StepStopped
            If the run is asked to stop; the completed part is saved.
        """
        chain = self._chain
        masks = Masks(batch.blocks[0].seed, batch.blocks[0].step)
        if self._targets is not batch.targets:
            self._targets = batch.targets
            self._at = Destinations.of(batch.targets, self.graph.topology, turn=True)
        sums = GradientSums()
        progress = self._progress(batch, sums, keeper, devices or {})
        chain.forward(self._at, masks, workers, keep=True, progress=progress)
        state, terms = progress.state, sums.of(chain.plan.stages[-1].parameters)

        def restore(kept: KeptStep) -> None:
            chain.restore(progress, self._at, kept)
            restore_sums(kept, sums.each)

        if not progress.is_over(restore):
            last_layer = state.layers[-1]
            targets = chain.at_targets(last_layer, self._at, masks, workers)
            state.told = lose(chain, targets, batch, objective, terms, workers)
            if self._at is not None and last_layer.own is not None:
                assert targets.own is not None
                last_layer.own.fill(0)
                last_layer.own[batch.targets] = targets.own
            progress.ended()
        turn_back(chain, progress, self._at, masks, sums, workers)
        assert state.told is not None
        return StepSums(*state.told, sums.gradients(self.parameters))

    def _progress(
        self, batch: MiniBatch, sums: GradientSums, keeper: StepKeeper | None, devices: Mapping[str, Any]
    ) -> ChainProgress:
        """Return the progress of a step, resumed from a checkpoint if one matches."""
        plan, topology = self._chain.plan, self.graph.topology
        # If activations are saved, a step is too short to be worth checkpoints.
        if keeper is None or plan.keeps_rows or self.graph.is_shared:
            return ChainProgress()
        plan_values = {
            "model": repr(plan.model),
            "vertices": topology.num_vertices,
            "edges": topology.num_edges,
            "targets": len(batch.targets),
            "rows at a time": plan.chunk_rows,
            "memory for sums of the first layer": [plan.keeps_first, plan.reads_in_place],
            **devices,
        }
        checkpoint = keeper.begun(batch.blocks[0].step)
        if checkpoint is not None and checkpoint.position.plan != plan_values:
            checkpoint = None
        keeper.begins(plan_values, checkpoint)
        return ChainProgress(plan_values, sums, keeper, checkpoint, num_halves=4 * len(plan.parts))

    def scores(self, vertices: Array, workers: Workers) -> NDArray[np.float32]:
        """Compute [n, C] scores of [n] vertices, without dropout."""
        chain, at = self._chain, Destinations.of(vertices, self.graph.topology, turn=False)
        last = chain.forward(at, None, workers, keep=False)[-1]
        targets = chain.at_targets(last, at, None, workers)
        stage = chain.plan.stages[-1]
        out = np.empty((len(vertices), chain.plan.model.architecture.widths[-1]), np.float32)

        def work(start: int, stop: int) -> None:
            with torch.no_grad():
                inputs = chain.given(stage, targets, start, stop, None, leaves=False)
                (result,) = stage(*inputs, vertices[start:stop], None)
                out[start:stop] = result.numpy()

        chain.in_chunks(work, len(vertices), workers)
        chain.release(last)
        return out
