"""Settings of training, evaluations and checkpoints count in every mode, or are refused or warned of."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import random_graph
from unit.training.test_full_graph_runs import Sums

import hyrt
from hyrt.errors import ConfigError
from hyrt.inference import evaluate as score_vertices
from hyrt.inference.infer import infer_layerwise
from hyrt.telemetry.events import CheckpointWritten, EvaluationFinished, Event, Notice, StepMetrics

GRAPH = random_graph(80, features=12)
MINI: dict[str, Any] = {"data": {"batch_size": 16}, "sampler": {"fanout": [3, 2]}}
WHOLE: dict[str, Any] = {"full_graph": True}
LINKS = {"objective": "links", "lr": 0.01}
MODES: dict[str, dict[str, Any]] = {
    "mini-batches": MINI,
    "full graph": WHOLE,
    "full graph in tiles": {**WHOLE, "fullgraph": {"chunks": 2}},
    "links": {**MINI, "data": {"batch_size": 64}, "train": LINKS},
    "links of a full graph": {**WHOLE, "train": LINKS},
    "own module": MINI,
    "own module, full graph": WHOLE,
    "ggnn": {**MINI, "model": {"kind": "ggnn", "hidden": 8}},
}
SETTINGS: list[dict[str, dict[str, Any]]] = [
    {"train": {"optimizer": "SGD"}},
    {"train": {"clip_norm": 0.01}},
    {"train": {"warmup_steps": 3}},
    {"train": {"schedule": "ExponentialLR", "schedule_options": {"gamma": 0.1}}},
    {"train": {"class_weights": [1, 5, 1]}},
    {"train": {"label_smoothing": 0.3}},
    {"train": {"metric": "loss"}},
    {"train": {"precision": "bf16"}},
    {"train": {"patience": 1, "epochs": 60, "lr": 1e-12, "weight_decay": 0.0}},
    {"train": {"patience": 1}, "evaluate": {"every": 0}},
    {"evaluate": {"every": 0}},
    {"evaluate": {"mode": "sampled"}},
    {"evaluate": {"memory_gib": 1e-6}},
    {"evaluate": {"mode": "sampled", "memory_gib": 1e-6}},
    {"checkpoint": {"every_steps": 2}},
    {"checkpoint": {"every_epochs": 2}},
    {"checkpoint": {"keep": 1, "every_steps": 1}},
]


class Effects:
    """What a run did that a setting may change."""

    def __init__(self, mode: str, folder: Path | None, setting: dict[str, dict[str, Any]]) -> None:
        given = {
            "model": {"kind": "gcn", "hidden": 8},
            "train": {"epochs": 3},
            "evaluate": {},
            "checkpoint": {},
            "balance": {"policy": "static", "predict": False},
            "devices": ["cpu:0"],
            **MODES[mode],
        }
        given["train"] = {"epochs": 3, **given["train"]}
        for section, values in setting.items():
            given[section] = {**given[section], **values}
        model: Any = Sums() if mode.startswith("own module") else given["model"]
        del given["model"]
        self.heard: list[Event] = []
        self.memory: list[int] = []

        def spied(*args: Any, memory_bytes: int, **named: Any) -> Any:
            self.memory.append(memory_bytes)
            return infer_layerwise(*args, memory_bytes=memory_bytes, **named)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(score_vertices, "infer_layerwise", spied)
            result = hyrt.train(GRAPH, model, emit=self.heard.append, folder=folder, **given)
        self.weights = torch.cat([each.flatten() for each in result.model.state_dict().values()]).tolist()
        self.kept = [] if folder is None else sorted(p.name[:13] for p in folder.glob("checkpoints/step-*"))

    @property
    def said(self) -> list[str]:
        return [event.text for event in self.heard if isinstance(event, Notice) and event.kind == "warning"]

    def seen(self) -> tuple[Any, ...]:
        steps = [event for event in self.heard if isinstance(event, StepMetrics)]
        scores = [event for event in self.heard if isinstance(event, EvaluationFinished)]
        return (
            [loss for event in steps for loss in event.losses],
            [(event.epoch, str(event.metrics), event.chosen_by) for event in scores],
            self.memory,
            self.weights,
            [event.step for event in self.heard if isinstance(event, CheckpointWritten)],
            self.kept,
        )


@cache
def plain(mode: str, folder: Path) -> Effects:
    return Effects(mode, folder, {})


def named(setting: dict[str, dict[str, Any]]) -> str:
    return " ".join(
        f"{section}.{name}={values[name]}" for section, values in setting.items() for name in values
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plain")


@pytest.mark.parametrize("setting", SETTINGS, ids=named)
@pytest.mark.parametrize("mode", MODES)
def test_a_setting_counts_or_is_told(
    mode: str, setting: dict[str, dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    before = plain(mode, folder / mode)
    # The last one is tested.
    name = list(list(setting.values())[-1])[-1]
    if "links" in mode and name in ("class_weights", "label_smoothing"):
        with pytest.raises(
            ConfigError, match=rf"^train\.{name}=.* is not supported by objective links: remove train\.{name}"
        ):
            Effects(mode, None, setting)
        return
    after = Effects(mode, tmp_path / "run", setting)
    told = [text for text in after.said if text not in before.said]
    waits = "patience" in setting.get("train", {})
    if waits and "evaluate" in setting:
        assert any("train.patience=1 has no effect with evaluate.every=0" in text for text in told)
    elif waits:
        assert sum(isinstance(event, EvaluationFinished) for event in after.heard) == 2
    elif after.seen() == before.seen() or ("mode" in setting.get("evaluate", {}) and name == "memory_gib"):
        assert any(f".{name}=" in text and "has no effect" in text for text in told), (told, name)
    else:
        assert not told
