"""What makes measurements comparable: the machine, its devices, the versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata

from hyrt_perfmodel.platforms.calibration_file import Machine

from hyrt.device import DeviceInfo
from hyrt.device.discovery import survey_devices
from hyrt.machine.cores import available_cores, processor_name

_PACKAGES = ("hyrt", "torch", "numba", "numpy")


def this_machine(devices: Mapping[str, str]) -> Machine:
    """What makes measurements here comparable, with the devices that are there."""
    return Machine(
        node=platform.node(),
        processor=processor_name() or "unknown",
        cores=available_cores(),
        versions={name: metadata.version(name) for name in _PACKAGES},
        devices=dict(devices),
    )


def real_devices() -> list[DeviceInfo]:
    """Every device to calibrate: all that are real, the CPU once."""
    found = [info for survey in survey_devices() for info in survey.found if not info.simulated]
    return [info for info in found if info.kind != "cpu" or info.index == 0]
