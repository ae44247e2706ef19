"""Packages that claim names of hyrt's: only who uses such a name is hindered."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from hyrt_devices.cpu import CpuDevice

from hyrt.config import Config
from hyrt.doctor.software_checks import DEFAULT_KINDS, check_plug_ins
from hyrt.runtime import entry_points
from hyrt.testing import check_device


@pytest.fixture
def second_gcn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package that declares the model gcn."""
    real = entry_points.entry_points

    def found(group: str) -> list[EntryPoint]:
        mine = [EntryPoint("gcn", "acme:Gcn", "hyrt.models")] if group == "hyrt.models" else []
        return [*real(group=group), *mine]

    monkeypatch.setattr(entry_points, "entry_points", found)


def test_the_kinds_of_a_run_without_settings_are_the_defaults() -> None:
    config = Config(data={"source": "synthetic:tiny"})
    kinds = {"sampler": config.sampler.kind, "model": config.model.kind, "objective": config.train.objective}
    assert kinds == DEFAULT_KINDS


def test_without_other_packages_there_is_nothing_to_say() -> None:
    assert check_plug_ins(DEFAULT_KINDS) == []


@pytest.mark.parametrize(("model", "state"), [("graphsage", "warning"), ("gcn", "broken")])
def test_a_name_that_two_claim_hinders_who_uses_it(model: str, state: str, second_gcn: None) -> None:
    (found,) = check_plug_ins({**DEFAULT_KINDS, "model": model})
    assert found.state == state
    assert found.found.startswith("model.kind 'gcn' is declared by acme:Gcn and by hyrt ")
    # Not hyrt itself.
    assert found.remedy == "uninstall acme:Gcn"


def test_no_device_is_blamed_for_it(second_gcn: None) -> None:
    info = CpuDevice.probe()[0]
    sums = "form in_place gives the same sums"
    report = check_device(lambda options: CpuDevice(info, options), cycles=1, only=sums)
    assert report.passed
    assert not report.failed
    report = check_device(lambda options: CpuDevice(info, options), cycles=1, only="float64: gcn, layers=1")
    (verdict,) = report.verdicts
    assert verdict.outcome == "skipped"
    assert "uninstall acme:Gcn" in verdict.detail
