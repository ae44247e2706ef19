"""Measured rates of this machine's devices, kept in the user's cache folder."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hyrt import __version__
from hyrt.device import DeviceInfo, Rates
from hyrt.errors import DataNotWritten


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """What one measurement of one device found.

    Parameters
    ----------
    description
        Of the device then: another one now is another device.
    host
        Name of the machine.
    hyrt
        Version that measured.
    date
        ISO date.
    macs_per_s, memory_bytes_per_s, link_bytes_per_s
        Medians, as in `Rates`; the link is None where the device reads host memory in place.
    spread
        Largest relative distance of a repetition from its median.
    """

    description: str
    host: str
    hyrt: str
    date: str
    macs_per_s: float
    memory_bytes_per_s: float
    link_bytes_per_s: float | None
    spread: float

    @property
    def is_possible(self) -> bool:
        """Whether the rates are rates: a file that was edited or damaged may hold anything."""
        link = math.inf if self.link_bytes_per_s is None else self.link_bytes_per_s
        return min(self.macs_per_s, self.memory_bytes_per_s, link) > 0 and math.isfinite(
            self.macs_per_s + self.memory_bytes_per_s
        )

    def rates(self) -> Rates:
        """As the rest of hyrt takes them."""
        link = self.link_bytes_per_s
        return Rates(
            macs_per_s=self.macs_per_s,
            memory_bytes_per_s=self.memory_bytes_per_s,
            link_bytes_per_s=math.inf if link is None else link,
            source=f"measured {self.date}",
        )


def rates_file() -> Path:
    """Where measured rates are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "hyrt" / "device-rates.json"


def read_rates(path: Path) -> dict[str, MeasuredRates]:
    """Measured rates by device name; none where the file is missing or cannot be read as such."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        measured = {str(name): MeasuredRates(**fields) for name, fields in entries.items()}
        return {name: entry for name, entry in measured.items() if entry.is_possible}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def write_rates(path: Path, measured: Mapping[str, MeasuredRates]) -> None:
    """Add measurements to the file.

    Raises
    ------
    DataNotWritten
        If the cache folder cannot be written.
    """
    entries = {name: asdict(entry) for name, entry in {**read_rates(path), **measured}.items()}
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(entries, indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise DataNotWritten(
            f"{path}: the measured rates cannot be stored: {error.strerror}. Set XDG_CACHE_HOME to a "
            "writable folder"
        ) from error


def why_stale(info: DeviceInfo, entry: MeasuredRates) -> str:
    """Why a measurement says nothing about a device; empty where it does."""
    if entry.host != platform.node():
        return f"measured on another machine ({entry.host})"
    if entry.description != info.description:
        return f"measured on another device ({entry.description})"
    if entry.hyrt != __version__:
        return f"measured with hyrt {entry.hyrt}"
    return ""


def known_rates(info: DeviceInfo, measured: Mapping[str, MeasuredRates]) -> tuple[Rates | None, str]:
    """The best known rates of a device, and why a measurement was not used (else empty)."""
    entry = measured.get(info.name)
    if entry is None:
        return info.rates, ""
    stale = why_stale(info, entry)
    return (info.rates, stale) if stale else (entry.rates(), "")
