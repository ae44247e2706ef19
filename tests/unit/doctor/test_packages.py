from __future__ import annotations

from importlib import metadata

import pytest

from hyrt.doctor.software_checks import (
    Requirement,
    check_packages,
    check_python,
    declared_requirements,
    evaluate_packages,
)
from hyrt.runtime.isolated_worker import Answer, IsolatedWorker


def said(version: str | None, origin: str = "/site/x.py") -> Answer:
    return Answer(({"origin": origin}, {"version": version, "import_s": 0.1}))


def states(wanted: Requirement, answer: Answer) -> list[tuple[str, str, str]]:
    found = evaluate_packages([wanted], {wanted.module: answer})
    return [(each.check, each.state, each.found) for each in found[1:]]


def test_requirements_are_those_declared_without_extras() -> None:
    found = {each.package: each for each in declared_requirements() or []}
    assert {"torch", "numpy", "numba", "pyyaml", "rich"} <= found.keys()
    assert not {"ogb", "pyopencl", "pytest", "ruff"} & found.keys()
    assert found["pyyaml"].module == "yaml"
    assert str(found["torch"]).startswith("torch>=2.")


def test_this_python_is_new_enough() -> None:
    assert [found.state for found in check_python()] == ["ok"]


def test_installed_packages_are_imported_elsewhere() -> None:
    with IsolatedWorker() as children:
        found = check_packages(children, 60.0)
    assert [each.state for each in found] == ["ok"]
    for package, version in found[0].figures["versions"].items():
        assert version == metadata.version(package)


def test_a_missing_package_is_to_be_installed() -> None:
    wanted = Requirement("no-such-package", "1.2")
    (found,) = evaluate_packages([wanted], {"no_such_package": Answer(problem="ModuleNotFoundError: ...")})[
        1:
    ]
    assert (found.state, found.found) == ("broken", "is not installed")
    assert found.remedy == "pip install 'no-such-package>=1.2'"


def test_a_package_that_breaks_names_its_place_and_reason() -> None:
    answer = Answer(({"origin": "/bad/numpy/__init__.py"},), "RuntimeError: boom")
    ((check, state, found),) = states(Requirement("numpy", "1.26"), answer)
    assert (check, state) == ("package numpy", "broken")
    assert found == "cannot be imported from /bad/numpy/__init__.py: RuntimeError: boom"


@pytest.mark.parametrize(
    ("running", "least", "state"),
    [
        ("1.9.0", "1.10", "broken"),
        ("1.25.9", "1.26", "broken"),
        ("0.9rc1+cpu", "1", "broken"),
    ],
)
def test_versions_are_compared_as_numbers(running: str, least: str, state: str) -> None:
    assert [each[1] for each in states(Requirement("numpy", least), said(running))] == [state]


def test_the_installed_version_is_new_enough() -> None:
    version = metadata.version("numpy")
    assert states(Requirement("numpy", version), said(version)) == []
    assert states(Requirement("numpy", ""), said(None)) == []


def test_a_package_that_hides_another_is_a_warning() -> None:
    ((_, state, found),) = states(Requirement("numpy", "1.26"), said("99.1", "/mine/numpy.py"))
    assert state == "warning"
    assert found.startswith("reports version 99.1 (/mine/numpy.py), but ")


def test_zeros_at_the_end_of_a_version_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for installed, running, least in [("2", "2", "2.0"), ("2.0.0", "2", "1.26"), ("2", "2.0.0", "2.0.0")]:
        monkeypatch.setattr(metadata, "version", lambda package, installed=installed: installed)
        assert states(Requirement("numpy", least), said(running)) == []
