"""A model that trains on a whole graph: exact sums over its targets, with few matrices of a row a vertex."""

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
    """What a step came to, as sums over its targets."""

    loss_sum: float
    counts: dict[str, float]
    gradients: list[torch.Tensor]
    """One for each of the model's parameters that takes a gradient."""


class FullGraphReplica:
    """Computes a model and its gradients over all vertices of a graph.

    Between gatherings, rows are computed in chunks: forward, and once more in the backward pass, which costs
    less than keeping what is in between. So the state of a layer is what it gathered, and no more. The last
    layer is computed for the targets alone.

    Parameters
    ----------
    graph
        The graph whose mini-batches it takes.
    chain
        The model over the graph.
    """

    def __init__(self, graph: WholeGraph, chain: Chain) -> None:
        self.graph = graph
        self._chain = chain
        self.parameters = [each for each in chain.plan.model.parameters() if each.requires_grad]
        """The model's parameters that take a gradient."""
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
        """A model over a graph.

        Parameters
        ----------
        model
            A model that `hyrt.fullgraph.plan.can_take_apart`; it is read, never written.
        graph
            All edges.
        inputs
            [V, f] the features of all vertices.
        memory_bytes
            How much may be kept between steps of what the first layer gathers, where all vertices are here.
        budget
            How much host memory the matrices may take, and where the others live; without limit by default.
        """
        others, topology = graph.gatherings, graph.topology
        # What travels between processes has to be the same for all of them.
        plan = plan_chain(
            model,
            topology.num_vertices if others is None else others.num_vertices,
            topology.num_edges if others is None else others.num_edges,
            is_sparse=isinstance(inputs, SparseRows),
            memory_bytes=memory_bytes if others is None else others.kept_bytes,
            limited=budget is not None and budget.limit_bytes is not None,
            travels=others is not None,
        )
        return cls(graph, Chain(plan, graph, InputRows(inputs, plan.dtype), budget))

    @property
    def kept_bytes(self) -> int:
        """Bytes of the matrices that it keeps, in memory and in files; graph and features not counted."""
        return self._chain.memory.allocated_bytes

    @property
    def file_bytes(self) -> int:
        """Of these, bytes that live in a file."""
        return self._chain.memory.file_bytes

    def step(
        self,
        batch: MiniBatch,
        objective: Objective,
        workers: Workers,
        keeper: StepKeeper | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> StepSums:
        """The loss and its gradients, summed over the targets of a mini-batch of the whole graph.

        Parameters
        ----------
        batch
            Its targets, labels and weights count, and the seed and step of its blocks.
        objective
            What is trained for.
        workers
            The team of threads that computes.
        keeper
            Keeps what is done of a long step; None keeps nothing.
        devices
            What else the bits of a step depend on; plain values that JSON holds.

        Raises
        ------
        StepStopped
            If the run is asked to stop; what is done is kept.
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
            last = state.layers[-1]
            of_targets = chain.at_targets(last, self._at, masks, workers)
            state.told = lose(chain, of_targets, batch, objective, terms, workers)
            if self._at is not None and last.own is not None:
                assert of_targets.own is not None
                last.own.fill(0)
                last.own[batch.targets] = of_targets.own
            progress.ended()
        turn_back(chain, progress, self._at, masks, sums, workers)
        assert state.told is not None
        return StepSums(*state.told, sums.gradients(self.parameters))

    def _progress(
        self, batch: MiniBatch, sums: GradientSums, keeper: StepKeeper | None, devices: Mapping[str, Any]
    ) -> ChainProgress:
        """Where a step begins."""
        plan, topology = self._chain.plan, self.graph.topology
        # What is computed of few rows is kept besides, for such a step is short.
        if keeper is None or plan.keeps_rows or self.graph.is_shared:
            return ChainProgress()
        told = {
            "model": repr(plan.model),
            "vertices": topology.num_vertices,
            "edges": topology.num_edges,
            "targets": len(batch.targets),
            "rows at a time": plan.chunk_rows,
            "memory for sums of the first layer": [plan.keeps_first, plan.reads_in_place],
            **devices,
        }
        kept = keeper.begun(batch.blocks[0].step)
        if kept is not None and kept.position.plan != told:
            kept = None
        keeper.begins(told, kept)
        return ChainProgress(told, sums, keeper, kept, num_halves=4 * len(plan.parts))

    def scores(self, vertices: Array, workers: Workers) -> NDArray[np.float32]:
        """[n, C] scores of [n] vertices, without dropout."""
        chain, at = self._chain, Destinations.of(vertices, self.graph.topology, turn=False)
        last = chain.forward(at, None, workers, keep=False)[-1]
        of_targets = chain.at_targets(last, at, None, workers)
        stage = chain.plan.stages[-1]
        out = np.empty((len(vertices), chain.plan.model.architecture.widths[-1]), np.float32)

        def work(start: int, stop: int) -> None:
            with torch.no_grad():
                inputs = chain.given(stage, of_targets, start, stop, None, leaves=False)
                (result,) = stage(*inputs, vertices[start:stop], None)
                out[start:stop] = result.numpy()

        chain.in_chunks(work, len(vertices), workers)
        chain.release(last)
        return out
