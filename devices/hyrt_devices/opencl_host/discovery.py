"""Results of device discovery, and errors when a discovered device is opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hyrt.device import DeviceInfo
from hyrt.errors import DeviceUnavailableError


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """Device that was found and can be opened."""

    info: DeviceInfo
    device: Any


F = TypeVar("F", bound=FoundDevice)


@dataclass(frozen=True, slots=True)
class DiscoveryResult(Generic[F]):
    """Devices that were found, and the reasons why others are missing."""

    found: list[F]
    """Devices in a stable order."""
    reasons: list[str]
    """Problems of the other devices, with remedies."""

    def of(self, info: DeviceInfo, otherwise: str) -> F:
        """Return the device that an earlier call of `probe` described.

        Raises DeviceUnavailableError if the device is no longer available. The message contains the reasons,
        or `otherwise` if there are none.
        """
        for found in self.found:
            if found.info.index == info.index:
                return found
        raise DeviceUnavailableError(
            f"{info.name} is not available ({'; '.join(self.reasons) or otherwise}): see `hyrt devices`"
        )


def pyopencl_problem() -> str:
    """Return the reason why pyopencl cannot be imported, and the remedy; "" if it can be imported."""
    try:
        import pyopencl  # noqa: F401
    except (ImportError, OSError) as error:
        return f'pyopencl is missing or broken ({error}): pip install "hyrt[opencl]"'
    return ""


@contextmanager
def opening(info: DeviceInfo, remedy: str) -> Iterator[None]:
    """Convert OpenCL errors in the block, which opens a device, to DeviceUnavailableError with `remedy`."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        raise DeviceUnavailableError(
            f"{info.name} ({info.description}) cannot be opened ({error}): {remedy}"
        ) from error
