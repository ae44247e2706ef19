"""The kernels' files."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from hyrt_devices.opencl.programs import _FILES, source_of


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
