"""What every rank trains in a step, which each of them can sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hyrt.machine.workers import Workers
from hyrt.sampling.block import Ids
from hyrt.sampling.minibatch import MiniBatch
from hyrt.sampling.sampler import Sampler


class EveryRank:
    """Samples the mini-batches of all ranks.

    Parameters
    ----------
    sampler
        A sampler of its own: others may sample at the same time.
    units_of_ranks
        Gives the units that each rank trains, from a step and all of its units.
    in_place
        Whether blocks are to be read in place.
    """

    def __init__(
        self,
        sampler: Sampler,
        units_of_ranks: Callable[[int, Ids], Sequence[Ids]],
        *,
        in_place: bool,
    ) -> None:
        self._sampler = sampler
        self._units_of_ranks = units_of_ranks
        self._in_place = in_place

    def batches(self, step: int, workers: Workers) -> dict[int, MiniBatch]:
        """The mini-batches of a step by rank, of those that have units; the caller releases them."""
        return {
            rank: self._sampler.sample(step, units, workers, in_place=self._in_place)
            for rank, units in enumerate(self._units_of_ranks(step, self._sampler.units(step)))
            if len(units)
        }
