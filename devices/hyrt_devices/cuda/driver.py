"""What a device asks of torch's interface to a kind of hardware, in one place that tests can replace."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import psutil
import torch


class Driver:
    """Streams, events and memory of one device. A mark is an event that has been recorded.

    CUDA and XPU devices as they are: torch gives both the same interface.

    Parameters
    ----------
    kind, index
        Torch's name of the device.
    """

    reads_in_place = False
    """Whether operators read arrays of the host where they lie."""

    def __init__(self, kind: str, index: int) -> None:
        self.device = torch.device(kind, index)
        self._api: Any = torch.get_device_module(kind)
        # An event that holds a thread without spinning leaves the core to the CPU stages.
        self._event_options = {"blocking": True} if kind == "cuda" else {}

    def stream(self) -> Any:
        """A new stream: its work runs in order, beside that of others."""
        return self._api.Stream(device=self.device)

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        """Inside, the calling thread's operators run on the stream."""
        return cast("AbstractContextManager[Any]", self._api.stream(stream))

    def mark(self, stream: Any) -> Any:
        """Mark the stream's work so far, and the time at which it ends."""
        event = self._api.Event(enable_timing=True, **self._event_options)
        event.record(stream)
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Work given to the stream from now on starts after the mark."""
        stream.wait_event(mark)

    def wait(self, mark: Any) -> None:
        """Hold the calling thread until the mark is reached."""
        mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Time between two marks that were reached."""
        return float(start.elapsed_time(end)) / 1000

    def reaches(self, other: Driver) -> bool:
        """Whether memory of another device is copied from without a detour over the host's."""
        if self.device.type != "cuda" or other.device.type != "cuda" or self.device == other.device:
            return False
        return bool(self._api.can_device_access_peer(self.device, other.device))

    def pinned(self, size: int) -> torch.Tensor:
        """[size] uint8 host memory that is copied to and from without a detour."""
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def free_bytes(self) -> int:
        """Memory of the device nobody has taken."""
        if hasattr(self._api, "mem_get_info"):
            return int(self._api.mem_get_info(self.device)[0])
        # Torch of before 2.7 does not ask Intel's driver: what others take is then not seen.
        return int(self._api.get_device_properties(self.device).total_memory) - self.used_bytes()

    def used_bytes(self) -> int:
        """Memory of the device that this process's tensors take."""
        return int(self._api.memory_allocated(self.device))

    def limit(self, size: int | None) -> None:
        """Bound what this process may take of the device; None takes the bound away."""
        if not hasattr(self._api, "set_per_process_memory_fraction"):
            return
        total = self._api.get_device_properties(self.device).total_memory
        fraction = 1.0 if size is None else min(1.0, size / total)
        self._api.set_per_process_memory_fraction(fraction, self.device)

    def out_of_memory(self, error: Exception) -> bool:
        """Whether an error says that the device's memory is used up."""
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        """Give memory that is kept for reuse back to the device."""
        self._api.empty_cache()


class HostDriver(Driver):
    """The CPU: everything happens at once, in the host's memory. A mark is the time, in seconds."""

    reads_in_place = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def stream(self) -> Any:
        return None

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        return time.perf_counter()

    def order(self, stream: Any, mark: Any) -> None:
        """Nothing to do: what was called for is over."""

    def wait(self, mark: Any) -> None:
        """Nothing is left to be done."""

    def seconds(self, start: Any, end: Any) -> float:
        return float(end - start)

    def used_bytes(self) -> int:
        return psutil.Process().memory_info().rss

    def trim(self) -> None:
        """Memory goes back by itself."""


class MpsDriver(Driver):
    """Apple's devices: one queue, and memory that is the host's."""

    def stream(self) -> Any:
        return None

    def running(self, stream: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def mark(self, stream: Any) -> Any:
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event

    def order(self, stream: Any, mark: Any) -> None:
        """Nothing to do: there is one queue."""

    def seconds(self, start: Any, end: Any) -> float:
        try:
            return super().seconds(start, end)
        except RuntimeError as error:
            if "was not recorded after" not in str(error):
                raise
            return 0.0  # Torch tells no time between two marks that were reached at once.

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def free_bytes(self) -> int:
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())

    def used_bytes(self) -> int:
        return torch.mps.current_allocated_memory()

    def limit(self, size: int | None) -> None:
        total = torch.mps.recommended_max_memory()
        torch.mps.set_per_process_memory_fraction(1.0 if size is None else min(1.0, size / total))

    def out_of_memory(self, error: Exception) -> bool:
        return super().out_of_memory(error) or "MPS backend out of memory" in str(error)
