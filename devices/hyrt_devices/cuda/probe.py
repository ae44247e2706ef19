"""Detection of torch devices, and reasons why devices are missing."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from hyrt.device import DeviceInfo, Rates
from hyrt_devices.cuda.launch import launchers

# fp32 multiply-accumulates per multiprocessor and clock cycle, in every NVIDIA generation since 2020.
_LANES = 128
_ASSUMED_CLOCK_HZ = 1.5e9
# With pinned memory, PCIe 4.0 x16 reaches about 25 of its 31.5 GB/s.
_ASSUMED_LINK = 25e9
_ASSUMED_MEMORY = 400e9


def _cuda(index: int) -> DeviceInfo:
    properties: Any = torch.cuda.get_device_properties(index)
    multiprocessors = properties.multi_processor_count
    # Older torch versions do not report clock rates. Zero means that the driver does not report a value.
    clock = 1e3 * getattr(properties, "clock_rate", 0) or _ASSUMED_CLOCK_HZ
    width_bytes = getattr(properties, "memory_bus_width", 0) / 8
    # Multiply by two: memory with double data rate makes two transfers per clock cycle.
    memory = 2e3 * getattr(properties, "memory_clock_rate", 0) * width_bytes or _ASSUMED_MEMORY
    kernels = "hyrt's kernels" if launchers() else "torch operators (cuda-bindings is not installed)"
    return DeviceInfo(
        kind="cuda",
        index=index,
        description=f"{properties.name}, {multiprocessors} SMs, {kernels}",
        memory_bytes=int(properties.total_memory),
        whole_graphs=True,
        forms=("rows", "quantized", "cached", "ids", "hetero"),
        link="PCIe",
        rates=Rates(
            macs_per_s=multiprocessors * _LANES * clock,
            memory_bytes_per_s=memory,
            link_bytes_per_s=_ASSUMED_LINK,
            source=f"assumed: {multiprocessors} SMs x {_LANES} lanes at {clock / 1e9:.2f} GHz, PCIe 4.0 x16",
        ),
    )


def _xpu(index: int) -> DeviceInfo:
    properties: Any = torch.xpu.get_device_properties(index)
    return DeviceInfo(
        kind="xpu",
        index=index,
        description=f"{properties.name}, {properties.max_compute_units} compute units, torch operators",
        memory_bytes=int(properties.total_memory),
        whole_graphs=True,
        forms=("rows", "quantized", "cached", "ids", "hetero"),
        link="PCIe",
    )


def _mps(index: int) -> DeviceInfo:
    return DeviceInfo(
        kind="mps",
        index=index,
        description="Apple GPU, torch operators",
        memory_bytes=int(torch.mps.recommended_max_memory()),
        whole_graphs=True,
        forms=("rows", "hetero"),
        link="host memory",
    )


_DESCRIBE: dict[str, Callable[[int], DeviceInfo]] = {"cuda": _cuda, "xpu": _xpu, "mps": _mps}


def _count(kind: str) -> int:
    if kind == "mps":
        return int(torch.backends.mps.is_available())
    count: int = torch.get_device_module(kind).device_count()
    return count


def _search(kind: str) -> tuple[list[DeviceInfo], Exception | None]:
    """Return the devices or the error of the detection, which creates no context without a device."""
    try:
        with warnings.catch_warnings():
            # Suppress torch's warning about a driver that is too old; the device then counts as missing.
            warnings.simplefilter("ignore")
            return [_DESCRIBE[kind](index) for index in range(_count(kind))], None
    except Exception as error:  # A probe must not raise: `missing_device_reason` reports the error.
        return [], error


def found(kind: str) -> list[DeviceInfo]:
    """Return the devices of a kind (`cuda`, `xpu` or `mps`), or an empty list."""
    return _search(kind)[0]


def missing_device_reason(kind: str) -> str:
    """Return the reason why there are no devices of a kind, and the remedy."""
    error = _search(kind)[1]
    if error is not None:
        return (
            f"torch cannot list {kind} devices ({type(error).__name__}: {error}): see docs/devices.md#{kind}"
        )
    if kind == "cuda":
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            return "torch was built without CUDA: install it with CUDA from https://pytorch.org/get-started/locally"
        return "no NVIDIA driver or GPU was found: see docs/devices.md#cuda"
    if kind == "xpu":
        if not torch.xpu._is_compiled():
            return "torch was built without XPU: install it with XPU from https://pytorch.org/get-started/locally"
        return "no Intel GPU or driver was found: see docs/devices.md#xpu"
    if not torch.backends.mps.is_built():
        return "torch was built without MPS, which only Macs have: see docs/devices.md#mps"
    return "no Apple GPU was found, or macOS is older than 14: see docs/devices.md#mps"
