"""The device protocol, whose names a backend imports from here; discovery of backends, names and calls."""

from __future__ import annotations

from hyrt.device.protocol import (
    HOST_FORMS,
    Device,
    DeviceInfo,
    DeviceOptions,
    Health,
    InputForm,
    QueueListener,
    Rates,
    Span,
    StepResult,
    check_parameters,
)

__all__ = [
    "HOST_FORMS",
    "Device",
    "DeviceInfo",
    "DeviceOptions",
    "Health",
    "InputForm",
    "QueueListener",
    "Rates",
    "Span",
    "StepResult",
    "check_parameters",
]
