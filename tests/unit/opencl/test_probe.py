"""Finding OpenCL devices, on machines made up here."""

from __future__ import annotations

import math
import sys

import pytest
from hyrt_devices.opencl import OpenclDevice
from hyrt_devices.opencl.probe import survey
from opencl_doubles import Device, Error, Platform, module

from hyrt.device import DeviceOptions
from hyrt.errors import DeviceUnavailableError


def pocl(version: str, target: str = "haswell", **more: object) -> Platform:
    device = Device("cpu-X", version=f"OpenCL 3.0 PoCL HSTR: cpu-x86_64-{target}", **more)  # type: ignore[arg-type]
    return Platform("Portable Computing Language", f"OpenCL 3.0 PoCL {version}  Linux", [device])


def machine(monkeypatch: pytest.MonkeyPatch, platforms: list[Platform] | Error) -> None:
    monkeypatch.setitem(sys.modules, "pyopencl", module(platforms))


def names() -> list[str]:
    return [info.description.split(",")[0] for info in OpenclDevice.probe()]


@pytest.mark.parametrize("turned", [False, True])
def test_of_several_pocls_the_newest_counts_and_the_order_is_stable(
    monkeypatch: pytest.MonkeyPatch, turned: bool
) -> None:
    gpu = Device("G", type=4)
    platforms = [
        pocl("3.0-rc2"),
        Platform("Intel(R) OpenCL", devices=[Device("I")]),
        pocl("10.2"),
        Platform("NVIDIA CUDA", devices=[gpu]),
        pocl("6.0"),
    ]
    machine(monkeypatch, platforms[::-1] if turned else platforms)
    assert names() == ["NVIDIA CUDA 1", "Intel(R) OpenCL 1", "PoCL 10.2"]
    assert [info.name for info in OpenclDevice.probe()] == ["opencl:0", "opencl:1", "opencl:2"]
    assert OpenclDevice.missing() == ""


def test_what_is_known_of_a_gpu_and_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Device("G", type=4, max_compute_units=10)
    machine(monkeypatch, [Platform("P", devices=[gpu, Device("C")])])
    accelerator, cpu = OpenclDevice.probe()
    assert (accelerator.host_cores, accelerator.zero_copy) == (0, False)
    assert (cpu.host_cores, cpu.zero_copy) == (4, True)
    # What reads the host's memory in place has the host aggregate there.
    assert set(cpu.forms) - set(accelerator.forms) == {"aggregated"}
    assert accelerator.link == "PCIe"
    assert cpu.link == "host memory"
    assert cpu.rates is not None
    assert accelerator.rates is not None
    assert cpu.rates.macs_per_s == 4 * 2e9 * 8
    assert cpu.rates.link_bytes_per_s == math.inf
    assert accelerator.rates.source.startswith("assumed")


def test_no_rate_is_made_up_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, [Platform("P", devices=[Device("C", max_clock_frequency=0)])])
    assert OpenclDevice.probe()[0].rates is None


def test_a_pocl_that_does_not_know_the_cpu_is_left_out_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = pocl("3.0-rc2", "generic", compiles=False)
    machine(monkeypatch, [broken])
    assert OpenclDevice.probe() == []
    assert "PoCL 3.0-rc2 does not support this CPU (cpu-X): install a newer PoCL" in OpenclDevice.missing()
    # An older one that works is then taken.
    machine(monkeypatch, [broken, pocl("2.1")])
    assert names() == ["PoCL 2.1"]
    # One that falls back to the same target but compiles is fine.
    machine(monkeypatch, [pocl("3.0-rc2", "generic")])
    assert names() == ["PoCL 3.0-rc2"]


def test_what_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Platform("S", devices=[Device("D")], answers=False)
    off = Platform("O", devices=[Device("D", available=False), Device("E", compiler_available=False)])
    machine(monkeypatch, [silent, off, pocl("6.0")])
    assert names() == ["PoCL 6.0"]
    assert len(survey().reasons) == 3


def test_nothing_there(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, Error("PLATFORM_NOT_FOUND_KHR"))
    assert OpenclDevice.probe() == []
    assert "no OpenCL platform was found" in OpenclDevice.missing()
    machine(monkeypatch, [Platform("P")])
    assert "no OpenCL device was found" in OpenclDevice.missing()
    machine(monkeypatch, [pocl("6.0")])
    info = OpenclDevice.probe()[0]
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    assert OpenclDevice.probe() == []
    assert 'pip install "hyrt[opencl]"' in OpenclDevice.missing()
    with pytest.raises(
        DeviceUnavailableError, match=r"opencl:0 is not available \(pyopencl is missing or broken"
    ):
        OpenclDevice.open(info, DeviceOptions())
