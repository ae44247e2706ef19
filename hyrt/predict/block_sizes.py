"""The sizes of a run's mini-batches: expected from degrees, or the means of a few that are sampled."""

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

# Into how many equal pieces steps are cut: what a trainer gets may be any part of one.
_PIECES = (16, 8, 4, 2, 1)
_STEPS = 4


class SamplerSizesUnknown(ConfigError):
    """A sampler does not say how large its mini-batches are."""


def expected_block_sizes(config: Config, dataset: DatasetSizes, units: float) -> BlockSizes:
    """The sizes that a mini-batch of the configured sampler is expected to have.

    Parameters
    ----------
    config
        All settings.
    dataset
        The sizes of the dataset, with its degrees.
    units
        The mini-batch's targets, or its subgraphs where the sampler makes these.

    Raises
    ------
    SamplerSizesUnknown
        If the sampler cannot say.
    """
    assert dataset.degrees is not None
    sampler, layers = config.sampler, config.model.layers
    found = sampler.expected_sizes(dataset.degrees, layers=layers, num_targets=dataset.targets, units=units)
    if found is None:
        raise SamplerSizesUnknown(
            f"sampler.kind={sampler.kind} cannot be predicted without its data: it does not say how large "
            "its mini-batches become"
        )
    return found


def sampled_block_sizes(settings: SamplerSettings, sampler: Sampler, workers: Workers) -> SampledSizes:
    """Sample pieces of a run's first steps, and take the means of their sizes.

    Parameters
    ----------
    settings, sampler
        The run's sampler and its settings.
    workers
        The threads that sample.

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
    """The mean sizes of pieces of a run's first steps, by their number of units.

    Parameters
    ----------
    sampler, workers
        The run's sampler, and the threads that sample.
    sizes_of
        Gives the sizes of a mini-batch of so many units, equally many each time.
    """
    steps = [sampler.units(step) for step in range(_STEPS)]
    # The number stays with the units: steps that end an epoch are left out, and have fewer.
    whole = {step: units for step, units in enumerate(steps) if len(units) == len(steps[0])}
    measured = {}
    for pieces in _PIECES:
        size = len(steps[0]) // pieces
        if not size or float(size) in measured:
            continue
        found = []
        for step, units in whole.items():
            for first in range(0, size * pieces, size):
                batch = sampler.sample(step, units[first : first + size], workers, in_place=False)
                found.append(sizes_of(batch, size))
                batch.release()
        measured[float(size)] = tuple(statistics.fmean(column) for column in zip(*found, strict=True))
    return measured
