"""What a short run's groups of steps come to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hyrt.config import build_config
from hyrt.graph import open_graph
from hyrt.predict.calibrate import trainers as module
from hyrt.telemetry.events import StepMetrics


def group(
    step: int, step_s: float, propagate_s: float, synchronize_s: float, steps_per_epoch: int = 100
) -> StepMetrics:
    """Two steps; all but what is given is made up."""
    stage_s = {"sample": 1.0, "load": 1.0, "transfer": 0.0}
    return StepMetrics(
        epoch=1,
        step=step,
        steps_done=(step - 1) % steps_per_epoch + 1,
        steps_per_epoch=steps_per_epoch,
        loss=0.0,
        losses=(0.0, 0.0),
        training_metrics={},
        mteps=0.0,
        step_s=step_s,
        stage_s={**stage_s, "propagate": propagate_s, "synchronize": synchronize_s},
        busy_s={},
        blocked_s={},
        bottleneck="propagate",
        split={"cpu:0": 1},
        threads={"sample": 1, "load": 1, "train": 1},
        lr=0.1,
        memory_bytes=1,
    )


def found_of(groups: list[StepMetrics], monkeypatch: pytest.MonkeyPatch) -> module.ShortRun:
    """What a run that emits these groups comes to; the first two steps warm up."""

    def composed(config: Any, graph: Any, *, emit: Any, **rest: Any) -> Any:
        return SimpleNamespace(run=lambda: [emit(each) for each in groups])

    monkeypatch.setattr(module, "build_run", composed)
    monkeypatch.setattr(module, "Training", lambda parts: parts)
    return module.short_run(build_config({}), open_graph("synthetic:tiny"), warm=2, steps=4)


def test_the_last_step_of_an_epoch_which_may_be_smaller_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, smaller = (8.0, 5.0, 1.0), (2.0, 1.0, 0.5)
    groups = [group(2 * i, *(smaller if i % 2 == 0 else whole), steps_per_epoch=4) for i in range(1, 10)]
    found = found_of(groups, monkeypatch)
    assert found.iteration_s == 8.0
    assert found.gap_s == 2.0
    assert found.stage_s["propagate"] == 5.0


def test_of_epochs_of_one_group_all_steps_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_of([group(2 * i, 2.0 * i, 1.0, 0.5, steps_per_epoch=2) for i in range(1, 5)], monkeypatch)
    assert found.iteration_s == 6.0


def test_the_gap_is_what_passes_besides_propagation_and_synchronization(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [group(2, 99.0, 1.0, 1.0)]  # Steps that warm up.
    groups += [group(4, 8.0, 5.0, 1.0), group(6, 9.0, 5.0, 0.5), group(8, 30.0, 6.0, 2.0)]
    found = found_of(groups, monkeypatch)
    assert found.iteration_s == 9.0
    assert found.gap_s == pytest.approx(3.5)
    assert found.stage_s["propagate"] == pytest.approx(16 / 3)
