"""The noise of a simulated run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Steps whose factors are drawn at once.
_DRAWN = 1024


def noise_factors(deviation: float, num_stages: int, seed: int) -> Iterator[list[float]]:
    """For each step the factors that its stages take longer, log-normal with mean 1.

    Parameters
    ----------
    deviation
        Standard deviation of the factors' logarithm; 0 for no noise.
    num_stages
        How many factors a step has.
    seed
        The same seed gives the same factors.
    """
    rng = np.random.default_rng(seed)
    while not deviation:
        yield [1.0] * num_stages
    while True:
        normal = rng.standard_normal((_DRAWN, num_stages))
        yield from np.exp(deviation * normal - deviation**2 / 2).tolist()
