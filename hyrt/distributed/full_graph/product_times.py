"""Timings of distributed SpMM, and how much of the communication was hidden behind computation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


class Ends(Protocol):
    """Handle of an operation with an end time."""

    @property
    def ended_at(self) -> float | None:
        """End time (`time.perf_counter`); None while the operation is running."""
        ...


@dataclass(slots=True)
class ProductTimes:
    """Times in seconds, summed over products."""

    compute_s: float = 0.0
    """Time spent on multiplying blocks."""
    communicate_s: float = 0.0
    """Time from the start of the exchanges to the end of the last exchange."""
    wait_s: float = 0.0
    """Idle time while waiting for rows."""

    def product(self) -> ProductClock:
        """Start the clock of another product."""
        return ProductClock(self, time.perf_counter())

    def clear(self) -> None:
        """Reset all times."""
        self.compute_s = self.communicate_s = self.wait_s = 0.0

    @property
    def hidden_s(self) -> float:
        """Communication time that overlapped with computation.

        At least 0: a wait may end later than the exchange that it waited for.
        """
        return max(0.0, self.communicate_s - self.wait_s)

    @property
    def hidden(self) -> float | None:
        """Hidden fraction of the smaller of compute and communication time; None before both are positive."""
        shorter = min(self.compute_s, self.communicate_s)
        return None if shorter <= 0 else self.hidden_s / shorter


@dataclass(slots=True)
class ProductClock:
    """Clock of one product."""

    times: ProductTimes
    began: float
    waited_s: float = 0.0

    def wait(self, until: Callable[[], None]) -> None:
        """Call a function that waits for other ranks, and add its duration to the idle time."""
        started = time.perf_counter()
        until()
        self.waited_s += time.perf_counter() - started

    def end(self, arrivals: Sequence[Ends]) -> None:
        """Stop the clock and add the product's times to the sums."""
        now = time.perf_counter()
        last_end = max((arrival.ended_at or now for arrival in arrivals), default=self.began)
        self.times.communicate_s += last_end - self.began
        self.times.wait_s += self.waited_s
        self.times.compute_s += now - self.began - self.waited_s
