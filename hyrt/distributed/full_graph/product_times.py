"""How long products over several ranks took, and how much of the communication they hid."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Ends(Protocol):
    """Something that ends."""

    @property
    def ended_at(self) -> float | None:
        """When, by `time.perf_counter`; None while it has not."""
        ...


@dataclass(slots=True)
class ProductTimes:
    """Seconds, added up over products."""

    compute_s: float = 0.0
    """In which blocks were multiplied."""
    communicate_s: float = 0.0
    """From the beginning of the exchanges to the end of the last one."""
    wait_s: float = 0.0
    """In which nothing was computed because rows had not arrived."""

    def product(self) -> ProductClock:
        """The clock of one more product."""
        return ProductClock(self, time.perf_counter())

    def clear(self) -> None:
        """Begin again."""
        self.compute_s = self.communicate_s = self.wait_s = 0.0

    @property
    def hidden_s(self) -> float:
        """Seconds of communication in which nobody waited; a wait may end later than what it waited for."""
        return max(0.0, self.communicate_s - self.wait_s)

    @property
    def hidden(self) -> float | None:
        """The part of the smaller of computing and communicating that took no time of its own; None before
        both have taken some.
        """
        least = min(self.compute_s, self.communicate_s)
        return None if least <= 0 else self.hidden_s / least


@dataclass(slots=True)
class ProductClock:
    """Measures one product."""

    times: ProductTimes
    began: float
    waited_s: float = 0.0

    def wait(self, until: Callable[[], None]) -> None:
        """Call what waits for other ranks."""
        started = time.perf_counter()
        until()
        self.waited_s += time.perf_counter() - started

    def end(self, arrivals: Sequence[Ends]) -> None:
        """Note that the product is done."""
        now = time.perf_counter()
        last = max((each.ended_at or now for each in arrivals), default=self.began)
        self.times.communicate_s += last - self.began
        self.times.wait_s += self.waited_s
        self.times.compute_s += now - self.began - self.waited_s
