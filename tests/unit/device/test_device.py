"""What a backend may say of a device."""

from __future__ import annotations

import math
from typing import Any

import pytest

from hyrt.device import DeviceInfo, Health, Rates
from hyrt.errors import DeviceFaultError, DeviceOutOfMemoryError

RATES = {"macs_per_s": 1e9, "memory_bytes_per_s": 1e9, "link_bytes_per_s": 1e9, "source": "assumed: a guess"}


@pytest.mark.parametrize("name", ["macs_per_s", "memory_bytes_per_s", "link_bytes_per_s"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, True, "fast"])
def test_rates_that_are_none(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Rates(**{**RATES, name: value})


def test_only_a_link_may_be_infinitely_fast() -> None:
    assert Rates(**{**RATES, "link_bytes_per_s": math.inf}).link_bytes_per_s == math.inf
    with pytest.raises(ValueError, match="macs_per_s"):
        Rates(**{**RATES, "macs_per_s": math.inf})


@pytest.mark.parametrize(
    ("name", "value"),
    [("index", "0"), ("index", -1), ("memory_bytes", "big"), ("host_cores", -2), ("description", None)],
)
def test_an_info_that_is_none(name: str, value: Any) -> None:
    given: dict[str, Any] = {"kind": "npu", "index": 0, "description": "Acme", "memory_bytes": 0}
    with pytest.raises(ValueError, match=name):
        DeviceInfo(**{**given, name: value})


def test_a_drivers_text_becomes_one_line() -> None:
    info = DeviceInfo(kind="npu", index=0, description=" two\n\x1b[31mlines ", memory_bytes=0)
    assert info.description == "two [31mlines"


def test_the_first_fault_of_two_calls_at_once_stays() -> None:
    health = Health("npu:0")
    faults: list[DeviceFaultError] = []

    def transfer() -> None:
        with health.terminal("transfer"):
            # The other thread's call ends while this one goes on.
            faults.append(health.fail("propagate", OSError("the bus is off")))
            raise DeviceFaultError("npu:0: no such buffer")

    with pytest.raises(DeviceFaultError, match="no such buffer"):
        transfer()
    with pytest.raises(DeviceFaultError, match="propagate failed: OSError: the bus is off") as later:
        health.check()
    assert later.value is faults[0]


def test_what_is_an_error_of_hyrts_own_does_not_end_a_device() -> None:
    health = Health("npu:0")
    with pytest.raises(DeviceOutOfMemoryError), health.terminal("transfer"):
        raise DeviceOutOfMemoryError("npu:0: full")
    health.check()
    health.close()
    with pytest.raises(DeviceFaultError, match="npu:0 was used after it was closed"):
        health.check()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (MemoryError("Unable to allocate 18.0 MiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("a mistake"), False),
    ],
)
def test_a_step_without_host_memory_says_what_to_lower(error: Exception, is_told: bool) -> None:
    health = Health("cpu:0")
    with pytest.raises(DeviceFaultError) as caught, health.terminal("propagate"):
        raise error
    assert str(error) in str(caught.value)
    assert ("The host is out of memory: lower model.hidden" in str(caught.value)) == is_told
