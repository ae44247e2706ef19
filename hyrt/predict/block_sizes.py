"""Mini-batch sizes of a run: expected from degrees, or means of a few sampled mini-batches."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING

from hyrt_perfmodel.sizes.expected_sizes import BlockSizes
from hyrt_perfmodel.sizes.sampled_sizes import SampledSizes

from hyrt.config import Config
from hyrt.errors import ConfigError
from hyrt.predict.dataset_sizes import DatasetSizes
from hyrt.sampling.registry import SAMPLERS

if TYPE_CHECKING:
    from hyrt.machine.workers import Workers
    from hyrt.sampling.minibatch import MiniBatch
    from hyrt.sampling.sampler import Sampler
    from hyrt.sampling.sampler_settings import SamplerSettings

# Numbers of equal pieces that steps are divided into, since a trainer's share may be any part of a step.
_PIECES = (16, 8, 4, 2, 1)
_STEPS = 4


class SamplerSizesUnknown(ConfigError):
    """A sampler does not provide expected mini-batch sizes."""


def expected_block_sizes(config: Config, dataset: DatasetSizes, units: float) -> BlockSizes:
    """Return the expected mini-batch sizes of the configured sampler.

    Parameters
    ----------
    config
        All settings.
    dataset
        Sizes of the dataset, with its degrees.
    units
        Targets of the mini-batch, or its subgraphs if the sampler produces subgraphs.

    Raises
    ------
    SamplerSizesUnknown
        If the sampler provides no sizes.
    """
    assert dataset.degrees is not None
    sampler, layers = config.sampler, config.model.layers
    sizes = sampler.expected_sizes(dataset.degrees, layers=layers, num_targets=dataset.targets, units=units)
    if sizes is None:
        raise SamplerSizesUnknown(
            f"sampler.kind={sampler.kind} cannot be predicted without its data: it does not say how large "
            "its mini-batches become"
        )
    return sizes


def sampled_block_sizes(settings: SamplerSettings, sampler: Sampler, workers: Workers) -> SampledSizes:
    """Sample pieces of a run's first steps and average their sizes.

    Parameters
    ----------
    settings, sampler
        Settings of the run's sampler, and the sampler.
    workers
        Sampling threads.

    Raises
    ------
    ConfigError
        If the sampler fails, naming its kind and package.
    """
    with SAMPLERS.blamed(settings.kind, "sample"):
        rows = measured_pieces(sampler, workers, lambda batch, size: settings.sizes_of(batch, size).row)
    return SampledSizes({count: BlockSizes.of_row(row) for count, row in rows.items()})


def measured_pieces(
    sampler: Sampler, workers: Workers, sizes_of: Callable[[MiniBatch, int], tuple[float, ...]]
) -> dict[float, tuple[float, ...]]:
    """Return the mean sizes of pieces of a run's first steps, by number of units.

    Parameters
    ----------
    sampler, workers
        The run's sampler, and the sampling threads.
    sizes_of
        Function of a mini-batch and its number of units that returns its sizes; always the same number of
        values.
    """
    steps = [sampler.units(step) for step in range(_STEPS)]
    # Keep the step numbers, but skip steps that end an epoch, which have fewer units.
    full_steps = {step: units for step, units in enumerate(steps) if len(units) == len(steps[0])}
    measured = {}
    for pieces in _PIECES:
        size = len(steps[0]) // pieces
        if not size or float(size) in measured:
            continue
        rows = []
        for step, units in full_steps.items():
            for first in range(0, size * pieces, size):
                batch = sampler.sample(step, units[first : first + size], workers, in_place=False)
                rows.append(sizes_of(batch, size))
                batch.release()
        measured[float(size)] = tuple(statistics.fmean(column) for column in zip(*rows, strict=True))
    return measured
