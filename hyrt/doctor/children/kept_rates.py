"""Probe of this machine's stored measurements, and whether predictions can use them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def probe_calibration(item: str, report: Callable[..., None], **arguments: Any) -> None:
    """Report `calibrated`, `why` a calibration cannot be used, and the measured `devices`."""
    from hyrt.predict.calibrate.store import read_measured, usable

    calibration, reason = usable()
    measured = read_measured()
    devices = [] if measured is None else sorted(measured.machine.devices)
    report(calibrated=calibration is not None, why=reason, devices=devices)
