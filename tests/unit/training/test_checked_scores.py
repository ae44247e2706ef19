"""A user's module that returns something else than scores of the targets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from unit.nn.block_cases import tensor_block

from hyrt.api import load, train
from hyrt.errors import StageError, UnsupportedModelError
from hyrt.nn.architecture import Architecture
from hyrt.nn.model import GNN
from hyrt.nn.model_errors import add_output_check
from hyrt.runtime.workers import Workers
from hyrt.sampling.neighbor_sampler import NeighborSampler
from hyrt.telemetry.events import Notice

GRAPH = load("synthetic:tiny")
SETTINGS: Any = {"data": {"batch_size": 100}, "train": {"epochs": 1}, "seed": 3}

CASES: list[tuple[int, Callable[[list[Any], Tensor], Any], str]] = [
    (
        4,
        lambda blocks, x: x,
        r"Wrong returned [\d,]+ rows for 100 targets: keep only the first block.num_dst rows",
    ),
    (4, lambda blocks, x: x[: len(blocks[-1].destinations) - 1], "returned 99 rows for 100 targets"),
    (3, lambda blocks, x: x[: blocks[-1].num_dst], "returned 3 scores for 4 classes: return one score per"),
    (4, lambda blocks, x: (x,), "returned a tuple: return one floating-point tensor of scores"),
    (4, lambda blocks, x: None, "returned nothing: return one floating-point tensor"),
    (4, lambda blocks, x: x[: blocks[-1].num_dst, 0], r"returned torch.float32 of shape \[100\]: return one"),
    (
        4,
        lambda blocks, x: x[: blocks[-1].num_dst].argmax(1, True),
        r"returned torch.int64 of shape \[100, 1\]",
    ),
]


class Wrong(nn.Module):
    def __init__(self, scores: int, end: Callable[[list[Any], Tensor], Any], when: str) -> None:
        super().__init__()
        self.linear = nn.Linear(GRAPH.num_features, scores)
        self.end = end
        self.wrong_while_training = when == "training"

    def forward(self, blocks: list[Any], x: Tensor) -> Any:
        out = self.linear(x)
        if self.training == self.wrong_while_training:
            return self.end(blocks, out)
        return torch.cat([out, out], 1)[: blocks[-1].num_dst]


@pytest.mark.parametrize(("scores", "end", "message"), CASES)
def test_training_says_what_the_module_returned(scores: int, end: Any, message: str) -> None:
    model = Wrong(scores, end, "training")
    with pytest.raises(StageError, match=f"propagate.*cpu:0.*step 0.*{message}") as caught:
        train(GRAPH, model, **SETTINGS)
    assert isinstance(caught.value.__cause__, UnsupportedModelError)
    # The caller's module is as it was.
    assert not model._forward_hooks


@pytest.mark.parametrize(("scores", "end", "message"), CASES)
def test_evaluation_says_what_the_module_returned(scores: int, end: Any, message: str) -> None:
    settings = SETTINGS | {"data": {"batch_size": 100}}
    with pytest.raises(
        UnsupportedModelError, match=message.replace("100", "[0-9,]+").replace("99 ", "[0-9,]+ ")
    ):
        train(GRAPH, Wrong(scores, end, "evaluation"), **settings, emit=lambda event: None)


@pytest.mark.parametrize(("scores", "end", "message"), CASES)
def test_the_replica_of_a_torch_device_says_it_as_well(scores: int, end: Any, message: str) -> None:
    model = Wrong(scores, end, "training")
    add_output_check(model, GRAPH.num_classes)
    replica = copy.deepcopy(model)
    sampler = NeighborSampler(GRAPH, GRAPH.split("train").astype(np.int32), [3, 3], 100, 0)
    batch = sampler.sample(0, sampler.units(0), Workers(1, "test"), in_place=False)
    blocks = [tensor_block(block) for block in batch.blocks]
    with pytest.raises(UnsupportedModelError, match=message):
        replica(blocks, torch.zeros(blocks[0].num_src, GRAPH.num_features))


def test_more_scores_than_classes_are_told_once() -> None:
    heard: list[Any] = []
    train(
        GRAPH,
        Wrong(9, lambda blocks, x: x[: blocks[-1].num_dst], "training"),
        **SETTINGS,
        emit=heard.append,
    )
    told = [event.text for event in heard if isinstance(event, Notice) and event.kind == "warning"]
    assert told == [
        "Wrong returned 9 scores for 4 classes, so it can predict classes that no vertex has: return one "
        "score per class"
    ]


def test_a_model_for_kernels_of_their_own_is_checked_before_it_runs() -> None:
    model = GNN(Architecture(kind="gcn", in_features=GRAPH.num_features, num_classes=3))
    with pytest.raises(UnsupportedModelError, match="GNN returned 3 scores for 4 classes"):
        add_output_check(model, 4)
    add_output_check(GNN(Architecture(kind="gat", in_features=5, num_classes=3)), 4)


def test_scores_without_a_gradient() -> None:
    model = Wrong(4, lambda blocks, x: x[: blocks[-1].num_dst].detach(), "training")
    with pytest.raises(StageError, match="Wrong returned scores without a gradient: remove"):
        train(GRAPH, model, **SETTINGS)


@pytest.mark.parametrize(("scores", "told"), [(4, 0), (5, 1)])
def test_only_more_scores_than_classes_are_told_and_by_replicas_too(scores: int, told: int) -> None:
    model, more = Wrong(scores, lambda blocks, x: x[: blocks[-1].num_dst], "training"), set[str]()
    add_output_check(model, GRAPH.num_classes, more)
    sampler = NeighborSampler(GRAPH, GRAPH.split("train").astype(np.int32), [3, 3], 100, 0)
    batch = sampler.sample(0, sampler.units(0), Workers(1, "test"), in_place=False)
    blocks = [tensor_block(block) for block in batch.blocks]
    copy.deepcopy(model)(blocks, torch.zeros(blocks[0].num_src, GRAPH.num_features))
    assert len(more) == told
