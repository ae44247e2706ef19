"""Names that distributions declare in one entry-point group, from synthetic entry points."""

from __future__ import annotations

import os
import signal
import time
from importlib.metadata import EntryPoint

import pytest

from hyrt.errors import ConfigError, PluginConflictError, Terminated
from hyrt.runtime.entry_points import EntryPointGroup

GROUP = EntryPointGroup("acme.colours", "colour")


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint("red", "fractions:Fraction", "acme.colours"),
        EntryPoint("red", "fractions:Fraction", "acme.colours"),
        EntryPoint("green", "no_such_module:Green", "acme.colours"),
        EntryPoint("grey", "unit.runtime.test_entry_points:leaving", "acme.colours"),
        EntryPoint("mauve", "unit.runtime.test_entry_points:terminated", "acme.colours"),
        EntryPoint("blue", "one:Blue", "acme.colours"),
        EntryPoint("blue", "two:Blue", "acme.colours"),
        EntryPoint("cpu", "fractions:Fraction", "acme.other"),
    ]
    monkeypatch.setattr(
        "hyrt.runtime.entry_points.entry_points", lambda group: [e for e in entries if e.group == group]
    )


def __getattr__(name: str) -> object:
    if name == "leaving":
        raise SystemExit("the plug-in\n  wants to leave")
    if name == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    raise AttributeError(name)


def test_names_are_listed_without_importing() -> None:
    assert sorted(GROUP.entries_by_name()) == ["blue", "green", "grey", "mauve", "red"]
    assert GROUP.find_entry("green").value == "no_such_module:Green"


def test_a_name_is_loaded_though_its_installation_is_listed_twice() -> None:
    assert GROUP.load("red").__name__ == "Fraction"


def test_an_unknown_name_is_guessed_and_the_known_ones_listed() -> None:
    wanted = (
        r"unknown colour 'gren' \(did you mean 'green'\?\): the known ones are blue, green, grey, mauve, red$"
    )
    with pytest.raises(ConfigError, match=wanted):
        GROUP.load("gren")


def test_what_two_declare_is_a_conflict_that_names_both() -> None:
    with pytest.raises(PluginConflictError, match=r"colour 'blue' is declared by one:Blue and by two:Blue"):
        GROUP.load("blue")


@pytest.mark.parametrize(
    ("name", "why"), [("green", "No module named"), ("grey", "SystemExit: the plug-in wants")]
)
def test_a_broken_plug_in_is_an_error_of_ours_with_its_reason(name: str, why: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"colour '{name}' is broken, because .*{why}.*: update or uninstall"
    ):
        GROUP.load(name)


def test_a_group_without_any_name_says_that_hyrt_is_not_installed() -> None:
    with pytest.raises(ConfigError, match="unknown planet 'mars': none is registered: reinstall hyrt"):
        EntryPointGroup("acme.planets", "planet").load("mars")


def test_a_signal_that_ends_the_process_while_a_plug_in_is_imported_is_not_the_plug_ins_fault() -> None:
    before = signal.signal(signal.SIGTERM, Terminated.handle_signal)
    try:
        with pytest.raises(Terminated) as caught:
            GROUP.load("mauve")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert caught.value.code == 143
