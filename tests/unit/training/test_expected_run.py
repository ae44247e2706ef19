"""A run that was predicted starts from the prediction, and says both in the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import random_graph
from hyrt_perfmodel.policy import Threads

from hyrt.config import build_config
from hyrt.telemetry.events import EpochEnded, Event, PredictionMade, RunPrediction, RunStarted
from hyrt.training.build_run import build_run
from hyrt.training.train import Training

GRAPH = random_graph(vertices=240)
EXPECTED = RunPrediction(
    stages_s={"sample": 0.001, "load": 0.002, "transfer": 0.0, "propagate": 0.003, "synchronize": 0.0005},
    iteration_s=0.0035,
    epoch_s=0.02,
    relative_error=0.1,
    bottleneck="propagate",
    split={"cpu:0": 5, "cpu:1": 19},
    threads=Threads(sample=2, load=1, train=2),
)


def run(folder: Path | None = None, module: torch.nn.Module | None = None, **sections: Any):
    told: list[Event] = []
    settings = {
        "data": {"batch_size": 24},
        "sampler": {"fanout": [4, 3]},
        "train": {"epochs": 2},
        "devices": ["cpu:1", "cpu:0"],
        "balance": {"policy": "static"},
        **sections,
    }
    training = Training(
        build_run(
            build_config(settings),
            GRAPH,
            model=module,
            emit=told.append,
            checkpoints=folder,
            predict=lambda config, graph, sampler, say: EXPECTED,
        )
    )
    return training.run().summary, told


def of(kind: type, told: list[Event]) -> list[Any]:
    return [event for event in told if isinstance(event, kind)]


def test_the_start_and_the_words() -> None:
    summary, told = run()
    assert summary["split"] == {"cpu:1": 19, "cpu:0": 5}
    assert summary["threads"] == {"sample": 2, "load": 1, "train": 2}
    (first,) = of(RunStarted, told)
    assert first.devices == "cpu:1 19 targets · cpu:0 5 targets · threads sample 2, load 1, train 2"
    (event,) = of(PredictionMade, told)
    assert told.index(event) > told.index(first)
    assert (event.step, event.epoch_s, event.bottleneck) == (0, 0.02, "propagate")
    assert summary["predicted"] == {
        "stages_s": dict(EXPECTED.stages_s),
        "iteration_s": 0.0035,
        "epoch_s": 0.02,
        "relative_error": 0.1,
        "bottleneck": "propagate",
    }
    assert set(summary["stages_s"]) == set(EXPECTED.stages_s)
    assert summary["iteration_s"] == pytest.approx(summary["trained_s"] / summary["steps"])
    assert [ended.predicted_s for ended in of(EpochEnded, told)] == [0.02, 0.02]


@pytest.mark.parametrize(
    ("settings", "split", "threads"),
    [
        ({"split": [12, 12]}, (12, 12), (2, 1, 2)),
        ({"devices": ["cpu:1=1", "cpu:0=2"]}, (8, 16), (2, 1, 2)),
        ({"runtime": {"load_threads": 2}}, (19, 5), (2, 2, 2)),
    ],
)
def test_what_the_settings_give_is_kept(settings: dict[str, Any], split, threads) -> None:
    summary, _ = run(**settings)
    assert tuple(summary["split"].values()) == split
    assert tuple(summary["threads"].values()) == threads


def test_no_prediction_where_it_is_not_wanted_or_not_of_this_model() -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(GRAPH.num_features, GRAPH.num_classes)

        def forward(self, blocks: Any, x: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = self.out(x[: blocks[-1].num_dst])
            return scores

    for summary, told in (run(balance={"policy": "static", "predict": False}), run(module=Rows())):
        assert summary["predicted"] is None
        assert summary["split"] == {"cpu:1": 12, "cpu:0": 12}
        assert not of(PredictionMade, told)
        assert {ended.predicted_s for ended in of(EpochEnded, told)} == {None}


@pytest.mark.parametrize("devices", [["cpu:1", "cpu:0"], ["cpu:1=1", "cpu:0=3"]])
def test_a_step_has_no_more_targets_than_there_are(devices: list[str]) -> None:
    summary, told = run(data={"batch_size": 2_000_000_000}, devices=devices, balance={"predict": False})
    targets = len(GRAPH.split("train"))
    first = -(-targets // 2) if devices == ["cpu:1", "cpu:0"] else targets // 4
    assert summary["split"] == {"cpu:1": first, "cpu:0": targets - first}
    (started,) = of(RunStarted, told)
    assert f"cpu:1 {first} targets · cpu:0 {targets - first} targets" in started.devices
    assert f"batch {targets} ·" in started.model


def test_a_prediction_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"does not share 48 targets among \['cpu:1', 'cpu:0'\]"):
        run(data={"batch_size": 48})
