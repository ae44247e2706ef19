"""The device protocol, discovery of backends, their names and calls. A backend imports the protocol's names from here."""

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
]
