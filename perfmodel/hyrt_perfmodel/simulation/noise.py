"""The noise of a simulated run."""

from __future__ import annotations

import numpy as np

# Steps that are drawn at once.
_DRAWN = 1024


class Noise:
    """Factors that stages take longer, log-normal with mean 1.

    Parameters
    ----------
    deviation
        Standard deviation of their logarithm.
    num_stages
        Factors of a step.
    seed
        The same gives the same factors.
    """

    def __init__(self, deviation: float, num_stages: int, seed: int) -> None:
        self._deviation, self._num_stages = deviation, num_stages
        self._rng = np.random.default_rng(seed)
        self._factors: list[list[float]] = []

    def of(self, step: int) -> list[float]:
        """Factors of a step's stages; ask for each step once, from 0, in order."""
        if not self._deviation:
            return [1.0] * self._num_stages
        if step % _DRAWN == 0:
            normal = self._rng.standard_normal((_DRAWN, self._num_stages))
            self._factors = np.exp(self._deviation * normal - self._deviation**2 / 2).tolist()
        return self._factors[step % _DRAWN]
