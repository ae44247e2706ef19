"""How often each vertex's row is read in steps that are sampled to count it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.workers import Workers
from hyrt.sampling.sampler import Sampler


def counted_visits(
    sampler: Sampler, steps: Sequence[int], part: float, num_vertices: int, workers: Workers
) -> NDArray[np.float64]:
    """[V] in how many of some steps the row of each vertex is read.

    Parameters
    ----------
    sampler
        Draws the same for a step whenever it is asked.
    steps
        The steps, of the run.
    part
        The part of each step's units that is sampled.
    num_vertices
        The vertices of the graph.
    workers
        The threads that sample.
    """
    visits = np.zeros(num_vertices)
    for step in steps:
        units = sampler.units(step)
        batch = sampler.sample(step, units[: math.ceil(part * len(units))], workers, in_place=False)
        sources = batch.blocks[0].sources
        assert sources is not None
        visits[sources] += 1
        batch.release()
    return visits
