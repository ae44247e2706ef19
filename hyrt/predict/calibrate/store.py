"""Keeping a calibration, and judging one that was kept."""

from __future__ import annotations

from hyrt_perfmodel.platforms.calibration_file import (
    Calibration,
    CalibrationError,
    calibration_file,
    read_calibration,
    to_text,
    why_stale,
)

from hyrt.device import DeviceInfo
from hyrt.errors import DataNotWritten
from hyrt.machine.atomic_write import write_atomically
from hyrt.predict.calibrate.identity import real_devices, this_machine


def keep(calibration: Calibration) -> None:
    """Write it to the user's cache folder.

    Raises
    ------
    DataNotWritten
        If that cannot be written.
    """
    path = calibration_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, to_text(calibration).encode())
    except OSError as error:
        raise DataNotWritten(
            f"{path}: the calibration cannot be stored: {error.strerror}. Set XDG_CACHE_HOME to a "
            "writable folder"
        ) from error


def usable() -> tuple[Calibration | None, str]:
    """The calibration, if it was made here with these cores and versions; the devices are not asked.

    Returns
    -------
    It, or None with the reason, which is empty where nobody has calibrated.
    """
    if not calibration_file().exists():
        return None, ""
    try:
        calibration = read_calibration()
    except CalibrationError as error:
        return None, str(error)
    reasons = why_stale(calibration, this_machine(calibration.machine.devices))
    return (None, f"the calibration was {reasons[0]}: run `hyrt calibrate`") if reasons else (calibration, "")


def kept(devices: list[DeviceInfo] | None = None) -> tuple[Calibration | None, list[str]]:
    """Read the calibration of this machine, and why it is missing or says little; no reasons where it is good.

    Parameters
    ----------
    devices
        What is there now; found out where it is not given.
    """
    try:
        calibration = read_calibration()
    except CalibrationError as error:
        return None, [str(error)]
    there = real_devices() if devices is None else devices
    here = this_machine({info.name: info.description for info in there})
    return calibration, why_stale(calibration, here)
