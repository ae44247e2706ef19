"""Link configurations: what they bind, and that the files that ship are current."""

from __future__ import annotations

import re
from pathlib import Path

import hyrt_hls
import pytest
from hyrt_hls.build_files import link_config
from hyrt_hls.fpga_part import FpgaPart, load_part, part_names
from hyrt_hls.task_layout import ARGUMENTS
from hyrt_perfmodel.fpga_design import FpgaDesign

CONFIGS = Path(hyrt_hls.__file__).parent / "configs"


def default(part: FpgaPart) -> FpgaDesign:
    return FpgaDesign(pes=part.pes, mac_rows=part.mac_rows, mac_cols=part.mac_cols)


def banks(text: str) -> dict[str, list[tuple[str, range]]]:
    """Of each unit the arguments and the banks that they are bound to."""
    found: dict[str, list[tuple[str, range]]] = {}
    for unit, argument, first, last in re.findall(
        r"^sp=(\w+)\.(\w+):(?:DDR|HBM)\[(\d+)(?::(\d+))?\]$", text, re.M
    ):
        found.setdefault(unit, []).append((argument, range(int(first), int(last or first) + 1)))
    return found


@pytest.mark.parametrize("name", part_names())
def test_the_files_are_current(name: str) -> None:
    part = load_part(name)
    assert (CONFIGS / f"{name}.cfg").read_text() == link_config(part, default(part))


def test_every_file_has_its_part() -> None:
    assert {path.stem for path in CONFIGS.glob("*.cfg")} == set(part_names())


@pytest.mark.parametrize("name", part_names())
@pytest.mark.parametrize("units", [1, 3])
def test_every_argument_of_every_unit_has_banks_that_exist(name: str, units: int) -> None:
    part = load_part(name)
    text = link_config(part, FpgaDesign(pes=4, mac_rows=8, mac_cols=16), units=units)
    assert f"\nnk=hyrt_train:{units}\n" in text
    found = banks(text)
    assert list(found) == [f"hyrt_train_{unit + 1}" for unit in range(units)]
    for bound in found.values():
        assert [argument for argument, _ in bound] == list(ARGUMENTS)
        assert all(bank in range(part.memory_banks) for _, there in bound for bank in there)
    slrs = [int(slr) for slr in re.findall(r"^slr=hyrt_train_\d:SLR(\d)$", text, re.M)]
    assert slrs == [unit % len(part.slr_dsp) for unit in range(units)]


def test_features_have_a_bank_alone() -> None:
    for name in part_names():
        (bound,) = banks(link_config(load_part(name), FpgaDesign())).values()
        of = dict(bound)
        others = [bank for argument, there in bound if argument != "features" for bank in there]
        assert not set(of["features"]) & set(others)


def test_units_on_hbm_share_no_bank() -> None:
    found = banks(link_config(load_part("u280"), FpgaDesign(mac_rows=8, mac_cols=16), units=4))
    used = [{bank for _, there in bound for bank in there} for bound in found.values()]
    assert sum(map(len, used)) == len(set().union(*used)) == 32


def test_a_large_unit_is_left_to_the_placer() -> None:
    assert "slr=" not in link_config(load_part("u250"), FpgaDesign())
    # SLR0 of the U280 has fewer DSP than the others.
    fits_above = FpgaDesign(pes=8, mac_rows=8, mac_cols=52)
    text = link_config(load_part("u280"), fits_above, units=2)
    assert "slr=hyrt_train_1:SLR1\n" in text
    assert "slr=hyrt_train_2:SLR2\n" in text


@pytest.mark.parametrize(
    ("name", "units", "says"),
    [("u250", 0, "compute units must be at least 1, got 0"), ("u50", 5, "need 40 HBM banks")],
)
def test_units_that_cannot_be(name: str, units: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        link_config(load_part(name), FpgaDesign(), units=units)
