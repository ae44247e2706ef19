from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import hyrt
from hyrt.errors import ConfigError
from hyrt.nn.operators.aggregate import aggregate
from hyrt.observe.events import Event, StepGroup
from hyrt.sampling.block import Block


class Mine(torch.nn.Module):
    """A user's own two layers over blocks."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.first = torch.nn.Linear(features, 32)
        self.second = torch.nn.Linear(32, classes)

    def forward(self, blocks: Sequence[Block], x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(aggregate(blocks[0], x, "mean") + x[: blocks[0].num_dst]))
        return self.second(aggregate(blocks[1], x, "mean") + x[: blocks[1].num_dst])


def losses(**sections: Any) -> list[float]:
    heard: list[Event] = []
    data = {"batch_size": 128}
    hyrt.train("synthetic:tiny", emit=heard.append, data=data, **{"train": {"epochs": 2}, **sections})
    return [loss for event in heard if isinstance(event, StepGroup) for loss in event.losses]


def test_training_a_module_of_ones_own(tmp_path: Path) -> None:
    graph = hyrt.load("synthetic:tiny")
    torch.manual_seed(0)
    mine = Mine(graph.num_features, graph.num_classes)
    result = hyrt.train(
        graph, mine, train={"epochs": 8, "lr": 0.01}, data={"batch_size": 128}, folder=tmp_path
    )
    assert result.status == "finished"
    assert result.model is mine
    assert result.metrics["test"]["accuracy"] > 0.7
    assert result.summary["metrics"] == result.metrics
    assert len(list((tmp_path / "checkpoints").iterdir())) == 3


@pytest.mark.parametrize("kind", ["graphsage", "gat"])
def test_losses_depend_on_the_seed_only(kind: str) -> None:
    model = {"kind": kind, "dropout": 0.3, "input_dropout": 0.1}
    one = losses(model=model, seed=5)
    assert len(one) == 20
    threads = {"sample_threads": 4, "load_threads": 1, "depth": 1}
    assert losses(model=model, seed=5) == one
    assert losses(model=model, seed=5, runtime=threads) == one
    assert losses(model=model, seed=5, runtime={"pipelined": False}) == one
    assert losses(model=model, seed=6) != one


def test_two_trainers_do_what_one_does() -> None:
    one = losses(model={"dropout": 0.3})
    two = losses(model={"dropout": 0.3}, devices=["cpu:0", "cpu:1"], split=[37, 91])
    assert two == pytest.approx(one, rel=1e-4)


def test_wrong_calls() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'train\.epochs'"):
        hyrt.train("synthetic:tiny", train={"epoch": 3})
    with pytest.raises(ConfigError, match="not both"):
        hyrt.train("synthetic:tiny", config=hyrt.Config(), seed=3)
