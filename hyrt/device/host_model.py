"""Models that run on the host: completely, or except for loops over edges, which devices run."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from hyrt.device import StepResult, check_parameters
from hyrt.errors import UnsupportedModelError
from hyrt.fullgraph.chunked_loops import ChunkedLoops, LoopMember
from hyrt.fullgraph.intervals import ChunkOptions
from hyrt.fullgraph.loop_device import HostLoops
from hyrt.fullgraph.matrix_pool import HostMemoryBudget
from hyrt.fullgraph.plan import CACHE_DIVISOR, is_decomposable
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.fullgraph.step_checkpoint import Array, StepCheckpoint, StepCheckpointer, StepPosition
from hyrt.nn.fused.loop_backend import use_loop_backend
from hyrt.nn.hetero.inputs import take_sparse_gradients
from hyrt.nn.model import num_torch_threads
from hyrt.nn.model_errors import explain_model_errors
from hyrt.nn.torch_threads import set_torch_threads
from hyrt.objective import Objective
from hyrt.objective.host_loss import compute_host_counts
from hyrt.objective.metrics import check_loss
from hyrt.objective.objective import OBJECTIVES
from hyrt.runtime.workers import Workers, use_workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import FullGraph, MiniBatch


def _writes(inputs: object) -> int | None:
    """Return a tensor's version counter, or None for other inputs, which user modules never receive."""
    return inputs._version if isinstance(inputs, torch.Tensor) else None


class HostModel:
    """Copy of a model that computes training steps on the host with the threads of `workers`.

    `keeper` saves the completed part of a long full-graph step; None disables this. `devices` contains
    further JSON values on which the bits of such a step depend.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Workers,
        budget: HostMemoryBudget,
        keeper: StepCheckpointer | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> None:
        self._keeper = keeper
        self._devices = devices
        self._workers = workers
        self._budget = budget
        self._torch_threads = num_torch_threads(model, workers.count)
        self._model = copy.deepcopy(model).train()
        self._whole: FullGraphReplica | None = None
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]

    @property
    def module(self) -> torch.nn.Module:
        return self._model

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        return self._parameters

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        check_parameters(parameters, [parameter.shape for parameter in self._parameters])
        with torch.no_grad():
            for mine, new in zip(self._parameters, parameters, strict=True):
                mine.copy_(new)

    @property
    def swapped_bytes(self) -> tuple[int, int]:
        """Return the bytes of the full-graph matrices, and how many bytes are in a file."""
        return (0, 0) if self._whole is None else (self._whole.matrix_bytes, self._whole.file_bytes)

    def register_gradient_hook(self, hook: Callable[[int, torch.Tensor], None]) -> None:
        """See `hyrt.device.capabilities.StreamsGradients`."""
        for number, parameter in enumerate(self._parameters):

            def report(parameter: torch.Tensor, number: int = number) -> None:
                assert parameter.grad is not None
                hook(number, parameter.grad)

            # torch calls this hook after it has accumulated a step's whole gradient of the parameter.
            parameter.register_post_accumulate_grad_hook(report)  # type: ignore[no-untyped-call]

    def scores(self, vertices: Ids) -> NDArray[np.float32] | None:
        """See `hyrt.device.capabilities.ScoresVertices`."""
        return None if self._whole is None else self._whole.compute_scores(vertices, self._workers)

    def step(self, batch: MiniBatch, objective: Objective) -> StepResult:
        """Compute the loss and gradients of a mini-batch or of a full graph."""
        is_shared = batch.full_graph is not None and batch.full_graph.is_distributed
        if not is_shared and not len(batch.targets):
            return StepResult.empty(batch.normalizer)
        started = time.perf_counter()
        # Set the thread count in every step, because torch stores part of it per thread and part per process.
        set_torch_threads(self._torch_threads)
        if batch.full_graph is not None and not objective.scores_pairs:
            replica = self._replica_of(batch, batch.full_graph)
            if replica is not None:
                return self._full_step(replica, batch, objective, started)
        with use_workers(self._workers):
            for parameter in self._parameters:
                parameter.grad = None
            writes = None if batch.full_graph is None else _writes(batch.inputs)
            with explain_model_errors(self._model):
                scores = self._model(batch.blocks, batch.inputs)
            if batch.full_graph is not None and _writes(batch.inputs) != writes:
                raise UnsupportedModelError(
                    f"{type(self._model).__name__} modifies its input in place, such as by add_, += or relu_"
                    ", and has changed the features of the graph, which are its input with --full-graph: "
                    "make a new tensor instead, and load the graph again"
                )
            if batch.target_rows is not None:
                scores = scores.index_select(0, torch.from_numpy(batch.target_rows))
            labels = torch.from_numpy(batch.labels)
            target_weights = batch.target_weights
            weights = None if target_weights is None else torch.from_numpy(target_weights)
            with OBJECTIVES.wrap_errors(objective.name, "loss_sum"):
                loss = check_loss(objective, objective.loss_sum(scores, labels, weights))
            with explain_model_errors(self._model):
                loss.backward()  # type: ignore[no-untyped-call]
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._parameters
        ]
        return StepResult(
            loss_sum=float(loss.detach()),
            counts=compute_host_counts(objective, scores.detach(), labels),
            normalizer=batch.normalizer,
            gradients=gradients,
            seconds={"propagate": time.perf_counter() - started},
            row_gradients=take_sparse_gradients(self._model),
        )

    def _replica_of(self, batch: MiniBatch, whole: FullGraph) -> FullGraphReplica | None:
        """Return the model's full-graph replica, or None if the model cannot be split into layers."""
        if self._whole is None or self._whole.graph is not whole:
            if not is_decomposable(self._model):
                return None
            max_bytes = psutil.virtual_memory().total // CACHE_DIVISOR
            self._whole = FullGraphReplica.build(
                self._model, whole, batch.inputs, memory_bytes=max_bytes, budget=self._budget
            )
        return self._whole

    def _full_step(
        self, replica: FullGraphReplica, batch: MiniBatch, objective: Objective, started: float
    ) -> StepResult:
        sums = replica.step(batch, objective, self._workers, self._keeper, self._devices)
        return StepResult(
            loss_sum=sums.loss_sum,
            counts=sums.counts,
            normalizer=batch.normalizer,
            gradients=sums.gradients,
            seconds={"propagate": time.perf_counter() - started},
        )


class HostSaga:
    """Model whose training steps run vertex operations on the host and loops over edges on devices.

    `hyrt.nn.model_checks.check_loops` must accept the model. `members` run the loops, in proportion to the
    speeds in `shares` (in any unit), and `workers` run the vertex operations. `keeper` saves the completed
    part of a long full-graph step; None disables this.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Workers,
        members: Sequence[LoopMember],
        options: ChunkOptions,
        budget: HostMemoryBudget,
        shares: Sequence[float] = (1.0,),
        keeper: StepCheckpointer | None = None,
    ) -> None:
        self._workers = workers
        self._loops = ChunkedLoops(members, options, budget, shares)
        checkpoint_facts = {
            "devices": ["cpu" if isinstance(each, HostLoops) else each.name for each in members],
            "shares": list(shares),
            "order": options.order,
            "chunks": options.num,
        }
        cut = None if keeper is None else _CutCheckpoint(keeper, self._loops)
        self._model = HostModel(model, workers, budget, cut, checkpoint_facts)

    @property
    def num(self) -> int | None:
        """Return the number of vertex intervals, or None before the first full-graph step."""
        return self._loops.num

    @property
    def parameters(self) -> list[torch.Tensor]:
        """Return copies of the current weights."""
        return [each.detach().clone() for each in self._model.parameters]

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        self._model.update(parameters)

    def step(self, batch: MiniBatch, objective: Objective) -> StepResult:
        """Compute the loss and gradients of a mini-batch or of a full graph."""
        self._loops.reset_stats()
        with use_loop_backend(self._loops):
            result = self._model.step(batch, objective)
        if batch.full_graph is None:
            return result
        return replace(result, chunks=self._loops.step_stats(*self._model.swapped_bytes))

    def release(self) -> None:
        self._loops.release()

    def close(self) -> None:
        """Free all memory and end the threads."""
        self._loops.release()
        self._workers.close()


@dataclass(frozen=True, slots=True)
class _CutCheckpoint:
    """`StepCheckpointer` that also saves the number of loop intervals, on which the bits of a step depend."""

    keeper: StepCheckpointer
    loops: ChunkedLoops

    @property
    def is_due(self) -> bool:
        return self.keeper.is_due

    @property
    def should_stop(self) -> bool:
        return self.keeper.should_stop

    def save(self, position: StepPosition, matrices: Mapping[str, Array]) -> None:
        rest = {**position.extra, "least intervals": self.loops.min_intervals}
        self.keeper.save(replace(position, extra=rest), matrices)

    def take_resumed_step(self, step: int) -> StepCheckpoint | None:
        checkpoint = self.keeper.take_resumed_step(step)
        if checkpoint is not None:
            self.loops.raise_min_intervals(int(checkpoint.position.extra.get("least intervals", 1)))
        return checkpoint

    def start_step(self, plan: Mapping[str, Any], checkpoint: StepCheckpoint | None) -> None:
        self.keeper.start_step(plan, checkpoint)

    def report_progress(self) -> None:
        self.keeper.report_progress()
