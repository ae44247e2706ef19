"""The systolic array's cycles, and what describes a design."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hyrt_perfmodel.fpga_design import FpgaDesign, systolic_cycles
from unit.perfmodel.array_by_registers import simulate_tiles


@settings(max_examples=60)
@given(
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(),
)
def test_the_formula_equals_the_simulation(
    rows: int, cells: int, k: int, tiles: int, interval: int, seed: int
) -> None:
    random = np.random.default_rng(abs(seed))
    a, b = random.integers(-99, 99, (tiles, rows, k)), random.integers(-99, 99, (tiles, k, cells))
    design = FpgaDesign(mac_rows=rows, mac_cols=16 * cells, update_ii=interval)
    products, cycles = simulate_tiles(a, b, design)
    np.testing.assert_array_equal(products, a @ b)
    assert cycles == systolic_cycles(tiles * rows, k, 16 * cells, design, overlapped=True)


def test_a_tile_takes_k_and_the_way_to_the_farthest_cell() -> None:
    design = FpgaDesign(mac_rows=32, mac_cols=64)
    assert systolic_cycles(32, 256, 64, design) == 256 + 32 + 4 - 2
    # Tiles at the edges take as long: 3 x 2 of them.
    assert systolic_cycles(65, 256, 65, design) == 6 * (256 + 32 + 4 - 2)
    assert systolic_cycles(65, 256, 65, design, overlapped=True) == 6 * 256 + 32 + 4 - 2
    assert systolic_cycles(0, 256, 64, design) == 0
    with pytest.raises(ValueError, match="-1"):
        systolic_cycles(-1, 2, 3, design)


def test_tiles_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="2 x 1 cells"):
        simulate_tiles(
            np.ones((1, 3, 4), np.int64), np.ones((1, 4, 1), np.int64), FpgaDesign(mac_rows=2, mac_cols=16)
        )


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("pes", 0, "pes must be an integer of at least 1, got 0"),
        ("pes", 65, "at most 64"),
        ("fifo_depth", 2.5, "fifo_depth must be an integer of at least 1, got 2.5"),
        ("mac_cols", True, "mac_cols must be an integer of at least 1, got True"),
        ("clock_hz", 0.0, "clock_hz"),
        ("ddr_efficiency", 1.5, "at most 1"),
        ("launch_s", -1.0, "launch_s"),
        ("assumed", frozenset({"colour"}), "colour"),
    ],
)
def test_a_design_checks_itself(field: str, value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        replace(FpgaDesign(), **{field: value})


def test_a_design_says_what_is_assumed() -> None:
    assert {"clock_hz", "update_ii", "ddr_efficiency"} <= FpgaDesign().assumed
    assert FpgaDesign(mac_rows=32, mac_cols=64).macs == 2048
