"""Number of reads of each feature row, counted over sampled steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hyrt.machine.workers import Workers
from hyrt.sampling.sampler import Sampler


def counted_visits(
    sampler: Sampler,
    steps: Sequence[int],
    part: float,
    num_vertices: int,
    workers: Workers,
    *,
    all_units: bool = False,
) -> NDArray[np.float64]:
    """Count how often one trainer reads the row of each vertex in some steps, [V].

    Parameters
    ----------
    sampler
        Draws the same for a step whenever it is asked.
    steps
        The steps, of the run.
    part
        The part of each step's units that the trainer has.
    num_vertices
        The vertices of the graph.
    workers
        The threads that sample.
    all_units
        Whether all units of a step are sampled, as many at a time as the trainer has, and the mean is taken:
        for few units that differ much from each other.
    """
    visits = np.zeros(num_vertices)
    for step in steps:
        units = sampler.units(step)
        size = math.ceil(part * len(units))
        starts = range(0, len(units) - size + 1, size) if all_units else range(1)
        for start in starts:
            batch = sampler.sample(step, units[start : start + size], workers, in_place=False)
            sources = batch.blocks[0].sources
            assert sources is not None
            np.add.at(visits, sources, 1 / len(starts))
            batch.release()
    return visits
