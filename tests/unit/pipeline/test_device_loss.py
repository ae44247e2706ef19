"""Whole runs whose devices fail, and what they leave in events and in the summary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hyrt_devices.cpu import CpuDevice
from unit.pipeline.test_recovery_rules import Hops

from hyrt.api import load
from hyrt.config import build_config
from hyrt.errors import ConfigError, DeviceFaultError, StageError
from hyrt.telemetry.events import CheckpointWritten, Event, Notice, RunStarted, StepMetrics
from hyrt.training.build_run import build_run
from hyrt.training.checkpoint import load_newest_checkpoint
from hyrt.training.train import Training

GRAPH = load("synthetic:tiny")


class Run:
    def __init__(
        self,
        devices: list[str],
        folder: Path | None = None,
        *,
        stop_at: type | None = None,
        resume: bool = False,
        **sections: Any,
    ) -> None:
        settings = {
            "data": {"batch_size": 240},
            "sampler": {"fanout": [5, 4], **sections.pop("sampler", {})},
            "train": {"epochs": 4, "optimizer": "SGD", "lr": 0.05},
            "devices": devices,
            **sections,
        }
        self.heard: list[Event] = []
        training = Training(
            build_run(
                build_config(settings),
                GRAPH,
                emit=self.heard.append,
                checkpoints=folder,
                should_stop=lambda: any(type(event) is stop_at for event in self.heard),
            )
        )
        if resume:
            assert folder is not None
            training.resume(load_newest_checkpoint(folder, pytest.fail))
        self.result = training.run()
        self.weights = torch.cat([p.detach().flatten() for p in training.parts.learner.parameters]).numpy()

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.heard if isinstance(event, kind)]


@pytest.fixture(scope="module")
def undisturbed() -> Run:
    return Run(["cpu"])


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """The first trainer dies at step 7."""
    propagate, close = CpuDevice.propagate, CpuDevice.close

    def fail(self, staged):
        if self.info.name == "cpu:0" and staged.step == 7:
            raise DeviceFaultError("cpu:0: the bus has gone")
        return propagate(self, staged)

    def close_badly(self) -> None:
        close(self)
        if self.info.name == "cpu:0":
            raise DeviceFaultError("cpu:0: cannot be closed")

    monkeypatch.setattr(CpuDevice, "propagate", fail)
    monkeypatch.setattr(CpuDevice, "close", close_badly)


CONTINUE = {"runtime": {"on_device_loss": "continue"}, "balance": {"policy": "static"}}


@pytest.mark.usefixtures("failing")
@pytest.mark.parametrize("pipelined", [True, False])
def test_a_run_goes_on_without_a_device(undisturbed: Run, pipelined: bool) -> None:
    run = Run(
        ["cpu:0", "cpu:1"], runtime={"on_device_loss": "continue", "pipelined": pipelined}, split=[100, 140]
    )
    np.testing.assert_allclose(run.weights, undisturbed.weights, atol=1e-4)
    assert run.result.summary["devices_lost"] == {"cpu:0": "cpu:0: the bus has gone; cpu:0: cannot be closed"}
    assert run.result.summary["split"] == {"cpu:0": 0, "cpu:1": 240}
    warnings = [event.text for event in run.of(Notice) if event.kind == "warning"]
    assert len(warnings) == 1
    assert warnings[0].startswith("step 7: cpu:0 is lost; the run continues without it; split cpu:0 100 → 0")
    groups = run.of(StepMetrics)
    assert groups[0].split == {"cpu:0": 100, "cpu:1": 140}
    assert groups[-1].split == {"cpu:0": 0, "cpu:1": 240}
    losses = [loss for group in groups for loss in group.losses]
    wanted = [loss for group in undisturbed.of(StepMetrics) for loss in group.losses]
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)


@pytest.mark.usefixtures("failing")
def test_by_default_the_run_ends() -> None:
    with pytest.raises(
        StageError, match=r"error in propagate on cpu:0 at step 7: (?!cpu:0).*bus has gone"
    ) as raised:
        Run(["cpu:0", "cpu:1"], split=[120, 120])
    assert isinstance(raised.value.__cause__, DeviceFaultError)
    assert "cpu:0: cannot be closed" in " ".join(raised.value.__notes__)


def test_a_resumed_run_opens_the_lost_device_again(
    undisturbed: Run, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        propagate = CpuDevice.propagate

        def fail(self, staged):
            if self.info.name == "cpu:0" and staged.step == 2:
                raise DeviceFaultError("cpu:0: the bus has gone")
            return propagate(self, staged)

        patch.setattr(CpuDevice, "propagate", fail)
        first = Run(["cpu:0", "cpu:1"], tmp_path, stop_at=CheckpointWritten, **CONTINUE)
    assert first.result.status == "interrupted"
    assert list(first.result.summary["devices_lost"]) == ["cpu:0"]
    second = Run(["cpu:0", "cpu:1"], tmp_path, resume=True, **CONTINUE)
    assert second.result.summary["devices_lost"] == {}
    assert second.result.summary["split"] == {"cpu:0": 120, "cpu:1": 120}
    np.testing.assert_allclose(second.weights, undisturbed.weights, atol=1e-4)


def test_sampling_where_no_device_can_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"sampler\.on_device is not supported by cpu:0 or cpu:1: set"):
        Run(["cpu:0", "cpu:1"], sampler={"on_device": True})


def test_who_samples_is_said_and_samplers_are_closed(
    undisturbed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    class Closing(Hops):
        def close(self) -> None:
            closed.append(self)

    monkeypatch.setattr(
        "hyrt.training.trainers.device_sampler",
        lambda device, graph: Closing(graph, -1, None) if device.info.name == "cpu:1" else None,
    )
    run = Run(["cpu:0", "cpu:1"], sampler={"on_device": True}, balance={"policy": "static"})
    np.testing.assert_allclose(run.weights, undisturbed.weights, atol=1e-4)
    assert "cpu:0 120 targets · cpu:1 120 targets (samples its own)" in run.of(RunStarted)[0].devices
    assert len(closed) == 1
    assert closed[0].drawn >= 2 * run.result.summary["steps"]


def test_the_memory_limit_reaches_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    opened = CpuDevice.open.__func__

    def note(cls, info, options):
        seen.append(options.memory_bytes)
        return opened(cls, info, options)

    monkeypatch.setattr(CpuDevice, "open", classmethod(note))
    Run(["cpu"], runtime={"device_memory_gib": 0.5})
    assert seen == [2**29]
