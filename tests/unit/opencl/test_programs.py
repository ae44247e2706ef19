"""The kernels' files."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from hyrt_devices.opencl.programs import _FILES, Programs, source_of


def test_every_file_belongs_to_a_program() -> None:
    there = {
        path.name
        for path in (files("hyrt_devices.opencl") / "kernels").iterdir()
        if path.name.endswith(".cl")
    }
    assert there == {f"{file}.cl" for used in _FILES.values() for file in used}


@pytest.mark.parametrize("program", _FILES)
def test_kernels_say_their_work_group_size_and_other_functions_are_static(program: str) -> None:
    """A local size left open is compiled anew for each global size; C's plain `inline` need not be linked."""
    source = source_of(program)
    assert len(re.findall(r"__kernel", source)) == len(re.findall(r"reqd_work_group_size", source)) > 0
    assert not re.findall(r"^\s*inline", source, re.MULTILINE)


@pytest.mark.parametrize(("failures", "builds"), [(0, 1), (2, 3), (3, 3)])
def test_a_build_that_fails_is_tried_three_times(
    failures: int, builds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may be at the same place of PoCL's cache."""
    cl = pytest.importorskip("pyopencl")
    tried: list[list[str]] = []

    class Program:
        def __init__(self, context: object, source: str) -> None:
            assert source == source_of("sample")

        def build(self, options: list[str], devices: list[object]) -> str:
            tried.append(options)
            if len(tried) <= failures:
                raise cl.RuntimeError("BUILD_PROGRAM_FAILURE")
            return "built"

    monkeypatch.setattr(cl, "Program", Program)
    programs = Programs("context", "device")
    if failures < 3:
        assert programs.built("sample", {"GRAIN": 2}) == "built"
    else:
        with pytest.raises(cl.RuntimeError, match="BUILD_PROGRAM_FAILURE"):
            programs.built("sample", {"GRAIN": 2})
    assert tried == [["-cl-mad-enable", "-DGRAIN=2"]] * builds


def test_the_oldest_of_many_programs_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []

    def build(self: Programs, source: str, options: list[str]) -> str:
        made.append(options)
        return "built"

    monkeypatch.setattr("hyrt_devices.opencl.programs._MAX_PROGRAMS", 2)
    monkeypatch.setattr(Programs, "_build", build)
    programs = Programs("context", "device")
    for grain in (1, 2, 3, 3, 2, 1):
        programs.built("sample", {"GRAIN": grain})
    assert [options[-1] for options in made] == [f"-DGRAIN={grain}" for grain in (1, 2, 3, 1)]
