"""The kernels as synthesis takes them: C++14, and one array and one network in all of a launch."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hyrt_hls.simulator import HEADERS, KERNELS
from simulators import needs_compiler

_VENDORS_HEADERS = Path(__file__).parent / "synthesised"
_TOP = "hyrt_train"


@needs_compiler
@pytest.mark.parametrize("pes", [2, 8])
def test_synthesis_builds_each_kernel_once(pes: int, tmp_path: Path) -> None:
    """g++'s graph of calls, an edge for every call: paths from the top function are what is built.

    Templates of other arguments are other functions in it, and count as such. `scatter` and `gather` are
    called once, in loops over their units.
    """
    graph = tmp_path / "trainer.ci"
    _compile(pes, "-fcallgraph-info", "-o", tmp_path / "trainer.o")
    callers: dict[str, Counter[str]] = {}
    for source, target in re.findall(r'sourcename: "([^"]*)" targetname: "([^"]*)"', graph.read_text()):
        callers.setdefault(_symbol(target), Counter())[_symbol(source)] += 1

    def instances(symbol: str) -> int:
        if symbol == _TOP:
            return 1
        return sum(calls * instances(caller) for caller, calls in callers.get(symbol, Counter()).items())

    built: Counter[str] = Counter()
    for symbol in callers:
        built[_function(symbol)] += instances(symbol)
    once = ["systolic", "product_region", "scatter", "gather", "duplicate", "read_rows", "aggregate_region"]
    assert {name: built[name] for name in once} == dict.fromkeys(once, 1)
    # That more than one is counted shows here: each of a gather unit's n queues has one.
    assert built["refill"] == pes


@needs_compiler
@pytest.mark.parametrize("pes", [2, 4, 8])
def test_synthesis_takes_the_kernels_without_warnings(pes: int, tmp_path: Path) -> None:
    """Vitis HLS compiles C++14, and has no part of the simulation; optimised, g++ warns of more."""
    seen = _compile(pes, "-O2", "-o", tmp_path / "trainer.o")
    assert seen.stderr == ""
    source = _compile(pes, "-E", "-P", "-o", "-").stdout
    assert "SimulationError" not in source
    # The regions of the two kernels, and no third.
    assert source.count("#pragma HLS DATAFLOW") == 2


def _compile(pes: int, *options: str | Path) -> subprocess.CompletedProcess[str]:
    """As in the Makefile, our headers first and the vendor's after them."""
    return subprocess.run(
        [
            "g++",
            "-std=c++14",
            "-D__SYNTHESIS__",
            f"-DHYRT_PES={pes}",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unknown-pragmas",
            f"-I{HEADERS}",
            "-idirafter",
            _VENDORS_HEADERS,
            "-c",
            KERNELS / "trainer.cpp",
            *options,
        ],
        capture_output=True,
        text=True,
        check=True,
    )


def _symbol(title: str) -> str:
    """g++ puts the file's name before those of functions that other files may have too."""
    return title.rsplit(":", 1)[-1]


def _function(symbol: str) -> str:
    """`scatter` of `_ZN4hyrt7scatterILi4E...`."""
    named = re.match(r"_ZN4hyrt(\d+)", symbol)
    return symbol[named.end() :][: int(named[1])] if named else symbol
