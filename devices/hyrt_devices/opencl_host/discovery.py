"""Results of device discovery, and opening of a discovered device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hyrt.device import DeviceInfo
from hyrt.errors import DeviceUnavailableError


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """Device that can be opened."""

    info: DeviceInfo
    device: Any


F = TypeVar("F", bound=FoundDevice)


@dataclass(frozen=True, slots=True)
class DiscoveryResult(Generic[F]):
    """Devices that were found, and the reasons for missing devices."""

    found: list[F]
    """In a stable order."""
    reasons: list[str]
    """Problems of the devices that were left out, with fixes."""

    def of(self, info: DeviceInfo, otherwise: str) -> F:
        """Return the device that an earlier `probe` described.

        Raises DeviceUnavailableError if the device is no longer available; the message has the reasons, or
        `otherwise` without reasons.
        """
        for found in self.found:
            if found.info.index == info.index:
                return found
        raise DeviceUnavailableError(
            f"{info.name} is not available ({'; '.join(self.reasons) or otherwise}): see `hyrt devices`"
        )


def pyopencl_problem() -> str:
    """Return why pyopencl cannot be imported, with a fix; empty if it can be imported."""
    try:
        import pyopencl  # noqa: F401
    except (ImportError, OSError) as error:
        return f'pyopencl is missing or broken ({error}): pip install "hyrt[opencl]"'
    return ""


@contextmanager
def opening(info: DeviceInfo, remedy: str) -> Iterator[None]:
    """Turn an OpenCL error during the opening of a device into DeviceUnavailableError with `remedy`."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        raise DeviceUnavailableError(
            f"{info.name} ({info.description}) cannot be opened ({error}): {remedy}"
        ) from error
