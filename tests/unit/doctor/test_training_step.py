"""The step that the doctor trains: what it accepts, and that it refuses wrong sums."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hyrt_devices.cpu import CpuDevice
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceInfo, StepResult
from hyrt.device.capabilities import ExplainsMissing
from hyrt.doctor import device_probes as backends


class WrongDevice(CpuDevice):
    """One gradient is a hundredth off."""

    def propagate(self, staged: Any) -> StepResult:
        result = super().propagate(staged)
        result.gradients = [result.gradients[0] * 1.01, *result.gradients[1:]]
        return result


class ForgetfulDevice(CpuDevice):
    """Keeps the weights that it was loaded with."""

    def update(self, parameters: Any) -> None:
        if not getattr(self, "loaded", False):
            super().update(parameters)
        self.loaded = True


class MisnamedDevice(CpuDevice):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [DeviceInfo(kind="other", index=0, description="", memory_bytes=0)]


class AbsentDevice(CpuDevice, ExplainsMissing):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return []

    @classmethod
    def missing(cls) -> str:
        return "install a driver"


def said(monkeypatch: pytest.MonkeyPatch, kind: str, backend: type) -> list[dict[str, Any]]:
    declared = {kind: SimpleNamespace(name=kind, load=lambda: backend)}
    monkeypatch.setattr(backends, "BACKENDS", SimpleNamespace(find_entry=declared.__getitem__))
    monkeypatch.setattr("hyrt.runtime.process_setup.prepare_process", lambda: None)
    heard: list[dict[str, Any]] = []
    backends.probe_backend(kind, lambda **more: heard.append(more), threads=2)
    return heard


def test_a_sound_device_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    found, begun, trained = said(monkeypatch, "cpu", CpuDevice)
    assert len(found["found"]) >= 2
    # Those that share the host's cores are tried once.
    assert (begun["device"], trained["event"]) == ("cpu:0", "trained")
    assert trained["computes"] is True


def test_a_device_that_computes_nothing_is_let_through(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = said(monkeypatch, "null", NullDevice)[-1]
    assert (trained["event"], trained["computes"]) == ("trained", False)


@pytest.mark.parametrize(("backend", "words"), [(WrongDevice, "gradient 0"), (ForgetfulDevice, "loss sum")])
def test_wrong_sums_are_refused(monkeypatch: pytest.MonkeyPatch, backend: type, words: str) -> None:
    last = said(monkeypatch, "cpu", backend)[-1]
    assert last["event"] == "failed"
    assert words in last["why"]
    assert last["why"].startswith("expected "), "no class name before it"


def test_a_probe_that_finds_nothing_or_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, "cpu", AbsentDevice) == [{"missing": "install a driver"}]
    with pytest.raises(Exception, match="returned a device of kind"):
        said(monkeypatch, "cpu", MisnamedDevice)
