"""The synchronizer adds what it is told to add, and divides once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from hyrt.device import StepResult
from hyrt.pipeline.shares import Share, StepWork
from hyrt.pipeline.synchronize import Reduction, Synchronizer, add_results

SHAPES = ((3, 2), (3,))
LR = 0.5


def results(count: int) -> list[StepResult]:
    """Results of trainers with unequal numbers of targets, the last without any."""
    random = torch.Generator().manual_seed(0)
    made = [
        StepResult(
            loss_sum=float(targets),
            counts={"targets": targets},
            normalizer=float(targets),
            gradients=[torch.randn(shape, generator=random) for shape in SHAPES],
        )
        for targets in range(1, count)
    ]
    return [*made, StepResult.empty(0.0)]


def weights_after(given: Sequence[StepResult], reduction: Reduction = add_results) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    synchronizer = Synchronizer(parameters, torch.optim.SGD(parameters, LR), [], 0, reduction)
    work = StepWork(0)
    work.shares = [Share(work, index, np.arange(0), result=result) for index, result in enumerate(given)]
    summary = synchronizer.step(work)
    # Every target has a loss of 1.
    assert summary.loss == pytest.approx(1.0)
    return [parameter.detach() for parameter in parameters]


def test_sums_are_divided_once_by_the_targets_of_all() -> None:
    given = results(4)
    for at, weights in enumerate(weights_after(given)):
        total = sum(result.gradients[at].double() for result in given if result.gradients)
        torch.testing.assert_close(weights.double(), 1 - LR * total / (1 + 2 + 3))


def test_a_reduction_over_other_processes_gives_the_step_of_all_trainers() -> None:
    """Two processes, each with its own trainers: the sums of the one are added to those of the other."""
    given = results(6)
    mine, theirs = given[:2], given[2:]

    def with_the_other(own: Sequence[StepResult]) -> StepResult:
        return add_results([add_results(own), add_results(theirs)])

    for weights, wanted in zip(weights_after(mine, with_the_other), weights_after(given), strict=True):
        torch.testing.assert_close(weights, wanted)
