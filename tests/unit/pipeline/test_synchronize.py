"""The synchronizer adds what it is told to add, and divides once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hyrt.config.settings import TrainConfig
from hyrt.device import StepResult
from hyrt.errors import DivergenceError
from hyrt.nn.hetero.inputs import SparseGradient
from hyrt.pipeline.synchronize import Reduction, StepTotals, Synchronizer, add_results, no_reduction
from hyrt.pipeline.work_items import StepWork, WorkShare

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


def weights_after(given: Sequence[StepResult], reduction: Reduction = no_reduction) -> list[torch.Tensor]:
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    synchronizer = Synchronizer(parameters, torch.optim.SGD(parameters, LR), [], 0, reduction)
    work = StepWork(0)
    work.shares = [WorkShare(work, index, np.arange(0), result=result) for index, result in enumerate(given)]
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

    def with_the_other(own: StepTotals) -> StepTotals:
        other = add_results(theirs)
        return StepTotals(
            loss_sum=own.loss_sum + other.loss_sum,
            counts={},
            normalizer=own.normalizer + other.normalizer,
            gradients=[a + b for a, b in zip(own.gradients, other.gradients, strict=True)],
        )

    for weights, wanted in zip(weights_after(mine, with_the_other), weights_after(given), strict=True):
        torch.testing.assert_close(weights, wanted)


def of_targets(count: int, gradients: list[torch.Tensor]) -> StepResult:
    """Each target has a loss of 1."""
    return StepResult(
        loss_sum=float(count), counts={"targets": count}, normalizer=float(count), gradients=gradients
    )


def stepped(
    cuts: Sequence[int],
    optimizer: type[torch.optim.Optimizer],
    *,
    clip_norm: float = 0.0,
    warm_up: Callable[[int], float] = lambda step: 1.0,
) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
    """Weights after five steps of eight targets, dealt out to trainers by `cuts`; and the mean gradients."""
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    synchronizer = Synchronizer(
        parameters, optimizer(parameters, LR), [], 0, clip_norm=clip_norm, warm_up=warm_up
    )
    random = torch.Generator().manual_seed(1)
    means = []
    for step in range(5):
        # Small whole numbers: their sums are exact, however they are added.
        each = [[torch.randint(-9, 9, shape, generator=random).float() for shape in SHAPES] for _ in range(8)]
        means.append([sum(of_one) / 8 for of_one in zip(*each, strict=True)])
        work = StepWork(step)
        for index, part in enumerate(np.split(np.arange(8), cuts)):
            sums = [sum(of_one) for of_one in zip(*(each[target] for target in part), strict=True)]
            result = of_targets(len(part), sums)
            work.shares.append(WorkShare(work, index, part, result=result))
        synchronizer.step(work)
    return [parameter.detach() for parameter in parameters], means


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("clip_norm", [0.0, 2.0, 1e6])
@pytest.mark.parametrize("warm_up_steps", [0, 4])
def test_clipping_and_warm_up_are_torchs_own_for_any_split(
    optimizer: type[torch.optim.Optimizer], clip_norm: float, warm_up_steps: int
) -> None:
    def warm_up(step: int) -> float:
        return TrainConfig(warmup_steps=warm_up_steps).warmup_factor(step, 7)

    one, means = stepped([], optimizer, clip_norm=clip_norm, warm_up=warm_up)
    for cuts in ([5], [1, 4], [1, 2, 6]):
        for mine, other in zip(
            one, stepped(cuts, optimizer, clip_norm=clip_norm, warm_up=warm_up)[0], strict=True
        ):
            assert torch.equal(mine, other)
    twins = [torch.nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    made = optimizer(twins, LR)
    scheduler = None
    if warm_up_steps:
        scheduler = torch.optim.lr_scheduler.LinearLR(made, 1 / warm_up_steps, 1.0, warm_up_steps - 1)
    for gradients in means:
        for twin, gradient in zip(twins, gradients, strict=True):
            twin.grad = gradient.clone()
        if clip_norm:
            torch.nn.utils.clip_grad_norm_(twins, clip_norm)
        made.step()
        if scheduler is not None:
            scheduler.step()
    for mine, twin in zip(one, twins, strict=True):
        torch.testing.assert_close(mine, twin.detach(), rtol=1e-6, atol=1e-7)


def test_learned_rows_are_clipped_and_warmed_up_with_all_other_weights() -> None:
    """Two trainers, one with rows of a table: against torch's own clipping of a dense table."""
    table, weight = torch.nn.Parameter(torch.zeros(5, 2)), torch.nn.Parameter(torch.ones(3))
    of_rows = torch.tensor([[3.0, -4.0], [6.0, 8.0]])
    given = [of_targets(2, [torch.tensor([1.0, 2.0, 2.0])]), of_targets(2, [torch.tensor([3.0, 2.0, 2.0])])]
    given[1] = replace(given[1], row_gradients=[SparseGradient(0, np.array([1, 4]), of_rows)])
    stepped_rows: list[SparseGradient] = []
    rates: list[float] = []

    class Tables:
        def step(self, rows: Sequence[SparseGradient], lr: float) -> None:
            stepped_rows.extend(rows)
            rates.append(lr)

    synchronizer = Synchronizer(
        [weight],
        torch.optim.SGD([weight], LR),
        [],
        0,
        clip_norm=1.5,
        warm_up=lambda step: 0.25,
        tables=Tables(),  # type: ignore[arg-type]
    )
    work = StepWork(0)
    work.shares = [WorkShare(work, index, np.arange(2), result=result) for index, result in enumerate(given)]
    synchronizer.step(work)
    twin = torch.nn.Parameter(torch.ones(3))
    twin.grad, table.grad = torch.ones(3), torch.zeros(5, 2)
    table.grad[[1, 4]] = of_rows / 4
    torch.nn.utils.clip_grad_norm_([twin, table], 1.5)
    torch.testing.assert_close(weight.detach(), 1 - LR / 4 * twin.grad)
    torch.testing.assert_close(stepped_rows[0].values, table.grad[[1, 4]])
    assert rates == [LR / 4]


def test_a_norm_that_is_not_finite_is_not_applied() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3))]
    synchronizer = Synchronizer(parameters, torch.optim.SGD(parameters, LR), [], 0, clip_norm=1.0)
    work = StepWork(6)
    # Each number is finite in float32; the sum of their squares is not.
    result = of_targets(1, [torch.full((3,), 1e30)])
    work.shares = [WorkShare(work, 0, np.arange(1), result=result)]
    with pytest.raises(DivergenceError, match="the norm of the gradients is not finite at step 6"):
        synchronizer.step(work)
    assert torch.equal(parameters[0].detach(), torch.ones(3))


@pytest.mark.parametrize("count", [3, 4, 7])
def test_the_sums_of_many_trainers_are_those_of_all(count: int) -> None:
    given = results(count + 1)
    total = add_results(given)
    assert total.loss_sum == total.normalizer == total.counts["targets"] == count * (count + 1) / 2
    for at, gradient in enumerate(total.gradients):
        wanted = np.sum([result.gradients[at].double().numpy() for result in given[:-1]], axis=0)
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-6, atol=1e-6)
