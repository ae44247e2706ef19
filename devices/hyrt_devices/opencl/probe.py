"""Discovery of OpenCL devices, and reasons why devices cannot be used."""

from __future__ import annotations

import math
import re
from typing import Any

from hyrt.device import DeviceInfo, Rates
from hyrt_devices.opencl_host.discovery import DiscoveryResult, FoundDevice, pyopencl_problem
from hyrt_devices.opencl_host.driver_workarounds import (
    driver_cache_problem,
    ensure_driver_cache,
    preserve_signal_handlers,
)

_INSTALL = 'pip install "hyrt[opencl]", or install a driver from the device\'s vendor'
# Multiply-accumulates per cycle and compute unit of a GPU. CPUs report their vector width.
_GPU_LANES = 64
_HOST_BYTES_PER_S = 10e9
_GPU_BYTES_PER_S = 200e9
_PCIE_BYTES_PER_S = 12e9


def survey() -> DiscoveryResult[FoundDevice]:
    """Return the devices of all platforms, except for those that do not respond or cannot compile.

    They are sorted by type (GPUs, accelerators, CPUs), then by platform and name.
    """
    ensure_driver_cache()
    if problem := pyopencl_problem():
        return DiscoveryResult([], [problem])
    # The first call makes PoCL start threads and load its compiler, which replaces signal handlers.
    with preserve_signal_handlers():
        return _survey()


def _survey() -> DiscoveryResult[FoundDevice]:
    import pyopencl as cl

    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        return DiscoveryResult([], [f"no OpenCL platform was found ({error}): {_INSTALL}"])
    reasons: list[str] = []
    rows: list[tuple[tuple[Any, ...], Any]] = []
    for platform in platforms:
        try:
            pocl = re.search(r"PoCL (\d+)\.(\d+)", platform.version)
            version = (int(pocl[1]), int(pocl[2])) if pocl else (0, 0)
            devices = platform.get_devices()
            for position, device in enumerate(devices):
                rank = _rank(device)
                order = (rank, platform.name, -version[0], -version[1], device.name, position)
                rows.append((order, device))
        except cl.Error as error:
            reasons.append(f"an OpenCL platform does not respond ({error}): reinstall its driver")
    rows.sort(key=lambda row: row[0])
    found: list[FoundDevice] = []
    pocl_cpu = False
    for order, device in rows:
        is_pocl = order[2] != 0 and order[0] == 2
        # Use only the newest PoCL that works, because all versions run on the same cores.
        if is_pocl and pocl_cpu:
            continue
        try:
            problem = _problem(device)
            info = _info(len(found), device)
        except cl.Error as error:
            reasons.append(f"an OpenCL device does not respond ({error}): reinstall its driver")
            continue
        if problem is not None:
            # Several PoCL versions share a cache folder, so their problems can be the same.
            reasons += [problem] if problem not in reasons else []
            continue
        pocl_cpu = pocl_cpu or is_pocl
        found.append(FoundDevice(info, device))
    if not found and not reasons:
        reasons.append(driver_cache_problem() or f"no OpenCL device was found: {_INSTALL}")
    return DiscoveryResult(found, reasons)


def _rank(device: Any) -> int:
    import pyopencl as cl

    if device.type & cl.device_type.GPU:
        return 0
    return 2 if device.type & cl.device_type.CPU else 1


def _problem(device: Any) -> str | None:
    """Return why a device cannot be used, or None. Only generic targets are tested by compiling."""
    import pyopencl as cl

    if not device.available:
        return f"the driver of {device.name} reports that it is not available: check it with clinfo"
    if not device.compiler_available:
        return f"{device.name} has no OpenCL compiler: use another device"
    if "PoCL" in device.version and (problem := driver_cache_problem()):
        return problem
    # If its LLVM does not know the CPU, PoCL uses a generic target that its compiler may then reject.
    if "PoCL" in device.version and re.search(r"-generic\b", device.version):
        try:
            cl.Program(cl.Context([device]), "__kernel void nothing() {}").build(devices=[device])
        except cl.Error:
            return (
                f"{_maker(device)} does not support this CPU ({device.name.strip()}): "
                "install a newer PoCL (on Debian: apt install pocl-opencl-icd)"
            )
    return None


def _maker(device: Any) -> str:
    """Return the name and version of the OpenCL implementation."""
    pocl = re.search(r"PoCL ([\w.+-]+)", device.platform.version)
    return f"PoCL {pocl[1]}" if pocl else f"{device.platform.name.strip()} {device.driver_version.strip()}"


def _info(index: int, device: Any) -> DeviceInfo:
    is_cpu = _rank(device) == 2
    shares = bool(is_cpu or device.host_unified_memory)
    units = int(device.max_compute_units)
    clock_hz = float(device.max_clock_frequency) * 1e6
    width = max(1, int(device.native_vector_width_float)) if is_cpu else _GPU_LANES
    return DeviceInfo(
        kind="opencl",
        index=index,
        description=f"{_maker(device)}, {device.name.strip()}, {units} units",
        memory_bytes=int(device.global_mem_size),
        whole_graphs=True,
        zero_copy=shares,
        forms=("rows", "quantized", "cached", "aggregated") if shares else ("rows", "quantized", "cached"),
        host_cores=units if is_cpu else 0,
        link="host memory" if shares else "PCIe",
        # Some drivers report no clock frequency.
        rates=None
        if not clock_hz
        else Rates(
            macs_per_s=units * clock_hz * width,
            memory_bytes_per_s=_HOST_BYTES_PER_S * units if is_cpu else _GPU_BYTES_PER_S,
            link_bytes_per_s=math.inf if shares else _PCIE_BYTES_PER_S,
            source=f"assumed: {units} units x {clock_hz / 1e9:.2f} GHz x {width} per cycle; "
            "typical memory and link",
        ),
    )
