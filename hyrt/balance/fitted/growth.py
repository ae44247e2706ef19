"""Growth of work with the size of a share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ShareGrowth:
    """Work of a share: units ** power, or the number of distinct items if the growth has a bound.

    A mini-batch of twice the size has less than twice the vertices, since some are duplicates. With a bound,
    each unit covers a random part of everything: bound · (1 - exp(-units / bound)).
    """

    power: float = 1.0
    """At most 1."""
    bound: float = math.inf
    """Maximum work of a share, in units."""
    surprise: float = 0.0
    """Prior penalty."""

    @property
    def is_proportional(self) -> bool:
        """Whether twice the units are twice the work."""
        return self.power == 1 and self.bound == math.inf

    def of(self, units: float) -> float:
        """Return the work of a number of units."""
        if self.bound < math.inf:
            return -self.bound * math.expm1(-units / self.bound)
        return float(units) if self.power == 1 else float(units) ** self.power

    def of_all(self, units: Floats) -> Floats:
        """Return `of` each number of units."""
        if self.bound < math.inf:
            return -self.bound * np.expm1(-units / self.bound)
        result: Floats = np.power(units, self.power) * (units > 0)
        return result

    def units(self, work: float) -> float:
        """Return the number of units with that work; infinite if the bound is not above it."""
        if work >= self.bound:
            return math.inf
        return (
            -self.bound * math.log1p(-work / self.bound)
            if self.bound < math.inf
            else work ** (1 / self.power)
        )


PROPORTIONAL = ShareGrowth()

_USUAL_POWER = 0.9
_POWER_DEVIATION = 0.15
_POWERS = (0.9, 1.0, 0.8, 0.65, 0.5, 0.3, 0.15)
_BOUNDS = (2.0, 1.0, 0.5, 0.25, 0.12, 0.06, 0.03)
_BOUND_PENALTY = 2.0


@lru_cache(maxsize=8)
def possible_growths(total: float) -> tuple[ShareGrowth, ...]:
    """Return distinguishable growths for steps with `total` units: powers, the usual one first, then
    bounds.
    """
    powers = tuple(
        ShareGrowth(power=power, surprise=(power - _USUAL_POWER) ** 2 / (2 * _POWER_DEVIATION**2))
        for power in _POWERS
    )
    return powers + tuple(
        ShareGrowth(bound=fraction * total, surprise=_BOUND_PENALTY) for fraction in _BOUNDS
    )


def logarithms(growths: Sequence[ShareGrowth], units: Floats) -> Floats:
    """Return float64 [growths, units] log work; `growths` has powers first, then bounds."""
    powers = np.array([growth.power for growth in growths if growth.bound == math.inf])[:, None]
    bounds = np.array([growth.bound for growth in growths if growth.bound < math.inf])[:, None]
    return np.concatenate([powers * np.log(units), np.log(-bounds * np.expm1(-units / bounds))])
