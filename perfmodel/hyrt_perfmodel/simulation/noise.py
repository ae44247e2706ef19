"""Noise of simulated stage times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

# Steps whose factors are generated at once.
_BATCH_STEPS = 1024


def noise_factors(deviation: float, num_stages: int, seed: int) -> Iterator[list[float]]:
    """Yield, for each step, the factors of its stage times, which are log-normal with mean 1.

    Parameters
    ----------
    deviation
        Standard deviation of the factors' logarithm; 0 for no noise.
    num_stages
        Number of factors per step.
    seed
        Seed of the random factors.
    """
    rng = np.random.default_rng(seed)
    while not deviation:
        yield [1.0] * num_stages
    while True:
        normal = rng.standard_normal((_BATCH_STEPS, num_stages))
        yield from np.exp(deviation * normal - deviation**2 / 2).tolist()
