"""Reading xclbins: what they hold, and what is wrong with them."""

from __future__ import annotations

import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from axlf import ARGUMENTS, DESIGN, container, ip_layout, metadata, trainer
from hypothesis import given
from hypothesis import strategies as st
from hyrt_devices.fpga.xclbin import read_design, read_xclbin
from hyrt_hls.resources import KernelDesign

from hyrt.errors import DeviceUnavailableError


def written(folder: Path, content: bytes) -> Path:
    path = folder / "hyrt_train.xclbin"
    path.write_bytes(content)
    return path


def test_kernels_units_clock_and_memory_are_read(tmp_path: Path) -> None:
    xclbin = read_xclbin(written(tmp_path, trainer(("a", "b"), mhz=287, platform="xilinx_u280", banks=2)))
    assert xclbin.platform == "xilinx_u280"
    assert xclbin.mode == "hw"
    assert dict(xclbin.arguments) == {"hyrt_train": ARGUMENTS}
    assert xclbin.units_of("hyrt_train") == ("a", "b")
    assert xclbin.clock_hz == 287e6
    assert xclbin.memory_bytes == 2 * 16 << 30
    assert read_design(xclbin) == KernelDesign(**DESIGN)


def test_units_come_in_the_order_of_their_addresses(tmp_path: Path) -> None:
    layout = bytearray(ip_layout("k", ("second", "first")))
    struct.pack_into("<Q", layout, 8 + 8, 0x9000)
    struct.pack_into("<Q", layout, 8 + 80 + 8, 0x1000)
    sections = [(2, metadata("k", (), ("x",), "p")), (8, bytes(layout))]
    assert read_xclbin(written(tmp_path, container(sections, platform="p"))).units_of("k") == (
        "first",
        "second",
    )


def test_a_software_emulation_has_its_units_in_the_metadata(tmp_path: Path) -> None:
    sections = [(2, metadata("k", ("k_1", "k_2"), ("x",), "p"))]
    xclbin = read_xclbin(written(tmp_path, container(sections, platform="p", mode=5)))
    assert xclbin.mode == "sw_emu"
    assert xclbin.units_of("k") == ("k_1", "k_2")
    assert xclbin.clock_hz is None
    assert xclbin.memory_bytes == 0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not an xclbin"),
        (b"\x7fELF" + bytes(600), "not an xclbin"),
        (b"xclbin2\0" + bytes(100), "ends after 108 bytes, within its header"),
        (trainer()[:-200], "is truncated"),
        (container([], platform="p"), "no section EMBEDDED_METADATA"),
        (container([(2, b"<project>")], platform="p"), "EMBEDDED_METADATA of the xclbin .* is not XML"),
        (
            container([(2, b"<p/>"), (8, struct.pack("<i4x", 9))], platform="p"),
            "IP_LAYOUT of the xclbin .* states 9 entries",
        ),
        (container([(2, b"<p/>"), (8, b"")], platform="p"), "IP_LAYOUT of the xclbin .* states -1 entries"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, content: bytes, said: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DeviceUnavailableError, match=said) as error:
        read_xclbin(path)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"gone\.xclbin cannot be read: No such file"):
        read_xclbin(tmp_path / "gone.xclbin")


def test_a_missing_kernel_or_unit_is_named_with_what_there_is(tmp_path: Path) -> None:
    xclbin = read_xclbin(written(tmp_path, trainer(kernel="vadd", units=())))
    with pytest.raises(DeviceUnavailableError, match=r"no kernel 'hyrt_train' \(kernels: vadd\)"):
        xclbin.units_of("hyrt_train")
    with pytest.raises(
        DeviceUnavailableError, match=r"kernel 'vadd' of .*hyrt_train\.xclbin has no compute unit"
    ):
        xclbin.units_of("vadd")


def test_the_design_lies_beside_an_xclbin_without_metadata(tmp_path: Path) -> None:
    xclbin = read_xclbin(written(tmp_path, trainer(design=None)))
    with pytest.raises(DeviceUnavailableError, match=r"hyrt_train\.json, which .*, is missing: copy"):
        read_design(xclbin)
    beside = tmp_path / "hyrt_train.json"
    beside.write_text(json.dumps({**DESIGN, "mac_rows": 16, "built": "today"}), encoding="utf-8")
    assert read_design(xclbin) == KernelDesign(**{**DESIGN, "mac_rows": 16})


@pytest.mark.parametrize(
    ("design", "said"),
    [
        ({**DESIGN, "pes": 0}, "pes must be an integer of at least 1, got 0"),
        ({**DESIGN, "mac_rows": True}, "mac_rows must be a number, got True"),
        ({**DESIGN, "mac_cols": "wide"}, "mac_cols must be an integer, got 'wide'"),
        ({"pes": 8, "mac_rows": 8, "mac_cols": 16}, "'arena_words' is missing"),
        ([8, 8], "not a JSON object"),
    ],
)
def test_a_wrong_design_names_the_number(tmp_path: Path, design: Any, said: str) -> None:
    for inside in (True, False):
        path = written(tmp_path, trainer(design=design if inside else None))
        (tmp_path / "hyrt_train.json").write_text(json.dumps(design), encoding="utf-8")
        with pytest.raises(DeviceUnavailableError, match=said) as error:
            read_design(read_xclbin(path))
        assert ("USER_METADATA" in str(error.value)) == inside


@given(st.binary(max_size=40), st.integers(0, 900), st.booleans())
def test_a_damaged_file_is_refused_or_read_never_a_crash(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, at: int, cut: bool
) -> None:
    content = bytearray(trainer())
    content[at : at + len(junk)] = junk
    path = tmp_path_factory.mktemp("damaged") / "x.xclbin"
    path.write_bytes(bytes(content[:at] if cut else content))
    with suppress(DeviceUnavailableError):
        units = read_xclbin(path).units_of("hyrt_train")
        assert units
        assert all(isinstance(unit, str) for unit in units)
