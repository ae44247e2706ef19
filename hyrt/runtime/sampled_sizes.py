"""The sizes of a run's mini-batches, from sampling a few."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hyrt.sampling.sampler import Sampler
from hyrt.workers import Workers


@dataclass(frozen=True, slots=True)
class Sampled:
    """Means over a few mini-batches with equally many units.

    Parameters
    ----------
    units
        Of each.
    vertices
        |V^0| .. |V^L|; |V^0| is that of blocks whose sources are numbered.
    edges
        |E^1| .. |E^L|.
    seconds
        To sample one: the median.
    """

    units: int
    vertices: tuple[float, ...]
    edges: tuple[float, ...]
    seconds: float


def sample_sizes(
    sampler: Sampler, units: Sequence[int], workers: Workers, *, in_place: bool, batches: int = 4
) -> list[Sampled]:
    """Sample a few mini-batches of each number of units, as pieces of the run's first steps.

    Parameters
    ----------
    sampler
        Of the run.
    units
        How many of a step's units; 0 and more than a step has are left out.
    workers
        Who samples.
    in_place
        Whether the input vertices are left unnumbered; then |V^0| is 0.
    batches
        Of each size.
    """
    found = []
    for count in sorted(set(units)):
        drawn = []
        for step in range(min(batches, sampler.steps_per_epoch())):
            whole = sampler.units(step)
            if not 0 < count <= len(whole):
                continue
            started = time.perf_counter()
            batch = sampler.sample(step, whole[:count], workers, in_place=in_place)
            seconds = time.perf_counter() - started
            blocks = batch.blocks
            inputs = 0.0 if in_place else float(blocks[0].num_src)
            sizes = [inputs, *(float(block.num_dst) for block in blocks)]
            drawn.append((sizes, [float(block.num_edges) for block in blocks], seconds))
            batch.release()
        if drawn:
            found.append(
                Sampled(
                    count,
                    tuple(statistics.fmean(column) for column in zip(*(d[0] for d in drawn), strict=True)),
                    tuple(statistics.fmean(column) for column in zip(*(d[1] for d in drawn), strict=True)),
                    statistics.median(d[2] for d in drawn),
                )
            )
    return found
