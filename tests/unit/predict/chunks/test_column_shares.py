"""Devices that share a whole graph get shares by their measured rates, unless the settings say otherwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hyrt_perfmodel.platform import Accelerator, Host, Platform, TrainerRates
from hyrt_perfmodel.platform_file import Calibration

from hyrt.config import Config, build_config
from hyrt.graph import open_graph
from hyrt.predict import choose_devices as column_shares
from hyrt.predict.calibrate.store import describe_machine
from hyrt.predict.choose_devices import share_columns
from hyrt.training.setup import PreparedRun

RATES = TrainerRates(memory_gb_s=8.0, macs_per_s=4e10, launch_s=0.0)
SLOWER = replace(RATES, memory_gb_s=2.0, macs_per_s=1e10)


def device(rates: TrainerRates) -> Accelerator:
    return Accelerator(
        kind="opencl",
        memory_gb_s=rates.memory_gb_s,
        macs_per_s=rates.macs_per_s,
        link_gb_s=float("inf"),
        models={"gcn": rates, "graphsage": rates},
    )


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calibration with two devices, of which one is four times as fast as the other in everything."""
    platform = Platform(
        name="made up",
        host=Host(memory_gb_s=8.0, macs_per_s=4e10, trains=False),
        accelerators=(device(SLOWER), device(RATES)),
    )
    machine = describe_machine({"opencl:0": "made up", "opencl:1": "made up"})
    found = Calibration(machine=machine, date="2026-01-01", seconds=1.0, platform=platform, measured={})
    monkeypatch.setattr(column_shares, "usable_calibration", lambda: (found, ""))


def settings(devices: list[str], **more: Any) -> Config:
    return build_config({"devices": devices, "sampler": {"kind": "full"}, "model": {"kind": "gcn"}, **more})


def shared(config: Config, model: torch.nn.Module | None = None) -> tuple[list[str], str]:
    prepared = PreparedRun(config, open_graph("synthetic:tiny"), model)
    found, said = share_columns(config, prepared)
    return list(found.devices), said


@pytest.mark.parametrize(
    ("devices", "dealt"),
    [
        (["opencl:0", "opencl:1"], ["opencl:0=0.25", "opencl:1=1"]),
        (["opencl:1", "opencl:0"], ["opencl:1=1", "opencl:0=0.25"]),
        (["opencl", "opencl:1"], ["opencl:0=0.25", "opencl:1=1"]),
    ],
)
def test_shares_are_as_the_rates(measured: None, devices: list[str], dealt: list[str]) -> None:
    found, said = shared(settings(devices))
    assert found == dealt
    assert said == f"chunk columns are distributed by measured rates: {', '.join(dealt)}"


@pytest.mark.parametrize(
    ("devices", "more"),
    [
        (["opencl:0"], {}),
        (["opencl:0=1", "opencl:1=1"], {}),
        (["opencl:0=1", "opencl:1=0"], {}),
        (["opencl:0", "opencl:1"], {"balance": {"predict": False}}),
        (["opencl:0", "opencl:1"], {"sampler": {"kind": "neighbor"}}),
    ],
)
def test_what_the_settings_say_stays(measured: None, devices: list[str], more: dict[str, Any]) -> None:
    assert shared(settings(devices, **more)) == (devices, "")


def test_without_rates_all_get_as_much_and_it_is_said(
    measured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings(["cuda", "opencl:1"])
    found, said = shared(config)
    assert found == ["cuda", "opencl:1"]
    assert "the calibrated devices are opencl:0, opencl:1" in said
    for reason, told in (
        ("", "run `hyrt calibrate --all`"),
        ("the calibration was made", "calibration was made"),
    ):
        monkeypatch.setattr(column_shares, "usable_calibration", lambda reason=reason: (None, reason))
        found, said = shared(config)
        assert found == ["cuda", "opencl:1"]
        assert said.startswith("every device gets the same number of chunk columns, because ")
        assert told in said
