"""Discovery of FPGA cards and of the xclbin."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyrt_hls.resources import KernelDesign

from hyrt.device import DeviceInfo, Rates
from hyrt.errors import DeviceUnavailableError
from hyrt_devices.fpga.xclbin import KERNEL, Xclbin, read_design, read_xclbin
from hyrt_devices.opencl_host.discovery import DiscoveryResult, FoundDevice, pyopencl_problem

XCLBIN_VARIABLE = "HYRT_XCLBIN"
"""Environment variable with the path of the xclbin."""

_EMULATION_VARIABLE = "XCL_EMULATION_MODE"
_PLATFORM = "Xilinx"
_BUILD = "build one with hyrt's Makefile (docs/fpga.md)"
# Defaults for a card that does not report its rates: clock and four DDR4 banks of a U250, and PCIe 3.0 x16.
_CLOCK_HZ = 300e6
_MEMORY_BYTES_PER_S = 77e9
_PCIE_BYTES_PER_S = 12e9


@dataclass(frozen=True, slots=True)
class FoundCard(FoundDevice):
    """FPGA card, and the xclbin with which it is programmed."""

    xclbin: Xclbin


def xclbin_path() -> Path:
    """Return the path of the xclbin: HYRT_XCLBIN, or `hyrt/hyrt_train.xclbin` in the user's data folder."""
    named = os.environ.get(XCLBIN_VARIABLE)
    if named:
        return Path(os.path.expanduser(named))
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    return Path(data) / "hyrt" / f"{KERNEL}.xclbin"


def survey() -> DiscoveryResult[FoundCard]:
    """Return the cards that XRT finds, in XRT's order.

    Cheap, and never raises. OpenCL is loaded only if XRT is installed as one of its drivers.
    """
    try:
        return DiscoveryResult(_found(), [])
    except DeviceUnavailableError as error:
        return DiscoveryResult([], [str(error)])


def _found() -> list[FoundCard]:
    if not has_xrt():
        raise DeviceUnavailableError(
            "XRT, the card's runtime, is not among the OpenCL drivers: install it from the card's vendor, "
            "then source its setup.sh"
        )
    if problem := pyopencl_problem():
        raise DeviceUnavailableError(problem)
    import pyopencl as cl

    try:
        platforms = [platform for platform in cl.get_platforms() if platform.name == _PLATFORM]
        devices = [device for platform in platforms for device in platform.get_devices()]
    except (cl.Error, RuntimeError) as error:
        raise DeviceUnavailableError(f"XRT does not respond ({error}): {_check_card()}") from error
    if not devices:
        raise DeviceUnavailableError(f"XRT finds no card: {_check_card()}")
    path = xclbin_path()
    if not path.exists():
        source = (
            f"set in {XCLBIN_VARIABLE}"
            if os.environ.get(XCLBIN_VARIABLE)
            else f"{XCLBIN_VARIABLE} is not set"
        )
        raise DeviceUnavailableError(
            f"a card was found, but its xclbin {path} does not exist ({source}): {_BUILD} and set "
            f"{XCLBIN_VARIABLE} to its path"
        )
    xclbin = read_xclbin(path)
    units, design = xclbin.units_of(KERNEL), read_design(xclbin)
    _check_mode(xclbin)
    try:
        return [
            FoundCard(_info(i, device, xclbin, len(units), design), device, xclbin)
            for i, device in enumerate(devices)
        ]
    except (cl.Error, RuntimeError, ValueError) as error:
        raise DeviceUnavailableError(f"a card does not respond ({error}): {_check_card()}") from error


def _check_card() -> str:
    if not os.environ.get("XILINX_XRT"):
        return "source XRT's setup.sh, because XILINX_XRT is not set"
    return "check it with `xbutil examine`"


def has_xrt() -> bool:
    """Return whether XRT is among the drivers that the OpenCL loader would load."""
    return any("xilinxopencl" in library for library in _drivers())


def _drivers() -> list[str]:
    """Return the driver libraries that common OpenCL loaders would load."""
    libraries = [name for name in os.environ.get("OCL_ICD_FILENAMES", "").split(os.pathsep) if name]
    named = os.environ.get("OCL_ICD_VENDORS") or os.environ.get("OPENCL_VENDOR_PATH") or "/etc/OpenCL/vendors"
    place = Path(named)
    try:
        if place.is_dir():
            for file in sorted(place.glob("*.icd")):
                libraries.append(file.read_text(encoding="utf-8", errors="replace"))
        elif place.suffix == ".icd":
            libraries.append(place.read_text(encoding="utf-8", errors="replace"))
        else:
            libraries.append(named)
    except OSError:
        # OpenCL loaders cannot read these files either, so they load no further drivers.
        return libraries
    return libraries


def emulation() -> str:
    """Return XRT's emulation mode in this process (`hw_emu`, `sw_emu` or `noop`), or "" for a real card."""
    return os.environ.get(_EMULATION_VARIABLE, "")


def _check_mode(xclbin: Xclbin) -> None:
    """Check that the xclbin matches the emulation mode, because XRT's message for a mismatch is unclear."""
    expected = xclbin.mode if xclbin.mode.endswith("_emu") else ""
    mode = emulation()
    # The mode `noop` accepts any xclbin.
    if mode != expected and mode != "noop":
        remedy = f"set {_EMULATION_VARIABLE}={expected}" if expected else f"unset {_EMULATION_VARIABLE}"
        raise DeviceUnavailableError(
            f"{xclbin.path} is built for {xclbin.mode}, but {_EMULATION_VARIABLE} is {mode or 'not set'}: "
            f"{remedy}"
        )


def _info(index: int, device: Any, xclbin: Xclbin, units: int, design: KernelDesign) -> DeviceInfo:
    mode = emulation()
    clock_hz = xclbin.clock_hz or _CLOCK_HZ
    clock_source = "from the xclbin" if xclbin.clock_hz else "assumed"
    macs = design.mac_rows * design.mac_cols
    name = device.name.strip() or xclbin.platform
    emulated = f"emulated ({mode}): " if mode else ""
    nothing = "computes nothing, " if mode == "noop" else ""
    return DeviceInfo(
        kind="fpga",
        index=index,
        description=f"{emulated}{nothing}{name}, {units} x ({design.pes} PEs, {macs} MACs) of "
        f"{xclbin.path.name}",
        memory_bytes=int(device.global_mem_size) or xclbin.memory_bytes,
        link="PCIe",
        forms=("rows", "quantized"),
        rates=Rates(
            macs_per_s=units * macs * clock_hz,
            memory_bytes_per_s=_MEMORY_BYTES_PER_S,
            link_bytes_per_s=_PCIE_BYTES_PER_S,
            source=f"assumed: {units} units x {macs} MACs x {clock_hz / 1e6:.0f} MHz ({clock_source}); "
            "memory and link as on a U250",
        ),
        simulated=bool(mode),
    )
