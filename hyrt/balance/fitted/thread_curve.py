"""How a stage's time goes with its threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadCurve:
    """Time with k threads over that with one: serial + (1 - serial) / min(k, most)."""

    serial: float = 0.02
    """The part that threads do not shorten (Amdahl's law)."""
    most: float = math.inf
    """Threads beyond this many change nothing: the memory is saturated."""

    @property
    def surprise(self) -> float:
        """How unusual it is, as a misfit: nearly all of a stage is shared among its threads."""
        return 2 * abs(self.serial - 0.02) + (0.5 if self.most < math.inf else 0.0)

    def at(self, threads: float) -> float:
        """Time with that many threads, over that with one."""
        return self.serial + (1 - self.serial) / min(threads, self.most)

    def fewest(self, relative: float) -> float:
        """Threads that `at` most `relative` takes; infinite where none are enough."""
        if relative <= self.serial:
            return math.inf
        count = (1 - self.serial) / (relative - self.serial)
        return max(1, math.ceil(count - 1e-9)) if count <= self.most + 1e-9 else math.inf


_SERIAL = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5, 1.0)


def possible_curves(threads: Sequence[int]) -> list[ThreadCurve]:
    """The curves that times with these numbers of threads can tell apart; the usual one is first."""
    usual = ThreadCurve()
    counts = sorted(set(threads))
    if len(counts) < 2:
        return [usual]
    curves = [usual, *(ThreadCurve(serial) for serial in _SERIAL if serial != usual.serial)]
    # A limit shows only in steps with more threads than that.
    return curves + [ThreadCurve(0.0, float(count)) for count in counts[:-1]]
