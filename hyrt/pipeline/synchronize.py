"""The synchronizer: one exact step from every trainer's gradient sums."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hyrt.errors import Diverged
from hyrt.pipeline.shares import StepWork
from hyrt.pipeline.stages import Trainer


@dataclass(frozen=True, slots=True)
class StepSummary:
    """A synchronized step.

    `loss` is the sum over all trainers divided once by the step's normalizer.
    """

    loss: float
    correct: int
    targets: int
    normalizer: float


class Synchronizer:
    """Holds the master weights and the optimizer on the host.

    Parameters
    ----------
    parameters
        The master weights, in the order every trainer loaded them.
    optimizer
        Over those parameters.
    trainers
        In the order their gradients are added: the order is fixed, so that equal runs give equal bits.
    seed
        Of the run, for messages.
    """

    def __init__(
        self,
        parameters: Sequence[torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        trainers: Sequence[Trainer],
        seed: int,
    ) -> None:
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._trainers = list(trainers)
        self._seed = seed

    def step(self, work: StepWork) -> StepSummary:
        """Reduce gradient sums, divide once, step the optimizer once.

        The trainers take the new weights when the pipeline is asked for the next step.

        Raises
        ------
        Diverged
            If a loss or a gradient is not finite, naming trainer, step and seed. The weights are unchanged.
        """
        shares = work.results()
        results = [result for _, result in shares]
        normalizer = sum(result.normalizer for result in results)
        for index, result in shares:
            finite = math.isfinite(result.loss_sum) and all(
                math.isfinite(float(gradient.sum())) for gradient in result.gradients
            )
            if not finite:
                raise Diverged(
                    f"the loss or a gradient of {self._trainers[index].name} is not finite at step {work.step} (seed {self._seed}): "
                    "the step was not applied; lower train.lr, or check the features"
                )
        sums = [result.gradients for result in results if result.gradients]
        if sums:
            for i, parameter in enumerate(self._parameters):
                total = sums[0][i] if len(sums) == 1 else sums[0][i] + sums[1][i]
                for gradients in sums[2:]:
                    total = total + gradients[i]
                parameter.grad = total / normalizer
            self._optimizer.step()
        return StepSummary(
            loss=sum(result.loss_sum for result in results) / normalizer if normalizer else 0.0,
            correct=sum(result.correct for result in results),
            targets=sum(result.targets for result in results),
            normalizer=normalizer,
        )
