"""How steps of an optimizer are computed: in one pass over each parameter, where that is the same step."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hyrt.config import build_config
from hyrt.training.learner import TrainingState, build_optimizer


def optimizer(parameters: list[torch.nn.Parameter], **train: Any) -> torch.optim.Optimizer:
    return build_optimizer(build_config({"train": {"weight_decay": 0.0, **train}}), parameters)[0]


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in [(7, 5), (5,)]]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"weight_decay": 0.1}),
        ("SGD", {"momentum": 0.9, "nesterov": True}),
        ("Adagrad", {}),
    ],
)
def test_one_pass_makes_the_steps_of_torchs_plain_loop(name: str, options: dict[str, Any]) -> None:
    mine, plain = parameters(), parameters(torch.float64)
    fused = optimizer(mine, optimizer=name, lr=0.05, optimizer_options=options)
    assert fused.defaults["fused"] is True
    loop = getattr(torch.optim, name)(plain, lr=0.05, foreach=False, **options)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10):
        for a, b in zip(mine, plain, strict=True):
            a.grad = torch.randn(a.shape, generator=generator)
            b.grad = a.grad.double()
        fused.step()
        loop.step()
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", [{"fused": False}, {"foreach": True}, {"differentiable": True}])
def test_who_says_how_steps_are_computed_is_heard(how: dict[str, bool]) -> None:
    made = optimizer(parameters(), optimizer="Adam", optimizer_options=how)
    assert not made.defaults["fused"]
    assert made.defaults[next(iter(how))] == next(iter(how.values()))


def test_what_has_no_such_step_is_made_without() -> None:
    assert "fused" not in optimizer(parameters(), optimizer="RMSprop").defaults
    made = optimizer([*parameters(), *parameters(torch.complex64)], optimizer="Adam")
    assert not made.defaults["fused"]
    for each in made.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    made.step()


def test_a_run_whose_steps_were_a_loop_is_resumed() -> None:
    """What a checkpoint says of how steps are computed is kept, with the state that belongs to it."""
    before, after = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    plain = TrainingState(build_config({"train": {"optimizer_options": {"fused": False}}}), before)
    before(torch.ones(4, 3)).square().sum().backward()
    plain.optimizer.step()
    resumed = TrainingState(build_config({}), after)
    resumed.restore(copy.deepcopy(plain.state()))
    for learner in (plain, resumed):
        learner.optimizer.zero_grad()
        learner.model(torch.ones(4, 3)).square().sum().backward()
        learner.optimizer.step()
    for a, b in zip(before.parameters(), after.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
