"""A model whose vertices are computed on the host's cores, by torch and the compiled operators of hyrt."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from hyrt.device import StepResult, check_parameters
from hyrt.errors import UnsupportedModel
from hyrt.fullgraph.host_budget import HostBudget
from hyrt.fullgraph.plan import KEPT_PART, can_take_apart
from hyrt.fullgraph.replica import FullGraphReplica
from hyrt.fullgraph.unfinished.step_keeper import StepKeeper
from hyrt.machine.workers import Workers, working
from hyrt.nn.model import torch_threads_for
from hyrt.nn.own_modules.model_errors import model_errors_named
from hyrt.nn.torch_threads import set_torch_threads
from hyrt.nn.typed.learned.learned_rows import take_row_gradients
from hyrt.objective import Objective
from hyrt.objective.on_host import count_on_host
from hyrt.objective.registry import OBJECTIVES
from hyrt.objective.returned import check_loss
from hyrt.sampling.block import Ids
from hyrt.sampling.full.whole_graph import WholeGraph
from hyrt.sampling.minibatch import MiniBatch


def _writes(inputs: object) -> int | None:
    """How often a tensor was written to; None of other inputs, which no module of the user's is given."""
    return inputs._version if isinstance(inputs, torch.Tensor) else None


class HostModel:
    """A copy of a model, and its steps.

    Parameters
    ----------
    model
        The model to copy.
    workers
        The team of threads that computes.
    budget
        How much host memory the matrices of a whole graph may take.
    keeper
        Keeps what is done of a long step over a whole graph; None keeps nothing.
    devices
        What else the bits of such a step depend on; plain values that JSON holds.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        workers: Workers,
        budget: HostBudget,
        keeper: StepKeeper | None = None,
        devices: Mapping[str, Any] | None = None,
    ) -> None:
        self._keeper = keeper
        self._devices = devices
        self._workers = workers
        self._budget = budget
        self._torch_threads = torch_threads_for(model, workers.count)
        self._model = copy.deepcopy(model).train()
        self._whole: FullGraphReplica | None = None
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]

    @property
    def module(self) -> torch.nn.Module:
        """The copy."""
        return self._model

    @property
    def parameters(self) -> Sequence[torch.nn.Parameter]:
        """Those of the copy that are trained."""
        return self._parameters

    def update(self, parameters: Sequence[torch.Tensor]) -> None:
        """Take new weights."""
        check_parameters(parameters, [parameter.shape for parameter in self._parameters])
        with torch.no_grad():
            for mine, new in zip(self._parameters, parameters, strict=True):
                mine.copy_(new)

    @property
    def swapped_bytes(self) -> tuple[int, int]:
        """Bytes of the matrices of a whole graph, and of these what lives in a file."""
        return (0, 0) if self._whole is None else (self._whole.kept_bytes, self._whole.file_bytes)

    def tell_gradients(self, hear: Callable[[int, torch.Tensor], None]) -> None:
        """See `hyrt.device.capabilities.TellsGradients`."""
        for number, parameter in enumerate(self._parameters):

            def told(parameter: torch.Tensor, number: int = number) -> None:
                assert parameter.grad is not None
                hear(number, parameter.grad)

            # After all that a step adds to it: torch adds it up before.
            parameter.register_post_accumulate_grad_hook(told)  # type: ignore[no-untyped-call]

    def scores(self, vertices: Ids) -> NDArray[np.float32] | None:
        """See `hyrt.device.capabilities.ScoresVertices`."""
        return None if self._whole is None else self._whole.scores(vertices, self._workers)

    def step(self, batch: MiniBatch, objective: Objective) -> StepResult:
        """Loss and gradients of a mini-batch, or of a whole graph."""
        is_shared = batch.whole is not None and batch.whole.is_shared
        if not is_shared and not len(batch.targets):
            return StepResult.empty(batch.normalizer)
        started = time.perf_counter()
        # Each time: torch keeps the count partly by thread and partly for the process.
        set_torch_threads(self._torch_threads)
        if batch.whole is not None and not objective.scores_pairs:
            replica = self._replica_of(batch, batch.whole)
            if replica is not None:
                return self._full_step(replica, batch, objective, started)
        with working(self._workers):
            for parameter in self._parameters:
                parameter.grad = None
            writes = None if batch.whole is None else _writes(batch.inputs)
            with model_errors_named(self._model):
                scores = self._model(batch.blocks, batch.inputs)
            if batch.whole is not None and _writes(batch.inputs) != writes:
                raise UnsupportedModel(
                    f"{type(self._model).__name__} writes to its input by an operation in place, such as "
                    "add_, += or relu_; with --full-graph, the input is the graph's own features, which "
                    "have now changed: make a new tensor instead, and load the graph again"
                )
            if batch.target_rows is not None:
                scores = scores.index_select(0, torch.from_numpy(batch.target_rows))
            labels = torch.from_numpy(batch.labels)
            given = batch.target_weights
            weights = None if given is None else torch.from_numpy(given)
            with OBJECTIVES.blamed(objective.name, "loss_sum"):
                loss = check_loss(objective, objective.loss_sum(scores, labels, weights))
            with model_errors_named(self._model):
                loss.backward()  # type: ignore[no-untyped-call]
        gradients = [
            torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for parameter in self._parameters
        ]
        return StepResult(
            loss_sum=float(loss.detach()),
            counts=count_on_host(objective, scores.detach(), labels),
            normalizer=batch.normalizer,
            gradients=gradients,
            seconds={"propagate": time.perf_counter() - started},
            row_gradients=take_row_gradients(self._model),
        )

    def _replica_of(self, batch: MiniBatch, whole: WholeGraph) -> FullGraphReplica | None:
        """The model over the whole graph; None where it cannot be taken apart."""
        if self._whole is None or self._whole.graph is not whole:
            if not can_take_apart(self._model):
                return None
            most = psutil.virtual_memory().total // KEPT_PART
            self._whole = FullGraphReplica.of(
                self._model, whole, batch.inputs, memory_bytes=most, budget=self._budget
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
