"""Dependence of a stage's time on its threads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThreadCurve:
    """Time with k threads relative to one: serial + (1 - serial) / min(k, maximum)."""

    serial: float = 0.02
    """Serial fraction (Amdahl's law)."""
    most: float = math.inf
    """Maximum useful number of threads: beyond it, the memory is saturated."""

    @property
    def surprise(self) -> float:
        """Prior penalty: usually, almost all of a stage runs in parallel."""
        return 2 * abs(self.serial - 0.02) + (0.5 if self.most < math.inf else 0.0)

    def at(self, threads: float) -> float:
        """Return the time with that many threads relative to one thread."""
        return self.serial + (1 - self.serial) / min(threads, self.most)

    def fewest(self, relative: float) -> float:
        """Return the minimum threads with relative time of at most `relative`; infinite if no number
        suffices.
        """
        if relative <= self.serial:
            return math.inf
        count = (1 - self.serial) / (relative - self.serial)
        return max(1, math.ceil(count - 1e-9)) if count <= self.most + 1e-9 else math.inf


_SERIAL = (0.0, 0.02, 0.06, 0.12, 0.25, 0.5, 1.0)


def possible_curves(threads: Sequence[int]) -> list[ThreadCurve]:
    """Return the curves that times with these numbers of threads can distinguish, the usual one first."""
    usual = ThreadCurve()
    counts = sorted(set(threads))
    if len(counts) < 2:
        return [usual]
    curves = [usual, *(ThreadCurve(serial) for serial in _SERIAL if serial != usual.serial)]
    # A limit is visible only in steps with more threads.
    return curves + [ThreadCurve(0.0, float(count)) for count in counts[:-1]]
