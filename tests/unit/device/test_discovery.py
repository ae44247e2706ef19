from __future__ import annotations

import ctypes
import math
import os
import subprocess
import time
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hyrt.device import DeviceInfo, Rates
from hyrt.device import discovery as registry
from hyrt.device.capabilities import ExplainsMissing
from hyrt.errors import DeviceUnavailableError, PluginConflictError


def declare(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    found = list(entries)
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points", lambda group: [e for e in found if e.group == group]
    )


def entry(name: str, value: str, group: str = registry.BACKENDS.group) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=group)


def test_built_in_backends_are_declared_like_any_other() -> None:
    assert {"cpu", "null"} <= registry.BACKENDS.entries_by_name().keys()


def test_listing_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "no_such_module:Npu"))
    assert list(registry.BACKENDS.entries_by_name()) == ["npu"]


def test_a_broken_backend_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "no_such_module:Npu"))
    with pytest.raises(
        DeviceUnavailableError, match=r"the backend of npu, no_such_module:Npu .*, is broken .*No module"
    ):
        registry.find_device("npu")


def test_two_backends_of_one_kind_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "acme:Npu"), entry("npu", "other:Npu"))
    with pytest.raises(PluginConflictError, match=r"'npu' is declared by acme:Npu and by other:Npu"):
        registry.BACKENDS.find_entry("npu")


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(
        DeviceUnavailableError, match=r"unknown device kind 'tpux.*: the known ones are .*cpu.*null"
    ):
        registry.find_device("tpux")


def test_the_case_of_a_kind_does_not_matter() -> None:
    assert registry.find_device("CPU")[1].name == registry.find_device("cpu:0")[1].name == "cpu:0"
    assert registry.find_device("Null:1")[1].name == "null:1"


def test_a_misspelt_kind_is_guessed() -> None:
    with pytest.raises(
        DeviceUnavailableError, match=r"unknown device kind 'opencI' \(did you mean 'opencl'\?\)"
    ):
        registry.find_device("opencI:0")


@pytest.mark.parametrize("name", ["null:99", "cpu:1000"])
def test_a_device_that_is_not_there_says_what_is(name: str) -> None:
    with pytest.raises(
        DeviceUnavailableError,
        match=rf"{name} is not available \(the \w+ devices are \w+:0(, \w+:\d)* and \w+:\d\): see",
    ):
        registry.find_device(name)


@pytest.mark.parametrize("number", ["first", "١", "1" * 5000, "-1", "0x1", " 1", "1_0"])
def test_a_name_that_cannot_be_read(number: str) -> None:
    with pytest.raises(DeviceUnavailableError, match="use kind or kind:number"):
        registry.find_device(f"cpu:{number}")


def test_cpu_is_found_by_kind_alone() -> None:
    backend, info = registry.find_device("cpu")
    assert info.name == "cpu:0"
    assert backend.probe()[0] == info
    assert not info.simulated
    assert registry.find_device("null")[1].simulated


def test_a_missing_device_says_why_in_its_backends_words(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "unit.device.test_discovery:Absent"))
    with pytest.raises(
        DeviceUnavailableError, match=r"npu:0 is not available \(no driver: install acme-driver\): see"
    ):
        registry.find_device("npu")


def test_a_backend_that_raises_or_hangs_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(
        monkeypatch,
        entry("b", "unit.device.test_discovery:Broken"),
        entry("h", "unit.device.test_discovery:Hesitating"),
    )
    with pytest.raises(
        DeviceUnavailableError,
        match=r"backend of b, .* is broken \(SystemExit: the driver wants to leave\): update or uninstall",
    ):
        registry.find_device("b")
    with pytest.raises(DeviceUnavailableError, match=r"backend of h, .* is hanging .* within 0.1 s"):
        registry.find_device("h", timeout_s=0.1)


def test_an_import_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a slow disk, importing torch takes longer than any driver may take to answer."""
    for part in range(6):
        (tmp_path / f"slow_part_{part}.py").write_text("import time\ntime.sleep(0.25)\n")
    (tmp_path / "slow_backend.py").write_text(
        "".join(f"import slow_part_{part}\n" for part in range(6))
        + "from unit.device.test_discovery import Present as Slow\n"
    )
    (tmp_path / "stuck_backend.py").write_text("import time\ntime.sleep(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    declare(monkeypatch, entry("npu", "slow_backend:Slow"), entry("stuck", "stuck_backend:Stuck"))
    assert registry.find_device("npu", timeout_s=1.2)[1] == Present.probe()[0]
    with pytest.raises(
        DeviceUnavailableError,
        match=r"backend of stuck, .* is hanging \(its import has made no progress for 0.1 s\): restart",
    ):
        registry.find_device("stuck", timeout_s=0.1)


class Absent(ExplainsMissing):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return []

    @classmethod
    def missing(cls) -> str:
        return "no driver: install acme-driver"


class Broken(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        raise SystemExit("the driver\n  wants to leave")


class Hanging(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        time.sleep(4)
        return []


class Hesitating(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        time.sleep(1)
        return []


class Crashing(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        ctypes.string_at(0)
        return []


class Ending(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        os._exit(3)


class Misnamed(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        return [DeviceInfo(kind="other", index=0, description="Acme 9", memory_bytes=2**30)]


class Present(Absent):
    @classmethod
    def probe(cls) -> list[DeviceInfo]:
        rates = Rates(
            macs_per_s=1e12,
            memory_bytes_per_s=1e11,
            link_bytes_per_s=math.inf,
            source="assumed: a data sheet",
        )
        more: dict[str, Any] = {"forms": ("rows", "ids"), "rates": rates, "link": "PCIe", "zero_copy": True}
        return [DeviceInfo(kind="npu", index=0, description="Acme 9", memory_bytes=2**30, **more)]


def surveyed(monkeypatch: pytest.MonkeyPatch, **kinds: str) -> dict[str, registry.ProbeResult]:
    declare(monkeypatch, *(entry(kind, f"unit.device.test_discovery:{name}") for kind, name in kinds.items()))
    return {survey.kind: survey for survey in registry.survey_devices(timeout_s=1.5)}


def test_every_backend_is_a_line_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    found = surveyed(
        monkeypatch,
        a="Absent",
        b="Broken",
        c="Crashing",
        e="Ending",
        h="Hanging",
        npu="Present",
        g="Gone",
        m="Misnamed",
    )
    assert found["a"].problem == "no driver: install acme-driver"
    assert found["b"].problem.startswith(
        "broken (SystemExit: the driver wants to leave): update or uninstall "
    )
    assert found["h"].problem.startswith("hanging (no answer within 1.5 s, at ")
    assert found["h"].problem.endswith(" in probe): restart its driver, or the machine")
    assert found["e"].problem.startswith("broken (ends its process with exit code 3")
    assert found["c"].problem.startswith("broken (crashes with SIGSEGV, at ")
    assert "Gone" in found["g"].problem
    # As it was found in another process.
    assert list(found["npu"].found) == Present.probe()
    # What a backend says about missing devices is about having none.
    assert not found["npu"].problem
    assert found["m"].problem.startswith(
        "broken (its probe returned a device of kind 'other', expected 'm'): update or"
    )
    assert not any("\n" in survey.problem for survey in found.values())


def test_a_conflict_is_a_line_that_names_both(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(
        monkeypatch,
        entry("npu", "acme:Npu"),
        entry("npu", "other:Npu"),
        entry("cpu", "hyrt_devices.cpu:CpuDevice"),
    )
    npu, cpu = registry.survey_devices()
    assert "acme:Npu and by other:Npu: uninstall one" in npu.problem
    assert cpu.found


def test_an_installation_that_is_listed_twice_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "acme:Npu"), entry("npu", "acme:Npu"))
    assert list(registry.BACKENDS.entries_by_name()) == ["npu"]


def test_built_in_backends_are_asked_without_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []
    monkeypatch.setattr(subprocess, "Popen", lambda *words, **more: started.append(words))
    (entry,) = registry.BACKENDS.entries_by_name()["null"]
    declared = {"null": [entry]}
    monkeypatch.setattr(registry.EntryPointGroup, "entries_by_name", lambda self: declared)
    (survey,) = registry.survey_devices()
    assert survey.found
    assert not survey.is_foreign
    assert registry.find_device("null")[1].kind == "null"
    assert not started


def test_where_no_process_can_be_started_the_others_are_still_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **more: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("hyrt.runtime.isolated_worker.subprocess.Popen", refuse)
    found = surveyed(monkeypatch, npu="Present")
    assert found["npu"].problem.startswith("no process could be started to ask it: ")
