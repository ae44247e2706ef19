"""What has been measured of this machine, and whether predictions can use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def answer(item: str, say: Callable[..., None], **arguments: Any) -> None:
    """Say `calibrated`, `why` a calibration cannot be used, and the `devices` that were measured."""
    from hyrt.predict.calibrate.store import read_measured, usable

    calibration, why = usable()
    measured = read_measured()
    devices = [] if measured is None else sorted(measured.machine.devices)
    say(calibrated=calibration is not None, why=why, devices=devices)
