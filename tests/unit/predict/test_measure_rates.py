"""Rates are measured through the protocol alone, kept, and not used for another device."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hyrt_devices.null import NullDevice

from hyrt.device import DeviceInfo, Rates, StepResult
from hyrt.device.discovery import find_device
from hyrt.device.rates import MeasuredRates, known_rates, read_rates, write_rates
from hyrt.errors import DataNotWritten
from hyrt.predict.measure_rates import measure_rates
from hyrt.sampling.minibatch import MiniBatch


@pytest.fixture(scope="module")
def measured():
    backend, info = find_device("cpu")
    return info, measure_rates(backend, info, 1)


def test_measured_rates_are_those_of_a_processor(measured) -> None:
    info, found = measured
    # Any core since 2010 multiplies faster than this, and none has reached that.
    assert 1e9 < found.macs_per_s < 1e13
    assert 1e8 < found.memory_bytes_per_s < 1e13
    assert found.link_bytes_per_s is None
    assert info.zero_copy


def test_kept_rates_are_used_and_say_when(measured, tmp_path: Path) -> None:
    info, found = measured
    file = tmp_path / "cache" / "rates.json"
    write_rates(file, {info.name: found})
    rates, stale = known_rates(info, read_rates(file))
    assert not stale
    assert rates is not None
    assert rates.source == f"measured {found.date}"
    assert rates.link_bytes_per_s == math.inf
    other = DeviceInfo(kind="cpu", index=0, description="64 cores", memory_bytes=1)
    assert known_rates(other, read_rates(file)) == (None, f"measured on another device ({info.description})")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cpu:0": 3}', '{"cpu:0": {"macs_per_s": 1}}'])
def test_a_damaged_file_counts_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rates.json"
    file.write_text(text)
    assert read_rates(file) == {}


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, "fast", None])
def test_rates_that_are_none_are_left_out(tmp_path: Path, measured, wrong: object) -> None:
    file = tmp_path / "rates.json"
    damaged = dataclasses.replace(measured[1], macs_per_s=wrong)
    file.write_text(json.dumps({"cpu:0": dataclasses.asdict(damaged)}))
    assert read_rates(file) == {}


class Clocked(NullDevice):
    """Copies in the background and has a clock of its own: propagate's call also waits for the copy."""

    def propagate(self, staged: MiniBatch) -> StepResult:
        result = super().propagate(staged)
        result.seconds = {"transfer": staged.inputs.numel() * 4 / 1e10, "propagate": 0.02}
        return result


def test_the_devices_own_clock_counts() -> None:
    info = DeviceInfo(kind="null", index=0, description="", memory_bytes=0)
    found: MeasuredRates = measure_rates(Clocked, info, 1)
    assert found.link_bytes_per_s == pytest.approx(1e10)
    assert found.macs_per_s == pytest.approx(2 * 4096 * 2048 * 512 / 0.02)
    assert found.spread == 0


def test_a_cache_that_cannot_be_written_is_said(measured, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataNotWritten, match="XDG_CACHE_HOME"):
        write_rates(tmp_path / "file" / "rates.json", {"cpu:0": measured[1]})


def test_assumed_rates_stand_until_measured() -> None:
    assumed = Rates(macs_per_s=1, memory_bytes_per_s=1, link_bytes_per_s=1, source="assumed: data sheet")
    info = DeviceInfo(kind="npu", index=0, description="", memory_bytes=1, rates=assumed)
    assert known_rates(info, {}) == (assumed, "")
