"""Synchronizer, which takes one exact optimizer step from the gradient sums of all trainers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Protocol

import torch

from hyrt.device import StepResult
from hyrt.errors import DivergenceError
from hyrt.formatting import short_repr
from hyrt.nn.hetero.inputs import EmbeddingOptimizer, SparseGradient, add_sparse_gradients
from hyrt.objective.objective import sum_counts
from hyrt.pipeline.recovery import Recovery
from hyrt.pipeline.trainer import Trainer
from hyrt.pipeline.work_items import StepWork
from hyrt.telemetry.hooks import Site, call_with_hooks

# Constant that torch adds to a norm before it divides by the norm.
_CLIP_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Summary of a synchronized step, over all trainers.

    `loss` is the sum of losses, divided once by the step's normalizer. `counts` are sums of the objective's
    counts, and `num_edges` is the number of sampled edges.
    """

    loss: float
    counts: Mapping[str, float]
    normalizer: float
    num_edges: int = 0


@dataclass(frozen=True, slots=True)
class StepTotals:
    """Sums of the trainers' results in a step: sums over targets can be added, but means cannot."""

    loss_sum: float
    counts: Mapping[str, float]
    """Sums of the objective's counts by name."""
    normalizer: float
    """Sum of the normalizers of all results."""
    gradients: Sequence[torch.Tensor]
    """Gradient of each parameter on the host; empty if no trainer had any targets."""
    num_edges: int = 0
    row_gradients: Sequence[SparseGradient] = ()
    """Gradients of embedding rows, one per table, in which no row occurs twice."""

    __repr__ = short_repr


class Reduction(Protocol):
    """Function that adds the results of all processes, in the same order in every run.

    Its inputs must be sums that have not been divided.
    """

    def __call__(self, totals: StepTotals) -> StepTotals:
        """Return the sums over all processes, given the sums of this process."""
        ...


def no_reduction(totals: StepTotals) -> StepTotals:
    """Return `totals` unchanged, because a run of one process has nothing to add."""
    return totals


class StateHandoff(Protocol):
    """Exchange of gradient sums between two time steps, called by all processes at the same time."""

    def __call__(self, step: int, time: int, totals: StepTotals) -> StepTotals:
        """Exchange the sums that this process holds after time step `time`; return the sums to
        continue with.
        """
        ...


def no_handoff(step: int, time: int, totals: StepTotals) -> StepTotals:
    """Return `totals` unchanged."""
    return totals


def add_results(results: Sequence[StepResult | StepTotals]) -> StepTotals:
    """Add the results in order, except the numbers of edges."""
    gradients = [result.gradients for result in results if result.gradients]
    return StepTotals(
        loss_sum=sum(result.loss_sum for result in results),
        counts=sum_counts(result.counts for result in results),
        normalizer=sum(result.normalizer for result in results),
        gradients=[reduce(torch.add, of_parameter) for of_parameter in zip(*gradients, strict=True)],
        row_gradients=add_sparse_gradients([rows for result in results for rows in result.row_gradients]),
    )


class Synchronizer:
    """Owner of the master weights and the optimizer on the host.

    Gradients are added in the order of `trainers`, which is fixed so that identical runs give identical bits.
    `reduction` adds the sums of other processes, and `pass_on` exchanges sums between the time steps of a
    step. `clip_norm` limits the global norm of a step's gradients; 0 disables clipping. `warm_up` returns the
    learning rate factor of a step. `tables` is the optimizer of the model's embedding tables, if it has any.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        trainers: Sequence[Trainer],
        seed: int,
        reduction: Reduction = no_reduction,
        pass_on: StateHandoff = no_handoff,
        clip_norm: float = 0.0,
        warm_up: Callable[[int], float] = lambda step: 1.0,
        tables: EmbeddingOptimizer | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._trainers = list(trainers)
        self._seed = seed
        self._reduction = reduction
        self._pass_on = pass_on
        self._held: StepTotals | None = None
        self._clip_norm = clip_norm
        self._warm_up = warm_up
        self._tables = tables

    def step(self, work: StepWork) -> StepSummary:
        """Reduce the gradient sums, divide the result once, and step the optimizer once.

        The trainers load the new weights when the next step is requested from the pipeline. Raises
        DivergenceError, which names trainer, step and seed, if a loss, a gradient or the gradient norm is not
        finite; the weights are then unchanged.
        """
        total = self._reduction(replace(self._sums(work), num_edges=work.num_edges))
        self._held = None
        if total.gradients:
            for parameter, gradient in zip(self._parameters, total.gradients, strict=True):
                parameter.grad = gradient / total.normalizer
            rows = [each.divide(total.normalizer) for each in total.row_gradients]
            rows = self._clip(work.step, rows)
            self._step_optimizer(self._warm_up(work.step), rows)
        return StepSummary(
            loss=total.loss_sum / total.normalizer if total.normalizer else 0.0,
            counts=total.counts,
            normalizer=total.normalizer,
            num_edges=total.num_edges,
        )

    def end_time_step(self, work: StepWork) -> None:
        """End a time step that is not the last of its step: keep the weights, and hand over the sums.

        Raises DivergenceError like `step`.
        """
        self._held = self._pass_on(work.step, work.time, self._sums(work))

    def _sums(self, work: StepWork) -> StepTotals:
        """Return the sums of the step so far, including the newest time step."""
        shares = work.results()
        for index, result in shares:
            finite = math.isfinite(result.loss_sum) and all(
                math.isfinite(float(gradient.sum()))
                for gradient in (*result.gradients, *(rows.values for rows in result.row_gradients))
            )
            if not finite:
                raise self._diverged(f"the loss or a gradient of {self._trainers[index].name}", work.step)
        held = [] if self._held is None else [self._held]
        return add_results([*held, *(result for _, result in shares)])

    def _clip(self, step: int, rows: list[SparseGradient]) -> list[SparseGradient]:
        """Clip the parameter gradients in place, and return the clipped row gradients."""
        if not self._clip_norm:
            return rows
        values = [each.values for each in rows]
        grads = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm([*grads, *values])
        if not math.isfinite(norm):
            raise self._diverged("the norm of the gradients", step)
        torch.nn.utils.clip_grads_with_norm_(self._parameters, self._clip_norm, norm)
        factor = min(1.0, self._clip_norm / (float(norm) + _CLIP_EPSILON))
        return [each.divide(1 / factor) for each in rows]

    def _step_optimizer(self, warm_up: float, rows: Sequence[SparseGradient]) -> None:
        """Step the optimizer with learning rates scaled by `warm_up`, and then restore the rates."""
        groups = self._optimizer.param_groups
        rates = [group["lr"] for group in groups]
        if warm_up < 1:
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * warm_up
        self._optimizer.step()
        if self._tables is not None:
            self._tables.step(rows, groups[0]["lr"])
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def _diverged(self, quantity: str, step: int) -> DivergenceError:
        return DivergenceError(
            f"{quantity} is not finite at step {step} (seed {self._seed}): the step was not applied; lower "
            "train.lr, or check the features"
        )


@dataclass(frozen=True, slots=True)
class UpdateStage:
    """Update stage, which loads the master weights into each trainer on that trainer's thread."""

    trainers: Sequence[Trainer]
    parameters: Sequence[torch.Tensor]
    recovery: Recovery

    def __call__(self, index: int, step: int) -> None:
        """Load the weights of a step into one trainer, and record the duration in the trainer."""
        trainer = self.trainers[index]
        if trainer.lost is not None:
            return
        site = Site(trainer.name, step, index)
        with trainer.transfer_lock:
            try:
                call_with_hooks(trainer.hooks, "update", site, lambda: self._timed(trainer))
            except Exception as error:
                self.recovery.drop_trainer(index, error)

    def _timed(self, trainer: Trainer) -> None:
        started = time.perf_counter()
        trainer.device.update(self.parameters)
        trainer.update_s = time.perf_counter() - started
