from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from hyrt import registry
from hyrt.errors import DeviceUnavailable, PluginConflict


def declare(monkeypatch: pytest.MonkeyPatch, *entries: EntryPoint) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [e for e in entries if e.group == group])


def entry(name: str, value: str, group: str = registry.GROUP) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=group)


def test_built_in_backends_are_declared_like_any_other() -> None:
    assert {"cpu", "null"} <= registry.backends().keys()


def test_listing_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "no_such_module:Npu"))
    assert list(registry.backends()) == ["npu"]


def test_a_broken_backend_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "no_such_module:Npu"))
    with pytest.raises(DeviceUnavailable, match=r"npu: .*no_such_module:Npu cannot be imported: No module"):
        registry.find_device("npu")


def test_two_backends_of_one_kind_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch, entry("npu", "acme:Npu"), entry("npu", "other:Npu"))
    with pytest.raises(PluginConflict, match=r"'npu' is declared by acme:Npu and by other:Npu"):
        registry.backends()


def test_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(DeviceUnavailable, match=r"no device kind 'gpu': there are .*cpu.*null"):
        registry.find_device("gpu")


@pytest.mark.parametrize("name", ["null:99", "cpu:1000"])
def test_a_device_that_is_not_there_says_what_is(name: str) -> None:
    with pytest.raises(DeviceUnavailable, match=rf"{name} is not there: found {name.split(':')[0]}:0"):
        registry.find_device(name)


def test_a_name_that_cannot_be_read() -> None:
    with pytest.raises(DeviceUnavailable, match="write kind or kind:number"):
        registry.find_device("cpu:first")


def test_cpu_is_found_by_kind_alone() -> None:
    backend, info = registry.find_device("cpu")
    assert info.name == "cpu:0"
    assert backend.probe()[0] == info
    assert not info.simulated
    assert registry.find_device("null")[1].simulated
