"""Losses that were recorded once are still what is trained: the short form of `python tools/same_losses.py`.

On the kind of machine that the record is from, with its versions of the libraries, every bit has to be the
same. Elsewhere the sampled edges have to be the same, and the losses have to agree up to rounding.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from same_losses import RECORD, ROOT, compare, measure

CHOSEN = ["gin-resumed", "gat-two-cpus", "graphsage-sparse", "gcn-saint", "graphsage-opencl"]


@pytest.fixture(scope="module")
def recorded() -> Any:
    return json.loads(RECORD.read_text())


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return measure(ROOT, CHOSEN)


# The first of them trains all, and in a new checkout waits for kernels to be compiled.
@pytest.mark.limit(600)
@pytest.mark.parametrize("name", CHOSEN)
def test_losses_are_those_recorded(found: dict[str, Any], recorded: dict[str, Any], name: str) -> None:
    if "opencl" in name and not found["machine"]["opencl"]:
        pytest.skip("no OpenCL device: see hyrt devices")
    how, problems = compare(found, recorded, name)
    assert not problems, how


def changed(record: dict[str, Any], name: str, step: int, factor: float) -> dict[str, Any]:
    """A copy of a record in which the loss of a step is multiplied."""
    record = copy.deepcopy(record)
    losses = record["configurations"][name]["losses"].split()
    losses[step] = (float.fromhex(losses[step]) * factor).hex()
    record["configurations"][name]["losses"] = " ".join(losses)
    return record


@pytest.mark.parametrize(
    ("torch", "factor", "is_equal"),
    [
        ("the same", 1.0, True),
        ("the same", 1 + 2**-52, False),
        ("another", 1 + 2**-22, True),
        ("another", 1 + 1e-4, False),
        ("another", float("nan"), False),
    ],
)
def test_what_is_told_apart(recorded: dict[str, Any], torch: str, factor: float, is_equal: bool) -> None:
    other = changed(recorded, "gat-two-cpus", 7, factor)
    other["machine"]["torch"] += "" if torch == "the same" else torch
    _, problems = compare(other, recorded, "gat-two-cpus")
    assert (not problems) == is_equal
    assert is_equal or "first step 8" in problems[0]
    assert not compare(other, recorded, "gin-resumed")[1]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("edges", 1, "1 sampled edges instead of"),
        ("losses", "0x1p+0", "1 steps instead of 12"),
        ("weights", "", "weights"),
        ("metrics", {}, "metrics"),
        ("failed", "error: no memory", "error: no memory"),
    ],
)
def test_what_else_is_told_apart(recorded: dict[str, Any], key: str, value: Any, told: str) -> None:
    other = copy.deepcopy(recorded)
    other["configurations"]["gcn-saint"][key] = value
    assert told in "; ".join(compare(other, recorded, "gcn-saint")[1])


def test_bits_depend_only_on_the_parts_of_a_machine_that_are_used(recorded: dict[str, Any]) -> None:
    other = changed(copy.deepcopy(recorded), "gcn-saint", 0, 1 + 2**-52)
    other["machine"] |= {"opencl": "another", "compiler": "another"}
    assert compare(other, recorded, "gcn-saint")[1]
    assert "opencl" in compare(other, recorded, "gcn-cpu-opencl")[0]
