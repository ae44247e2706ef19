"""Streams in both modes, in processes and on a test bench; and a vendor's streams in their place."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import hyrt_hls
import pytest
from hyrt_hls.simulator import compile_library
from simulators import hls4mls_headers
from unit.hls.simulated_streams import FOLDER, MISSING, SimulationError, run_case

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

KERNELS = Path(hyrt_hls.__file__).parent / "kernels"
MODES = pytest.mark.parametrize("bounded", [False, True])


@MODES
def test_values_come_in_order_however_the_ring_turns(bounded: bool) -> None:
    assert run_case("ring", 2000, bounded=bounded) == 0


@MODES
def test_a_bench_fills_and_empties_streams_outside_processes(bounded: bool) -> None:
    # Outside a process no depth binds; inside, 40 values pass a stream of depth 2.
    expected = 0
    for value in [*range(0, 78, 2), 78]:
        expected = (expected * 31 + value) % 2**64
    assert run_case("bench", bounded=bounded) == expected


@MODES
def test_reading_nothing_outside_a_process(bounded: bool) -> None:
    with pytest.raises(
        SimulationError, match="code outside any process reads from stream 'nothing', which is empty"
    ):
        run_case("empty_bench", bounded=bounded)


def test_reading_nothing_in_a_process() -> None:
    with pytest.raises(
        SimulationError,
        match="process 'request' of region 'requesting' reads from stream 'replies', which is empty",
    ):
        run_case("request_reply", 1, 1, bounded=False)


@MODES
@pytest.mark.parametrize(("in_process", "values"), [(0, 2), (1, 1)])
def test_values_that_nobody_reads_are_an_error(bounded: bool, in_process: int, values: int) -> None:
    with pytest.raises(SimulationError, match=rf"left in stream 'forgotten' \({values} values\)"):
        run_case("leaves_values", in_process, bounded=bounded)
    # It does not stay with the thread.
    assert run_case("ring", 1, bounded=bounded) == 0


@MODES
def test_a_region_without_its_join_is_an_error(bounded: bool) -> None:
    with pytest.raises(SimulationError, match="region 'open_region' is left without HYRT_JOIN"):
        run_case("not_joined", bounded=bounded)


@MODES
def test_a_depth_of_nothing_is_an_error(bounded: bool) -> None:
    with pytest.raises(SimulationError, match="stream 'values' has depth 0"):
        run_case("bad_depth", bounded=bounded)


def test_the_kernels_streams_are_as_deep_in_simulation_as_in_synthesis() -> None:
    for path in sorted(KERNELS.iterdir()):
        text = path.read_text(encoding="utf-8")
        pragmas = re.findall(
            r"#pragma HLS stream variable\s*=\s*(\w+) depth\s*=\s*(\w+)", text, re.IGNORECASE
        )
        simulated = re.findall(r"HYRT_DEPTH\((\w+), (.+)\);", text)
        assert pragmas == simulated, path.name
        streams = re.findall(r"^\s*hls::stream<[^;()]*> (\w+)[^;{]*;", text, re.MULTILINE)
        assert sorted(streams) == sorted(name for name, _ in simulated), path.name


def test_a_kernel_compiles_against_hls4mls_streams() -> None:
    headers = hls4mls_headers()
    libraries = [
        ctypes.CDLL(str(compile_library([FOLDER / "chain.cpp"], include=include, bounded=bounded)))
        for include, bounded in (([headers], False), ([], False), ([], True))
    ]
    assert [library.vendor_streams() for library in libraries] == [1, 0, 0]
    results = []
    for library in libraries:
        out = (ctypes.c_float * 16)()
        message = ctypes.create_string_buffer(1000)
        assert library.chain(out, 100, message, 1000) == 0, message.value
        results.append(list(out))
    # 0.5 i + lane, summed over i < 100: exact in float32.
    assert results == [[0.5 * 4950 + 100 * lane for lane in range(16)]] * 3
