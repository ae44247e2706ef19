"""The sizes of a run's mini-batches, from sampling a few."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.sizes.sampled_sizes import SampledSizes

from hyrt.machine.workers import Workers
from hyrt.sampling.sampler import Sampler

# Into how many equal pieces steps are cut: what a trainer gets may be any part of one.
_PIECES = (16, 8, 4, 2, 1)
_STEPS = 4


def sample_sizes(sampler: Sampler, workers: Workers) -> SampledSizes:
    """Sample the pieces of a run's first steps, and take the means.

    Parameters
    ----------
    sampler
        Of the run; a unit is a target.
    workers
        Who samples.
    """
    steps = [sampler.units(step) for step in range(min(_STEPS, sampler.steps_per_epoch()))]
    whole = [units for units in steps if len(units) == len(steps[0])]
    measured = {}
    for pieces in _PIECES:
        size = len(steps[0]) // pieces
        if not size or float(size) in measured:
            continue
        found = []
        for step, units in enumerate(whole):
            for first in range(0, size * pieces, size):
                batch = sampler.sample(step, units[first : first + size], workers, in_place=False)
                blocks = batch.blocks
                vertices = [blocks[0].num_src, *(block.num_dst for block in blocks)]
                found.append((vertices, [block.num_edges for block in blocks]))
                batch.release()
        measured[float(size)] = BlockSizes(
            vertices=_means(vertices for vertices, _ in found), edges=_means(edges for _, edges in found)
        )
    return SampledSizes(measured)


def _means(rows: Iterable[list[int]]) -> tuple[float, ...]:
    return tuple(statistics.fmean(column) for column in zip(*rows, strict=True))
