"""Finding cards, on machines made up here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from axlf import trainer
from hyrt_devices.fpga.probe import has_xrt, survey, xclbin_path


class Error(Exception):
    """Any error of OpenCL."""


def card(name: str = "xilinx_u250_gen3x16_xdma_shell_4_1", memory_bytes: int = 64 << 30) -> SimpleNamespace:
    return SimpleNamespace(name=name, global_mem_size=memory_bytes)


def platform(name: str, *devices: SimpleNamespace, answers: bool = True) -> SimpleNamespace:
    def get_devices() -> list[SimpleNamespace]:
        if not answers:
            raise Error("DEVICE_NOT_AVAILABLE")
        return list(devices)

    return SimpleNamespace(name=name, get_devices=get_devices)


@pytest.fixture(name="machine")
def _machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts platforms and an xclbin there, and XRT among the drivers."""
    for variable in (
        "OCL_ICD_FILENAMES",
        "OPENCL_VENDOR_PATH",
        "XCL_EMULATION_MODE",
        "XILINX_XRT",
        "HYRT_XCLBIN",
    ):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "xilinx.icd").write_text("/opt/xilinx/xrt/lib/libxilinxopencl.so\n", encoding="utf-8")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))

    def made(*platforms: SimpleNamespace, xclbin: bytes | None = None) -> None:
        double = SimpleNamespace(Error=Error, get_platforms=lambda: list(platforms))
        monkeypatch.setitem(sys.modules, "pyopencl", double)
        if xclbin is not None:
            (tmp_path / "hyrt").mkdir()
            (tmp_path / "hyrt" / "hyrt_train.xclbin").write_bytes(xclbin)

    return made


def test_cards_of_xilinx_are_found_with_the_xclbin_of_the_data_folder(machine: Any) -> None:
    other = platform("Portable Computing Language", card("cpu"))
    machine(
        other,
        platform("Xilinx", card(), card("xilinx_u280", 32 << 30)),
        xclbin=trainer(("a", "b", "c"), mhz=200),
    )
    first, second = (found.info for found in survey().found)
    assert (first.name, second.name) == ("fpga:0", "fpga:1")
    assert "xilinx_u250" in first.description
    assert "3 x (4 PEs, 128 MACs)" in first.description
    assert (first.memory_bytes, second.memory_bytes) == (64 << 30, 32 << 30)
    assert first.rates is not None
    assert first.rates.macs_per_s == 3 * 128 * 200e6
    assert not first.simulated
    assert not first.zero_copy
    assert first.host_cores == 0


@pytest.mark.parametrize("mode", ["hw_emu", "sw_emu"])
def test_an_emulated_card_is_simulated_and_says_so(
    machine: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setenv("XCL_EMULATION_MODE", mode)
    machine(platform("Xilinx", card()), xclbin=trainer(mode={"hw_emu": 4, "sw_emu": 5}[mode]))
    (found,) = survey().found
    assert found.info.simulated
    assert found.info.description.startswith(f"emulated ({mode}): ")


@pytest.mark.parametrize(
    ("platforms", "said"),
    [
        ([], "XRT finds no card: source XRT's setup.sh, because XILINX_XRT is not set"),
        ([platform("Xilinx")], "XRT finds no card"),
        ([platform("Xilinx", answers=False)], "XRT does not respond (DEVICE_NOT_AVAILABLE)"),
        ([platform("Xilinx", card())], "hyrt_train.xclbin does not exist (HYRT_XCLBIN is not set)"),
    ],
)
def test_what_is_missing_is_said(machine: Any, platforms: list[Any], said: str) -> None:
    machine(*platforms)
    seen = survey()
    assert seen.found == []
    (reason,) = seen.reasons
    assert said in reason


def test_an_xclbin_of_an_emulation_is_not_for_the_card(machine: Any) -> None:
    machine(platform("Xilinx", card()), xclbin=trainer(mode=4))
    (reason,) = survey().reasons
    assert "is built for hw_emu, but XCL_EMULATION_MODE is not set: set XCL_EMULATION_MODE=hw_emu" in reason


def test_no_pyopencl_is_a_reason(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    (reason,) = survey().reasons
    assert 'pip install "hyrt[opencl]"' in reason


def test_the_variable_goes_before_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("HYRT_XCLBIN", raising=False)
    assert xclbin_path() == tmp_path / "hyrt" / "hyrt_train.xclbin"
    monkeypatch.setenv("HYRT_XCLBIN", "~/mine.xclbin")
    assert xclbin_path() == Path.home() / "mine.xclbin"


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"OCL_ICD_VENDORS": "{folder}"}, True),
        ({"OCL_ICD_VENDORS": "{folder}/xilinx.icd"}, True),
        ({"OCL_ICD_VENDORS": "libxilinxopencl.so.2"}, True),
        ({"OPENCL_VENDOR_PATH": "{folder}"}, True),
        ({"OCL_ICD_VENDORS": "{folder}/none", "OCL_ICD_FILENAMES": "libpocl.so:libxilinxopencl.so"}, True),
        ({"OCL_ICD_VENDORS": "{folder}/none"}, False),
        ({"OCL_ICD_VENDORS": "{folder}/none/xilinx.icd"}, False),
    ],
)
def test_xrt_is_looked_for_where_loaders_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], wanted: bool
) -> None:
    (tmp_path / "xilinx.icd").write_text("libxilinxopencl.so.2", encoding="utf-8")
    (tmp_path / "none").mkdir()
    for variable in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value.format(folder=tmp_path))
    assert has_xrt() == wanted
