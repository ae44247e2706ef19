"""Which rows devices are expected to read, by the share of a step that each of them has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from graphs import random_graph

from hyrt.config import build_config
from hyrt.runtime.workers import Workers
from hyrt.training.feature_caches import DeviceCaches
from hyrt.training.setup import PreparedRun


@pytest.mark.parametrize(
    ("split", "keeping", "part"),
    [([10, 30, 60], [1, 2], 0.45), ([10, 30, 60], [1], 0.3), ([5, 5], [0, 1], 0.5)],
)
def test_rows_are_ranked_for_the_mean_share_of_the_devices_that_keep_some(
    monkeypatch: pytest.MonkeyPatch, split: list[int], keeping: list[int], part: float
) -> None:
    graph, config = random_graph(seed=4), build_config({"data": {"cache": "10%"}, "devices": ["cpu"]})
    caches = DeviceCaches(config, PreparedRun(config, graph))
    trainers: Any = [
        SimpleNamespace(name=f"d:{number}", keeps=number in keeping) for number in range(len(split))
    ]
    asked: list[float] = []
    filled: list[str] = []

    def ranking(of_step: float, workers: Workers) -> Any:
        asked.append(of_step)
        return SimpleNamespace(vertices=graph.split("train"))

    monkeypatch.setattr(caches, "_keeps", lambda trainer: trainer.keeps)
    monkeypatch.setattr(caches, "ranking", ranking)
    monkeypatch.setattr(caches, "_fill", lambda trainer, *rest: filled.append(trainer.name))
    caches.fill(trainers, split, Workers(1, "test"))
    assert asked == [pytest.approx(part)]
    assert filled == [f"d:{number}" for number in keeping]
