"""A double of the driver calls: everything happens at once on the CPU, and every call is written down.

The tensors are real, so losses and gradients are truly computed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch


@dataclass(eq=False)
class Mark:
    """The state of a stream at one moment."""

    stream: str
    at: float = field(default_factory=time.perf_counter)


class FakeDriver:
    """See `hyrt_devices.cuda.driver.Driver`."""

    reads_in_place = False

    def __init__(self, free: int = 1 << 30, *, reaches: bool = False) -> None:
        self.device = torch.device("cpu")
        self.calls: list[tuple[object, ...]] = []
        self.free = free
        self._reaches = reaches
        self.pinned_bytes = 0
        self.broken: Exception | None = None
        self._numbers = itertools.count()
        self._running: list[str] = []

    def stream(self) -> str:
        return f"stream {next(self._numbers)}"

    @contextmanager
    def running(self, stream: str) -> Iterator[None]:
        self._fail()
        self.calls.append(("running", stream))
        yield
        self.calls.append(("left", stream))

    def mark(self, stream: str) -> Mark:
        self._fail()
        mark = Mark(stream)
        self.calls.append(("mark", stream, mark))
        return mark

    def order(self, stream: str, mark: Mark) -> None:
        self.calls.append(("order", stream, mark))

    def wait(self, mark: Mark) -> None:
        self._fail()
        self.calls.append(("wait", mark))

    def seconds(self, start: Mark, end: Mark) -> float:
        return end.at - start.at

    def reaches(self, other: FakeDriver) -> bool:
        return self._reaches

    def pinned(self, size: int) -> torch.Tensor:
        self.pinned_bytes += size
        return torch.empty(size, dtype=torch.uint8)

    def free_bytes(self) -> int:
        return self.free

    def used_bytes(self) -> int:
        return 12 << 20

    def limit(self, size: int | None) -> None:
        self.calls.append(("limit", size))

    def out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, torch.OutOfMemoryError)

    def trim(self) -> None:
        self.calls.append(("trim",))

    def _fail(self) -> None:
        if self.broken is not None:
            raise self.broken
