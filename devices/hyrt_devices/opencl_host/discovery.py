"""Which devices a search found, and how one of them is claimed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hyrt.device import DeviceInfo
from hyrt.errors import DeviceUnavailableError


@dataclass(frozen=True, slots=True)
class FoundDevice:
    """A device that can be opened."""

    info: DeviceInfo
    """The device as `infer_shapes` describes it."""
    device: Any
    """The `pyopencl.Device`."""


F = TypeVar("F", bound=FoundDevice)


@dataclass(frozen=True, slots=True)
class DiscoveryResult(Generic[F]):
    """What a search found, and why there is not more."""

    found: list[F]
    """The devices, in a stable order."""
    reasons: list[str]
    """What is wrong with what was left out, with the remedy."""

    def of(self, info: DeviceInfo, otherwise: str) -> F:
        """The device that `infer_shapes` told of before.

        Raises
        ------
        DeviceUnavailableError
            If it is not there now, with the reasons, or `otherwise` where there are none.
        """
        for found in self.found:
            if found.info.index == info.index:
                return found
        raise DeviceUnavailableError(f"{info.name} is not available: {'; '.join(self.reasons) or otherwise}")


def pyopencl_problem() -> str:
    """Why pyopencl cannot be imported, with the remedy; empty where it can."""
    try:
        import pyopencl  # noqa: F401
    except (ImportError, OSError) as error:
        return f'pyopencl is not installed or broken ({error}): pip install "hyrt[opencl]"'
    return ""


@contextmanager
def opening(info: DeviceInfo, remedy: str) -> Iterator[None]:
    """Turn an OpenCL error of opening a device into DeviceUnavailableError with the remedy."""
    import pyopencl as cl

    try:
        yield
    except cl.Error as error:
        raise DeviceUnavailableError(
            f"{info.name} ({info.description}) cannot be opened: {error}: {remedy}"
        ) from error
