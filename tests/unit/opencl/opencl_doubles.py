"""As much of pyopencl as finding devices and taking memory needs, without any driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class Error(Exception):
    """Any error of OpenCL."""


class OutOfMemoryError(Error):
    """What an allocation raises."""


@dataclass(eq=False)
class Buffer:
    context: Any
    flags: int
    size: int
    released: bool = False

    def __post_init__(self) -> None:
        if self.size > self.context.room:
            raise OutOfMemoryError("MEM_OBJECT_ALLOCATION_FAILURE")

    def release(self) -> None:
        assert not self.released
        self.released = True


@dataclass
class Device:
    name: str
    type: int = 2
    version: str = "OpenCL 3.0"
    driver_version: str = "1"
    max_compute_units: int = 4
    max_clock_frequency: int = 2000
    native_vector_width_float: int = 8
    global_mem_size: int = 1 << 30
    host_unified_memory: bool = False
    available: bool = True
    compiler_available: bool = True
    compiles: bool = True
    platform: Any = None


@dataclass
class Platform:
    name: str
    version: str = "OpenCL 3.0"
    devices: list[Device] = field(default_factory=list)
    answers: bool = True

    def __post_init__(self) -> None:
        for device in self.devices:
            device.platform = self

    def get_devices(self) -> list[Device]:
        if not self.answers:
            raise Error("DEVICE_NOT_AVAILABLE")
        return self.devices


class Program:
    def __init__(self, context: Any, source: str) -> None:
        pass

    def build(self, devices: list[Device]) -> Program:
        if not devices[0].compiles:
            raise Error("BUILD_PROGRAM_FAILURE")
        return self


def module(platforms: list[Platform] | Error) -> SimpleNamespace:
    """A stand-in for pyopencl."""

    def get_platforms() -> list[Platform]:
        if isinstance(platforms, Error):
            raise platforms
        return platforms

    return SimpleNamespace(
        Error=Error,
        MemoryError=OutOfMemoryError,
        RuntimeError=OutOfMemoryError,
        Buffer=Buffer,
        Program=Program,
        Context=lambda devices: SimpleNamespace(room=1 << 40),
        mem_flags=SimpleNamespace(READ_WRITE=1, READ_ONLY=4, USE_HOST_PTR=8),
        device_type=SimpleNamespace(CPU=2, GPU=4, ACCELERATOR=8),
        get_platforms=get_platforms,
    )
