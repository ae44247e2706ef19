"""What a trainer takes of a part, against numbers worked out by hand and against the paper's."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from hyrt_hls.fpga_part import load_part, part_names
from hyrt_hls.resources import (
    Resources,
    arena_sizes,
    check_buildable,
    check_fits,
    estimate_resources,
    estimate_uram,
    published_lut,
    widest_stream_bits,
)
from hyrt_hls.simulator import HEADERS, KERNELS
from hyrt_perfmodel.fpga_design import FpgaDesign
from simulators import needs_compiler

PAPER = FpgaDesign(pes=8, mac_rows=32, mac_cols=64)


def test_the_papers_design() -> None:
    """Table IV of HyScale-GNN, to the digits it has; where this estimate is another, by how much."""
    u250 = load_part("u250")
    table = {"lut": 0.72, "dsp": 0.90, "uram": 0.48, "bram36": 0.40}
    found = estimate_resources(PAPER, u250.arena_words).fractions_of(u250)
    assert found["dsp"] == (5 * 2048 + 112 * 8) / 12288
    assert found["dsp"] == pytest.approx(table["dsp"], abs=0.01)
    assert published_lut(PAPER) / u250.lut == pytest.approx(table["lut"], abs=0.005)
    # On top 64 queues of 545 shift registers, and 48 tables of partial sums a multiply-accumulate.
    assert found["lut"] - published_lut(PAPER) / u250.lut == pytest.approx((64 * 545 + 48 * 2048) / 1_728_000)
    assert found["lut"] == pytest.approx(0.799, abs=0.0005)
    # 8 banks of 5 + 3 UltraRAM in depth, 4 x 2 of the panel, all 8 wide.
    assert found["uram"] == 8 * (8 * 8 + 4 * 2) / 1280
    assert found["uram"] == pytest.approx(table["uram"], abs=0.03)
    # These kernels keep in UltraRAM what the paper's kept in block RAM.
    assert found["bram36"] == pytest.approx(0.03, abs=0.005)
    assert found["bram36"] < table["bram36"]


def test_tables_by_hand() -> None:
    assert published_lut(FpgaDesign(pes=4, mac_rows=16, mac_cols=16)) == 470 * 256 + 21715 * 4 + 4610 * 4 * 2
    assert published_lut(FpgaDesign(pes=1, mac_rows=1, mac_cols=1)) == 470 + 21715


@given(st.integers(1, 64), st.integers(2, 200_000))
def test_the_arena_holds_what_was_asked_for(pes: int, words: int) -> None:
    design = FpgaDesign(pes=pes, mac_cols=16)
    banks, rest = divmod(estimate_uram(design, words) // 8 - 2, pes)
    assert rest == 0
    assert 4096 * (banks - 2) < words <= 4096 * banks


@pytest.mark.parametrize("pes", [1, 8, 16])
def test_arena_sizes_fill_their_memories(pes: int) -> None:
    part = load_part("u250")
    design = FpgaDesign(pes=pes)
    sizes = list(arena_sizes(part, pes))
    taken = [estimate_uram(design, words) for words in sizes]
    assert taken == sorted(set(taken))
    for words, blocks in zip(sizes, taken, strict=True):
        assert estimate_uram(design, words + 2) > blocks


def test_deep_queues_are_block_ram() -> None:
    shallow, deep, deeper = (
        estimate_resources(FpgaDesign(pes=4, fifo_depth=depth), 4096) for depth in (32, 33, 513)
    )
    assert deep.lut == shallow.lut - 16 * 545
    assert deep.bram36 == shallow.bram36 + 16 * math.ceil(545 / 72)
    assert deeper.bram36 == shallow.bram36 + 2 * 16 * math.ceil(545 / 72)


@pytest.mark.parametrize("name", part_names())
def test_the_default_of_each_part_fits(name: str) -> None:
    part = load_part(name)
    design = FpgaDesign(pes=part.pes, mac_rows=part.mac_rows, mac_cols=part.mac_cols)
    check_fits(part, estimate_resources(design, part.arena_words))


@pytest.mark.parametrize(
    ("resource", "remedy"),
    [("dsp", "n or m"), ("lut", "n or m"), ("bram36", "n or fifo_depth"), ("uram", "n or arena_words")],
)
def test_what_does_not_fit_is_refused(resource: str, remedy: str) -> None:
    part = load_part("u250")
    have = {name: getattr(part, name) for name in ("dsp", "lut", "bram36", "uram")}
    check_fits(part, Resources(**have))
    over = {**have, resource: have[resource] + 1}
    with pytest.raises(ValueError, match="does not fit u250") as error:
        check_fits(part, Resources(**over))
    assert f"{resource} {have[resource] + 1:,} of {have[resource]:,}: reduce {remedy}" in str(error.value)
    assert sum(f"{name} " in str(error.value) for name in have) == 1


def test_no_arena() -> None:
    with pytest.raises(ValueError, match="arena: arena_words must be at least 1, got 0"):
        estimate_resources(PAPER, 0)


def test_slrs_and_data_sheets() -> None:
    parts = {name: load_part(name) for name in part_names()}
    assert {name: len(part.slr_dsp) for name, part in parts.items()} == {
        "u250": 4,
        "u200": 3,
        "u280": 3,
        "u50": 2,
    }
    # On UltraScale+ two flip-flops a table.
    assert all(part.ff == 2 * part.lut for part in parts.values())
    assert parts["u250"].dsp == 12_288


OWN = {
    "device": "xcu250-figd2104-2L-e",
    "platform": "xilinx_u250_gen3x16_xdma_4_1_202210_1",
    "source": "platforminfo",
    "dsp": 11_000,
    "lut": 1_500_000,
    "ff": 3_000_000,
    "bram36": 2_400,
    "uram": 1_200,
    "slr_dsp": [3_000, 3_000, 2_000, 3_000],
    "memory": {"kind": "DDR", "banks": 4, "peak_gb_s": 77},
    "trainer": {"pes": 8, "mac_rows": 32, "mac_cols": 32, "arena_words": 4096},
}


def test_a_part_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(OWN))
    part = load_part(str(file))
    assert (part.name, part.dsp, part.arena_words, part.peak_bytes_per_s) == ("mine", 11_000, 4096, 77e9)
    with pytest.raises(ValueError, match="dsp 11,136 of 11,000"):
        check_fits(part, estimate_resources(PAPER, 36_864))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"dsp": "many"}, "dsp must be an integer, got 'many'"),
        ({"dsp": 10_999}, "slr_dsp adds up to 11000, but dsp is 10999"),
        ({"slr_dsp": 11_000}, "slr_dsp must be a list, got 11000"),
        ({"uram": 0}, "uram must be an integer of at least 1, got 0"),
        ({"dps": 3}, "did you mean 'dsp'"),
        ({"device": 250}, "device must be a string, got 250"),
        (
            {"memory": {"kind": "SRAM", "banks": 4, "peak_gb_s": 77}},
            "must be one of 'DDR' or 'HBM', got 'SRAM'",
        ),
        (
            {"memory": {"kind": "DDR", "banks": 4, "peak_gb_s": 0}},
            "peak_gb_s must be a number above 0, got 0",
        ),
        ({"memory": {"kind": "DDR", "banks": 4}}, "peak_gb_s' is missing"),
        ({"trainer": {"pes": 8}}, "trainer: the key 'mac_rows' is missing"),
    ],
)
def test_wrong_parts(tmp_path: Path, change: dict[str, object], says: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**OWN, **change}))
    with pytest.raises(ValueError, match=r"mine\.yaml") as error:
        load_part(str(file))
    assert says in str(error.value)


def test_a_part_may_tell_its_clock(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**OWN, "clock_mhz": 250}))
    assert load_part(str(file)).clock_mhz == 250
    file.write_text(yaml.safe_dump(OWN))
    assert load_part(str(file)).clock_mhz is None
    file.write_text(yaml.safe_dump({**OWN, "clock_mhz": 0}))
    with pytest.raises(ValueError, match="clock_mhz must be an integer of at least 1, got 0"):
        load_part(str(file))


@needs_compiler
def test_streams_are_as_wide_as_the_kernels_words(tmp_path: Path) -> None:
    """Sizes by the compiler of what the streams of kernels/product.hpp carry."""
    sizes = [(8, 32, 64), (16, 16, 16), (4, 128, 64), (2, 2, 144)]
    source = tmp_path / "widths.cpp"
    printed = "".join(
        f"{{ using D = hyrt::Design<{n}, {rows}, {cols}, 8192>; "
        "auto most = std::max({sizeof(hyrt::Packet<D>), sizeof(hyrt::Left<D>), sizeof(hyrt::Right<D>)}); "
        'printf("%zu\\n", 8 * most); }\n'
        for n, rows, cols in sizes
    )
    source.write_text(
        f'#include <algorithm>\n#include <cstdio>\n#include "trainer.hpp"\nint main() {{\n{printed}}}\n'
    )
    program = tmp_path / "widths"
    command = ["g++", "-std=c++17", "-pthread", "-Wno-unknown-pragmas", f"-I{KERNELS}", f"-I{HEADERS}"]
    subprocess.run([*command, source, "-o", program], check=True, timeout=60)
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    designs = [FpgaDesign(pes=n, mac_rows=rows, mac_cols=cols) for n, rows, cols in sizes]
    assert [widest_stream_bits(design) for design in designs] == [int(bits) for bits in told]
    assert told == ["4096", "8192", "4096", "4608"]


def test_unknown_parts() -> None:
    with pytest.raises(ValueError, match="unknown part 'u25': choose one of u250, u200, u280, u50"):
        load_part("u25")
    with pytest.raises(ValueError, match=r"none.yaml cannot be read"):
        load_part("none.yaml")


@pytest.mark.parametrize(
    ("change", "arena_words", "says"),
    [
        ({"mac_cols": 24}, 4096, "mac_cols must be a multiple of 16, .* got 24"),
        ({"pes": 8, "mac_rows": 12}, 4096, r"mac_rows must be a multiple of pes \(8\), .* got 12"),
        ({"pes": 4, "mac_rows": 12}, 4096, "mac_rows must be a multiple of 16, or 1, 2, 4 or 8, got 12"),
        ({"fifo_depth": 1}, 4096, "fifo_depth must be at least 2, got 1"),
        ({}, 1, "arena_words must be at least 2, .* got 1"),
    ],
)
def test_sizes_the_kernels_cannot_have(change: dict[str, int], arena_words: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check_buildable(FpgaDesign(**change), arena_words)


def test_several_units() -> None:
    one = estimate_resources(PAPER, 4096)
    assert one.scaled(3) == Resources(
        dsp=3 * one.dsp, lut=3 * one.lut, bram36=3 * one.bram36, uram=3 * one.uram
    )
