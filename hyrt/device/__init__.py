"""Device protocol, backend discovery, device names, and device calls with a time limit."""

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
